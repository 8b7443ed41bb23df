"""What went wrong, and in which env: the words of the core's errors."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from traceback import walk_tb
from types import CodeType
from typing import Any

from shoal.errors import EnvError, ObservationError
from shoal.rows.fields import Misfit, where


def observation_error(misfit: Misfit, env: int, verb: str) -> ObservationError:
    """The public error for a value that does not fit its row."""
    return misfit.public(
        f"{where(misfit.path, misfit.root or 'observation')}: {misfit.problem}, from {verb}() of env {env}."
        + ("" if misfit.root else f" Correct the env's observation_space or what its {verb}() returns.")
    )


def name_env(error: BaseException, env: int, verb: str) -> None:
    """Note on an env's own exception where it came from; it stays what it is.

    Raises:
        EnvError: In the place of an exception that would end this process.
    """
    if would_end(error):
        raise stand_in(error, f"env {env}", verb, [env])
    if isinstance(error, Exception):  # Ctrl-C is no env's
        with suppress(Exception):  # an exception may refuse notes, a frozen dataclass say
            error.add_note(f"raised by {verb}() of env {env}")


def to_raise(error: BaseException, env: int, verb: str) -> BaseException:
    """What the caller is to see of an error in a step: one of ours in some cases, else the env's own."""
    if isinstance(error, Misfit):
        public = observation_error(error, env, verb)
        public.__suppress_context__ = True
        return public
    try:
        name_env(error, env, verb)
    except EnvError as ours:
        return ours
    return error


# ---------------------------------------------------------------------- exceptions that would end a process


_in_worker = False


def enter_worker() -> None:
    """This process is a worker from now on."""
    global _in_worker
    _in_worker = True


def would_end(error: BaseException) -> bool:
    """Whether an exception out of an env's code is no `Exception`, so that it would end this process.

    That is an error of the env like any other. Not so Ctrl-C, and what a signal handler raises: those only
    happen to come while an env is at work. Workers ignore Ctrl-C, so there a KeyboardInterrupt is the env's.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt) and not _in_worker:
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return not any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", None)
    if function is None:  # an object that can be called
        function = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is asked for
    return getattr(function, "__code__", None)


def stand_in(error: BaseException, who: str, verb: str = "", env_ids: Sequence[int] = ()) -> EnvError:
    """The error that stands for an env's exception which would end a process; that one is its cause.

    Args:
        error: The exception.
        who: Whose it is, for the message.
        verb: What was called, if that is known.
        env_ids: The envs that it concerns.
    """
    did, remedy = f"raised {summary_of(error)}", ""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else _shown(error.code)
        did, remedy = f"called sys.exit({code})", ". Let the env raise an exception instead"
    where = f" in {verb}()" if verb else ""
    public = EnvError(f"{who} {did}{where}{remedy}", env_ids)
    public.__cause__ = error
    return public


class Guard:
    """Lets nothing out of an env's code that would end this process: ``with Guard("env 3", "render"): ...``.

    Args:
        who: Whose code it is.
        verb: What is called, if it has a name.
        env_ids: The envs that it concerns.
    """

    def __init__(self, who: str, verb: str = "", env_ids: Sequence[int] = ()) -> None:
        self._known = who, verb, env_ids

    def __enter__(self) -> None:
        """The env's code begins."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """The env's code is over.

        Raises:
            EnvError: In the place of an exception that would end this process.
        """
        if error is not None and would_end(error):
            raise stand_in(error, *self._known)


def summary_of(error: BaseException) -> str:
    """An exception in a line, whatever its own ways of showing itself do."""
    try:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except BaseException:
        return type(error).__name__


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except BaseException:
        return f"<{type(value).__name__}>"
