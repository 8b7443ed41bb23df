"""What a user passes as `env` and `autoreset_mode`, checked and in one form."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.emulation import Creator, is_env
from shoal.errors import ArgumentError, ArgumentTypeError


def creators_of(env: Any, num_envs: Any) -> list[Creator]:
    """One creator per env.

    Raises:
        ArgumentError: On an instance instead of a creator, or counts that do not fit.
    """
    if num_envs is not None and (not isinstance(num_envs, (int, np.integer)) or num_envs < 1):
        raise ArgumentError(f"num_envs: expected a positive integer, got {num_envs!r}")
    if callable(env) and not is_env(env):
        return [env] * (1 if num_envs is None else int(num_envs))
    creators = list(env) if isinstance(env, (list, tuple)) else [env]
    for creator in creators:
        if is_env(creator):
            raise ArgumentTypeError(
                f"env: expected something that makes envs, got one {type(creator).__name__} that is made "
                "already. Pass a class, or wrap it: lambda: make_my_env()."
            )
        if not callable(creator):
            hint = f": lambda: gymnasium.make({creator!r})" if isinstance(creator, str) else ""
            raise ArgumentTypeError(
                f"env: expected a creator or a list of creators, got {type(creator).__name__}{hint}"
            )
    if not creators:
        raise ArgumentError("env: expected at least one creator, got an empty list")
    if num_envs is not None and num_envs != len(creators):
        raise ArgumentError(
            f"num_envs: expected {len(creators)}, the length of the list of creators, got {num_envs}"
        )
    return creators


def autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    """The mode, given as itself or by its value.

    Raises:
        ArgumentError: If there is no such mode.
    """
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(m.value) for m in AutoresetMode)
        raise ArgumentError(f"autoreset_mode: expected one of {known}, got {mode!r}") from None
