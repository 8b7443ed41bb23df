"""Send exceptions from a worker to the parent: the same type, with the worker's traceback as the cause."""

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
        """Return the traceback as Python formats it in the worker."""
        return f'in a worker:\n"""\n{self.args[0]}"""'


class Failure(NamedTuple):
    """An exception in a form that can be sent to another process.

    Attributes:
        pickled: The exception, or None if it cannot be pickled.
        summary: The type and the text of the exception.
        notes: The notes of the exception.
        traceback: The traceback as text.
        cause: The pickled exception that this one replaces, because it would have ended a process; or None.
    """

    pickled: bytes | None
    summary: str
    notes: list[str]
    traceback: str
    cause: bytes | None = None


def pack_error(error: Exception) -> Failure:
    """Convert an exception into a `Failure`. This always works, and keeps the text of the exception."""
    notes: list[str] = []
    with suppress(BaseException):
        notes = [str(note) for note in getattr(error, "__notes__", None) or []]
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # the methods of an exception may raise anything
        text = "".join(traceback.format_tb(error.__traceback__))
    cause = error.__cause__
    replaced = None if cause is None or isinstance(cause, Exception) else _pickled(cause)
    return Failure(_pickled(error), summary_of(error), notes, text, replaced)


def unpack_error(failure: Failure) -> Exception:
    """Return the exception, or an `EnvError` with its text if it cannot be unpickled here."""
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
    """Unpickle an exception of a worker; return None if that is not possible."""
    if pickled is None:
        return None
    try:
        with Guard("an env", "__reduce__"):
            return pickle.loads(pickled)
    except Exception:
        return None


def _pickled(error: BaseException) -> bytes | None:
    # Python pickles an exception as its type and args. Dumping fails if an attribute cannot be pickled.
    # Loading fails, or gives another text, if __init__ takes other arguments than it passes to its base
    # class. In both cases the exception is rebuilt without __init__, from the parts that can be pickled.
    for dump in (dumps, _dumps_without_init):
        with suppress(BaseException):
            pickled = dump(error)
            same: Any = pickle.loads(pickled)
            if type(same) is type(error) and (dump is _dumps_without_init or str(same) == str(error)):
                return pickled
    return None


def _dumps_without_init(error: BaseException) -> bytes:
    args = [arg if _can_be_pickled(arg) else repr(arg) for arg in error.args]
    state = {name: value for name, value in vars(error).items() if _can_be_pickled(value)}
    return dumps(_Rebuilt(type(error), tuple(args), state))


class _Rebuilt:
    """An object whose pickle loads as an exception of the given type, args and attributes."""

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
