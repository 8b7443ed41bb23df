"""Turns: a vec runs one verb at a time, whether threads, envs or signal handlers call it.

Guarantees
  - A call while another is under way raises `AlreadyPending`, and changes nothing.
  - `close` needs no turn and may come at any time. The call that it interrupts raises `Closed`.
  - An exception, Ctrl-C included, leaves no turn taken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from shoal.caller_warning import warn_caller
from shoal.errors import Closed
from shoal.stepping.env_faults import summary_of

if TYPE_CHECKING:
    from shoal.vector.life import Life
    from shoal.vector.vec import VectorEnv

Vec = TypeVar("Vec", bound="VectorEnv")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")

_codes: set[CodeType] = set()  # of functions that hold the turn of their first argument


# An exchange takes the turn: CPython switches threads, and runs signal handlers, at calls and where a loop
# goes back, and so never in the middle of that line.
_VERB = """
def taking_turns{parameters}:
    taken = True
    try:
        taken, self._moving = self._moving, True
        closed = self._closed
        if taken or closed:
            raise self._refusal(method.__name__)
        result = method({arguments})
        self._moving = False
    except BaseException as error:
        if not taken:
            give_back(self, error)
        raise
    if self._closed:
        give_back(self)
    return result
"""


def verb(method: Callable[Concatenate[Vec, Rest], Result]) -> Callable[Concatenate[Vec, Rest], Result]:
    """Let a method of a vec take the turn, or raise if it is taken."""
    # The wrapper is generated for the method's own parameters, as dataclasses do. Passing *args and **kwargs
    # on would cost more than the rest of the wrapper.
    parameters = inspect.signature(method).parameters.values()
    bare = inspect.Signature([each.replace(annotation=each.empty) for each in parameters])
    known: dict[str, Any] = {"method": method, "give_back": give_back}
    text = _VERB.format(parameters=bare, arguments=", ".join(map(_passed_on, parameters)))
    exec(compile(text, f"{__file__}:{method.__name__}", "exec"), known)  # a file of ours, for `warn_caller`
    return holds_turn(wraps(method)(known["taking_turns"]))


def _passed_on(parameter: inspect.Parameter) -> str:
    forms: dict[Any, str] = {
        parameter.VAR_POSITIONAL: "*{0}",
        parameter.VAR_KEYWORD: "**{0}",
        parameter.KEYWORD_ONLY: "{0}={0}",
    }
    return forms.get(parameter.kind, "{0}").format(parameter.name)


def holds_turn(function: Callable[Rest, Result]) -> Callable[Rest, Result]:
    """Mark a function that takes the turn of its first argument by itself."""
    _codes.add(function.__code__)
    return function


def has_turn_here(vec: Life) -> bool:
    """Whether the verb under way was called by this thread, and waits for the caller of this function."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _codes and frame.f_locals[frame.f_code.co_varnames[0]] is vec:
            return True
        frame = frame.f_back
    return False


def give_back(vec: VectorEnv, error: BaseException | None = None) -> None:
    """End the turn of a verb that has raised, or whose vec has been closed meanwhile.

    Raises:
        Closed: If the vec has been closed, unless an env or a signal handler has raised.
    """
    vec._moving = False
    if vec._closed:
        for failure in vec._close_rest():
            warn_caller(f"in close(): {summary_of(failure)}")
        if error is None or _is_ours(error):
            raise Closed("the vec was closed while its envs were moving") from error


def _is_ours(error: BaseException) -> bool:
    """Whether an error arose in Shoal's own code, so that it may come of what `close` has ended."""
    last = error.__traceback__
    if not isinstance(error, Exception) or isinstance(error, Closed) or last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return bool(last.tb_frame.f_globals.get("__name__", "").startswith("shoal."))
