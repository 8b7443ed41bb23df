"""Errors of envs: name the env and the verb, and replace exceptions that would end the process."""

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
    """Make the public error for a value that does not fit its row."""
    return misfit.public(
        f"{where(misfit.path, misfit.root or 'observation')}: {misfit.problem}, from {verb}() of env {env}."
        + ("" if misfit.root else f" Correct the env's observation_space or what its {verb}() returns.")
    )


def name_env(error: BaseException, env: int, verb: str) -> None:
    """Add a note to an env's exception that names the env and the verb.

    Raises:
        EnvError: If the exception would end this process.
    """
    if would_end(error):
        raise stand_in(error, f"env {env}", verb, [env])
    if isinstance(error, Exception):  # a KeyboardInterrupt comes from the user
        with suppress(Exception):  # an exception may refuse notes: a frozen dataclass, for example
            error.add_note(f"raised by {verb}() of env {env}")


def to_raise(error: BaseException, env: int, verb: str) -> BaseException:
    """Return the exception to raise for an error in a step: a public error of Shoal or the env's own."""
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
    """Mark this process as a worker."""
    global _in_worker
    _in_worker = True


def would_end(error: BaseException) -> bool:
    """Return whether an exception comes from an env and is no `Exception`: it would end this process.

    Ctrl-C and exceptions of signal handlers are not errors of the env, even if they arrive while an env runs.
    Workers ignore Ctrl-C, so in a worker a KeyboardInterrupt comes from the env.
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
    if function is None:  # a callable object
        function = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is asked for
    return getattr(function, "__code__", None)


def stand_in(error: BaseException, source: str, verb: str = "", env_ids: Sequence[int] = ()) -> EnvError:
    """Make the error that replaces an exception which would end a process; the exception is its cause.

    Args:
        error: The exception.
        source: The code that raised the exception, for the message: "env 3", for example.
        verb: The method that was called, if known.
        env_ids: The envs that the error concerns.
    """
    did, remedy = f"raised {summary_of(error)}", ""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else _shown(error.code)
        did, remedy = f"called sys.exit({code})", ". Let the env raise an exception instead"
    where = f" in {verb}()" if verb else ""
    public = EnvError(f"{source} {did}{where}{remedy}", env_ids)
    public.__cause__ = error
    return public


class Guard:
    """Replace exceptions of an env that would end this process: ``with Guard("env 3", "render"): ...``.

    Args:
        source: The code that runs inside, for the message: "env 3", for example.
        verb: The method that is called, if it has a name.
        env_ids: The envs that the error concerns.
    """

    def __init__(self, source: str, verb: str = "", env_ids: Sequence[int] = ()) -> None:
        self._known = source, verb, env_ids

    def __enter__(self) -> None:
        """Enter the env's code."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Leave the env's code.

        Raises:
            EnvError: If the env raised an exception that would end this process.
        """
        if error is not None and would_end(error):
            raise stand_in(error, *self._known)


def summary_of(error: BaseException) -> str:
    """Describe an exception in one line, also if its own `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except BaseException:
        return type(error).__name__


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except BaseException:
        return f"<{type(value).__name__}>"
