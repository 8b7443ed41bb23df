"""Every error Shoal raises, under one root.

    ShoalError
    ├── SpaceError (TypeError)               a space that has no fixed layout
    ├── NativeError (TypeError)              an env class that cannot be compiled
    ├── SpaceMismatch (RuntimeError, ValueError)  the envs of one vec disagree about a space
    │   └── SpaceKindMismatch (TypeError)    ... about its very type
    ├── ArgumentError (ValueError)           an argument that cannot work
    │   ├── ArgumentTypeError (TypeError)    ... because of its type
    │   └── UnknownEnv (NameNotFound)        a name that no env has
    ├── EnvsElsewhere (AttributeError)       the envs themselves, where they are not in this process
    ├── MissingExtra (ImportError)           a package of an extra that is not installed
    ├── ObservationError (ValueError)        an env returned something its space does not allow
    │   ├── ObservationTypeError (TypeError) ... because of its type
    │   └── ObservationPartMissing (KeyError, IndexError)  ... because a part of it is missing
    ├── ActionError (ValueError)             actions that do not fit; nothing has moved
    │   ├── ActionTypeError (TypeError)      ... because of their type
    │   └── ActionPartMissing (KeyError, IndexError)  ... because a part of them is missing
    ├── EpisodeOver (AssertionError)         stepping a finished env under DISABLED autoreset
    ├── CallError (RuntimeError)             a verb out of turn
    │   ├── ResetNeeded                      after a failed step only a reset makes sense
    │   ├── WrongMode                        step() or reset() of an asynchronous vec
    │   ├── AlreadyPending                   a second send before its recv
    │   ├── NothingPending                   a recv with nothing under way
    │   └── Closed                           any verb after close()
    ├── WorkerError (RuntimeError)           something is wrong with a worker process
    │   ├── WorkerDied                       ... because it was killed, crashed or left
    │   ├── WorkerTimeout (TimeoutError)     ... because it has not answered in time
    │   └── EnvError                         what an env raised or gave that cannot be passed on as it is
    ├── OutOfResources (OSError)             the system has no process, thread, descriptor or memory left
    ├── Diverged (ArithmeticError)           a learner's loss is not a number any more
    ├── CoreNeeded (RuntimeError)            what was asked for needs the compiled core
    └── SnapshotError (TypeError)            an env that cannot be pickled, or a foreign snapshot

    RestartWarning (UserWarning)             a worker was replaced, with on_error="restart"

The second base in brackets is what Gymnasium's own vector envs raise in the same case, so code written
for them keeps working. An exception raised by an env is not replaced: it comes out as it went in, with
a note that names the env. Only what is no `Exception`, as ``sys.exit()`` raises it, would end the user's
process: an `EnvError` stands for it, with the original as its cause.
"""

from __future__ import annotations

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
    """Root of all errors that Shoal itself raises."""


class SpaceError(ShoalError, TypeError):
    """A space that cannot be laid out as bytes of a fixed size."""


class NativeError(ShoalError, TypeError):
    """A class of compiled envs that cannot work; the message shows the line."""


class SpaceMismatch(ShoalError, RuntimeError, ValueError):
    """The envs of one vec have different spaces."""


class SpaceKindMismatch(SpaceMismatch, TypeError):
    """The envs of one vec have spaces of different types."""


class ArgumentError(ShoalError, ValueError):
    """An argument with a value that cannot work."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of the wrong type."""


class UnknownEnv(ArgumentError, NameNotFound):
    """A name that no env has; the message suggests the nearest."""


class EnvsElsewhere(ShoalError, AttributeError):
    """The envs were asked for as objects, and they are none of this process."""


class MissingExtra(ShoalError, ImportError):
    """What was asked for needs a package that is not installed; the message says how to install it."""


class ObservationError(ShoalError, ValueError):
    """An env returned a value that its observation space does not allow."""


class ObservationTypeError(ObservationError, TypeError):
    """An env returned a value of a type that its observation space does not allow."""


class ObservationPartMissing(ObservationError, KeyError, IndexError):
    """An env returned a dict without a key, or a tuple of another length than its observation space has."""

    def __str__(self) -> str:
        """The message alone, not quoted as a KeyError's."""
        return str(self.args[0])


class ActionError(ShoalError, ValueError):
    """Actions of the wrong number, shape or value. No env has moved."""


class ActionTypeError(ActionError, TypeError):
    """Actions of the wrong type. No env has moved."""


class ActionPartMissing(ActionError, KeyError, IndexError):
    """A dict of actions without a key, or a tuple of another length. No env has moved."""

    def __str__(self) -> str:
        """The message alone, not quoted as a KeyError's."""
        return str(self.args[0])


class EpisodeOver(ShoalError, AssertionError):
    """A finished env was stepped under ``AutoresetMode.DISABLED``. No env has moved."""


class CallError(ShoalError, RuntimeError):
    """A verb was called when it makes no sense."""


class ResetNeeded(CallError, GymnasiumResetNeeded):
    """An env failed half-way through a step, so the rows are not of one moment any more."""


class WrongMode(CallError):
    """A verb of synchronous vecs, called on an asynchronous one."""


class AlreadyPending(CallError, AlreadyPendingCallError):
    """A step or reset is under way and has not been received; `name` says which."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class NothingPending(CallError, NoAsyncCallError):
    """There is nothing to receive; `name` says what was asked for."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class Closed(CallError, ClosedEnvironmentError):
    """The vec has been closed."""


class WorkerError(ShoalError, RuntimeError):
    """Something is wrong with a worker process.

    Attributes:
        env_ids: The envs that it runs, if they are known.
    """

    def __init__(self, message: str, env_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_ids = list(env_ids)

    def __reduce__(self) -> Any:
        """Pickle with all arguments: a vec may itself run in a worker."""
        return type(self), (self.args[0], self.env_ids), self.__dict__


class WorkerDied(WorkerError):
    """A worker was killed, crashed, or left.

    Attributes:
        env_ids: The envs that it ran.
        exit_code: As Python's `subprocess` has it: minus the signal, if it died of one; None if not known.
    """

    exit_code: int | None = None


class WorkerTimeout(WorkerError, TimeoutError):
    """A worker has not answered within the vec's `timeout`."""


class EnvError(WorkerError):
    """Stands for what an env raised or gave that cannot be passed on as it is.

    That is an exception or a value that cannot leave its worker, and an exception that would end the user's
    process: ``sys.exit()``, or any other that is no `Exception`. The original is its cause.
    """


class OutOfResources(ShoalError, OSError):
    """The system has no process, thread, descriptor or memory left; the message says what to do."""


class Diverged(ShoalError, ArithmeticError):
    """A learner's loss is not a number any more, and so are its weights."""


class CoreNeeded(ShoalError, RuntimeError):
    """This installation has no compiled core, and what was asked for does not exist without it."""


class SnapshotError(ShoalError, TypeError):
    """A snapshot that cannot be taken or does not fit."""


class RestartWarning(UserWarning):
    """A worker has been replaced by a new one; the message says what happened to it."""
