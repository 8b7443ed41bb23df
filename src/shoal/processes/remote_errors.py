"""Exceptions across a process border: the same type, with the worker's traceback as its cause."""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from typing import Any, NamedTuple

from shoal.errors import EnvError
from shoal.processes.messages import dumps
from shoal.stepping.env_faults import Guard, summary_of


class WorkerTraceback(Exception):
    """The traceback of an exception in the worker where it was raised."""

    def __str__(self) -> str:
        """As Python printed it there."""
        return f'in a worker:\n"""\n{self.args[0]}"""'


class Failure(NamedTuple):
    """An exception on its way to the parent."""

    pickled: bytes | None
    summary: str
    notes: list[str]
    traceback: str
    cause: bytes | None = None  # what the error stands for, if that would have ended a process


def pack_error(error: Exception) -> Failure:
    """What can be said of an exception to another process: never fails, and never loses its text."""
    notes: list[str] = []
    with suppress(BaseException):
        notes = [str(note) for note in getattr(error, "__notes__", None) or []]
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # an exception can be as odd as it likes
        text = "".join(traceback.format_tb(error.__traceback__))
    cause = error.__cause__
    stands_for = None if cause is None or isinstance(cause, Exception) else _pickled(cause)
    return Failure(_pickled(error), summary_of(error), notes, text, stands_for)


def unpack_error(failure: Failure) -> Exception:
    """The exception again, or an `EnvError` that stands for it if its type cannot be known here."""
    unpickled = _unpickled(failure.pickled)
    error: Exception
    if isinstance(unpickled, Exception):
        error = unpickled
    else:
        error = EnvError(f"an env raised {failure.summary}")
        for note in failure.notes:
            error.add_note(note)
    error.__cause__ = WorkerTraceback(failure.traceback)
    cause = _unpickled(failure.cause)
    if isinstance(cause, BaseException):
        cause.__cause__, error.__cause__ = error.__cause__, cause
    return error


def _unpickled(pickled: bytes | None) -> Any:
    """What a worker pickled, or None if it is of a type that cannot be unpickled here."""
    if pickled is None:
        return None
    try:
        with Guard("an env", "__reduce__"):
            return pickle.loads(pickled)
    except Exception:
        return None


def _pickled(error: BaseException) -> bytes | None:
    # An exception pickles as its type and args. That fails on dumping if an attribute cannot be pickled, and
    # fails on loading, or gives another text, if __init__ takes others than it passed on: then it is made
    # without __init__, of what is left of it.
    for attempt in (dumps, _without_init):
        with suppress(BaseException):
            pickled = attempt(error)
            same: Any = pickle.loads(pickled)
            if type(same) is type(error) and (attempt is _without_init or str(same) == str(error)):
                return pickled
    return None


def _without_init(error: BaseException) -> bytes:
    args = [arg if _can_be_pickled(arg) else repr(arg) for arg in error.args]
    state = {name: value for name, value in vars(error).items() if _can_be_pickled(value)}
    return dumps(_Rebuilt(type(error), tuple(args), state))


class _Rebuilt:
    """Unpickles as an exception of the given type."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return _rebuild, self._parts


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:
        return False
    return True
