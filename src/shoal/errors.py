"""All errors that Shoal raises, in one tree.

    ShoalError
    ├── SpaceError (TypeError)               a space that has no fixed layout
    ├── NativeError (TypeError)              an env class that cannot be compiled
    ├── SpaceMismatch (RuntimeError, ValueError)  the envs of one vec disagree about a space
    │   └── SpaceKindMismatch (TypeError)    ... about its type
    ├── ArgumentError (ValueError)           an argument that cannot work
    │   ├── ArgumentTypeError (TypeError)    ... because of its type
    │   ├── UnknownEnv (NameNotFound)        a name that no env has
    │   └── RunError                         a run's folder that is missing, damaged or in use
    ├── EnvsElsewhere (AttributeError)       env objects were asked for that are in other processes
    ├── MissingExtra (ImportError)           a package of an extra that is not installed
    ├── ObservationError (ValueError)        an env returned a value that its space does not allow
    │   ├── ObservationTypeError (TypeError) ... because of its type
    │   └── ObservationPartMissing (KeyError, IndexError)  ... because a part of it is missing
    ├── ActionError (ValueError)             actions that do not fit; no env has moved
    │   ├── ActionTypeError (TypeError)      ... because of their type
    │   └── ActionPartMissing (KeyError, IndexError)  ... because a part of them is missing
    ├── EpisodeOver (AssertionError)         a step of a finished env with DISABLED autoreset
    ├── CallError (RuntimeError)             a method was called at the wrong time
    │   ├── ResetNeeded                      after a failed step only a reset is possible
    │   ├── WrongMode                        step() or reset() of an asynchronous vec
    │   ├── AlreadyPending                   a second send before its recv
    │   ├── NothingPending                   a recv with nothing pending
    │   └── Closed                           any method after close()
    ├── WorkerError (RuntimeError)           a worker process has failed
    │   ├── WorkerDied                       ... because it was killed, crashed or exited
    │   ├── WorkerTimeout (TimeoutError)     ... because it has not answered in time
    │   └── EnvError                         an exception or value of an env that cannot be passed on
    ├── OutOfResources (OSError)             the system has no process, thread, descriptor or memory left
    ├── Diverged (ArithmeticError)           a learner's loss has become NaN
    ├── CoreNeeded (RuntimeError)            a feature needs the compiled core
    └── SnapshotError (TypeError)            an env that cannot be pickled, or a foreign snapshot

    RestartWarning (UserWarning)             a worker was replaced, with on_error="restart"
    UndeclaredKeyWarning (UserWarning)       an observation has keys that its Dict space does not declare

The classes in brackets are second bases. Gymnasium's vector envs raise them in the same case, so code written
for Gymnasium keeps working. An exception that an env raises reaches the caller unchanged, with a note that
names the env. There is one exception: an error that is not an `Exception`, such as that of ``sys.exit()``,
would end the user's process. It is replaced by an `EnvError` with the original as its cause.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NameNotFound,
    NoAsyncCallError,
)
from gymnasium.error import ResetNeeded as GymnasiumResetNeeded


class ShoalError(Exception):
    """The base class of all errors that Shoal raises."""


class SpaceError(ShoalError, TypeError):
    """A space has no layout of a fixed number of bytes."""


class NativeError(ShoalError, TypeError):
    """A class of compiled envs cannot work; the message shows the line."""


class SpaceMismatch(ShoalError, RuntimeError, ValueError):
    """The envs of one vec have different spaces."""


class SpaceKindMismatch(SpaceMismatch, TypeError):
    """The envs of one vec have spaces of different types."""


class ArgumentError(ShoalError, ValueError):
    """An argument has a value that cannot work."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type."""


class UnknownEnv(ArgumentError, NameNotFound):
    """No env has this name; the message suggests similar names."""


class RunError(ArgumentError):
    """A run's folder, or a file in it, is missing, damaged or in use; the message names the file."""


class EnvsElsewhere(ShoalError, AttributeError):
    """Env objects were asked for, but the envs are not in this process."""


class MissingExtra(ShoalError, ImportError):
    """A feature needs a package that is not installed; the message says how to install it."""


class ObservationError(ShoalError, ValueError):
    """An env returned a value that its observation space does not allow."""


class ObservationTypeError(ObservationError, TypeError):
    """An env returned a value of a type that its observation space does not allow."""


class ObservationPartMissing(ObservationError, KeyError, IndexError):
    """An env returned a dict that lacks a key, or a tuple of a wrong length."""

    def __str__(self) -> str:
        """Return the message without the quotes that KeyError adds."""
        return str(self.args[0])


class ActionError(ShoalError, ValueError):
    """Actions have a wrong number, shape or value. No env has moved."""


class ActionTypeError(ActionError, TypeError):
    """Actions have the wrong type. No env has moved."""


class ActionPartMissing(ActionError, KeyError, IndexError):
    """A dict of actions lacks a key, or a tuple has a wrong length. No env has moved."""

    def __str__(self) -> str:
        """Return the message without the quotes that KeyError adds."""
        return str(self.args[0])


class EpisodeOver(ShoalError, AssertionError):
    """A finished env was stepped with ``AutoresetMode.DISABLED``. No env has moved."""


class CallError(ShoalError, RuntimeError):
    """A method was called at the wrong time."""


class ResetNeeded(CallError, GymnasiumResetNeeded):
    """An env failed during a step, so the rows do not belong to the same step. Only a reset is possible."""


class WrongMode(CallError):
    """A method of synchronous vecs was called on an asynchronous vec."""


class AlreadyPending(CallError, AlreadyPendingCallError):
    """A step or reset is pending and has not been received; `name` says which."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        """Return only the message."""
        return str(self.args[0])


class NothingPending(CallError, NoAsyncCallError):
    """No step or reset is pending; `name` is the method that was called."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        """Return only the message."""
        return str(self.args[0])


class Closed(CallError, ClosedEnvironmentError):
    """The vec has been closed."""


class WorkerError(ShoalError, RuntimeError):
    """A worker process has failed.

    Attributes:
        env_ids: The envs that the worker runs, if they are known.
    """

    def __init__(self, message: str, env_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_ids = list(env_ids)

    def __reduce__(self) -> Any:
        """Pickle with all arguments, because a vec may itself run in a worker."""
        return type(self), (self.args[0], self.env_ids), self.__dict__


class WorkerDied(WorkerError):
    """A worker was killed, crashed, or exited.

    Attributes:
        env_ids: The envs that the worker ran.
        exit_code: The exit code, as in `subprocess`: minus the signal if a signal killed it; None if not
            known.
    """

    exit_code: int | None = None


class WorkerTimeout(WorkerError, TimeoutError, multiprocessing.TimeoutError):
    """A worker has not answered within the vec's `timeout`.

    It is also the `multiprocessing.TimeoutError` that Gymnasium's AsyncVectorEnv raises.
    """


class EnvError(WorkerError):
    """Replaces an exception or value of an env that cannot be passed on unchanged.

    There are two cases: an exception or value that cannot leave its worker, and an exception that would end
    the user's process, because it is not an `Exception` (``sys.exit()``). The original is its cause.
    """


class OutOfResources(ShoalError, OSError):
    """The system has no process, thread, descriptor or memory left; the message says what to do."""


class Diverged(ShoalError, ArithmeticError):
    """A learner's loss has become NaN, and so have its weights."""


class CoreNeeded(ShoalError, RuntimeError):
    """A feature needs the compiled core, and this installation has none."""


class SnapshotError(ShoalError, TypeError):
    """A snapshot cannot be taken, or does not fit the vec."""


class RestartWarning(UserWarning):
    """A worker was replaced by a new one; the message says why."""


class UndeclaredKeyWarning(UserWarning):
    """An observation has keys that its Dict space does not declare. They are left out of the rows."""
