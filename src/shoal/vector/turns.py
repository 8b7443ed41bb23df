"""Turns: a vec runs one verb at a time, whether threads, envs or signal handlers call it.

A verb takes the turn of its vec at its start and ends it when it returns or raises. `Life` holds the state.

Guarantees
  - A verb that is called while another one runs raises `AlreadyPending` and changes nothing.
  - `close` needs no turn and may be called at any time. The verb that it interrupts raises `Closed`.
  - A verb that raises an exception, Ctrl-C included, ends its turn.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from shoal.vector.life import Life

Vec = TypeVar("Vec", bound="Life")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")

_codes: set[CodeType] = set()  # the code of each function that takes the turn of its first argument


# One line reads and sets the flag, and so takes the turn. CPython switches threads and runs signal handlers
# only at calls and at the end of each pass of a loop, so never in the middle of that line.
_VERB = """
def taking_turns{parameters}:
    taken = True
    try:
        taken, self._turn_taken = self._turn_taken, True
        closed = self._closed
        if taken or closed:
            raise self._refusal(method.__name__)
        result = method({arguments})
        self._turn_taken = False
    except BaseException as error:
        if not taken:
            self._end_turn(error)
        raise
    if self._closed:
        self._end_turn()
    return result
"""


def verb(method: Callable[Concatenate[Vec, Rest], Result]) -> Callable[Concatenate[Vec, Rest], Result]:
    """Make a method of a vec take the turn, and raise if another verb has it."""
    # The wrapper is generated for the method's own parameters, as dataclasses do. Passing *args and **kwargs
    # on would cost more than the rest of the wrapper.
    parameters = inspect.signature(method).parameters.values()
    bare = inspect.Signature([each.replace(annotation=each.empty) for each in parameters])
    namespace: dict[str, Any] = {"method": method}
    text = _VERB.format(parameters=bare, arguments=", ".join(map(_as_argument, parameters)))
    # The file name begins with Shoal's folder, so that `warn_caller` skips this frame.
    name = f"{__file__}:{method.__name__}"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # for tracebacks
    exec(compile(text, name, "exec"), namespace)
    return holds_turn(wraps(method)(namespace["taking_turns"]))


def _as_argument(parameter: inspect.Parameter) -> str:
    """Return the text that passes a parameter on in a call."""
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
    """Return whether a verb of the vec is running in this thread, below the caller of this function."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _codes and frame.f_locals[frame.f_code.co_varnames[0]] is vec:
            return True
        frame = frame.f_back
    return False
