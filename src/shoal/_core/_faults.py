"""What went wrong, and in which env: the words of the core's errors."""

from __future__ import annotations

from contextlib import suppress

from shoal.errors import ObservationError
from shoal.fields import Misfit, where


def observation_error(misfit: Misfit, env: int, verb: str) -> ObservationError:
    """The public error for a value that does not fit its row."""
    return misfit.public(
        f"{where(misfit.path, misfit.root or 'observation')}: {misfit.problem}, from {verb}() of env {env}."
        + ("" if misfit.root else f" Correct the env's observation_space or what its {verb}() returns.")
    )


def name_env(error: Exception, env: int, verb: str) -> None:
    """Note on an env's own exception where it came from; it stays what it is."""
    with suppress(Exception):  # an exception may refuse notes, a frozen dataclass say
        error.add_note(f"raised by {verb}() of env {env}")


def to_raise(error: Exception, env: int, verb: str) -> Exception:
    """What the caller is to see of an error in a step: ours in place of a misfit, else the env's own."""
    if not isinstance(error, Misfit):
        name_env(error, env, verb)
        return error
    public = observation_error(error, env, verb)
    public.__suppress_context__ = True
    return public
