"""Options: check the arguments of a user (creators, mode, seeds, masks) and bring them into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.adapters.single import Creator, is_env
from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.vector.spaces import ObservationMode


@dataclass(frozen=True)
class VecOptions:
    """The options that every backend has; see `shoal.Serial` for their meaning."""

    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    flat: bool = False
    copy: bool = True
    seed: int | None = None
    episode_stats: bool = False
    observation_mode: ObservationMode = "same"
    rows_as_envs: bool = False

    def __post_init__(self) -> None:
        """Accept an autoreset mode by its name or value too."""
        object.__setattr__(self, "autoreset_mode", autoreset(self.autoreset_mode))


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy. A bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def positive_integer(name: str, value: Any) -> int:
    """Return the value of an argument that must be a positive integer.

    Raises:
        ArgumentError: If the value is not a positive integer.
    """
    if not is_integer(value) or value < 1:
        raise ArgumentError(f"{name}: expected a positive integer, got {value!r}")
    return int(value)


def creators_of(env: Any, num_envs: Any) -> list[Creator]:
    """Return a list of creators, one per env.

    Args:
        env: One creator, or several.
        num_envs: How often to call the creator, if there is one.

    Raises:
        ArgumentError: If an env is passed instead of a creator, or if the counts do not fit.
    """
    if num_envs is not None:
        num_envs = positive_integer("num_envs", num_envs)
    if callable(env) and not is_env(env):
        return [env] * (1 if num_envs is None else num_envs)
    creators = list(env) if isinstance(env, Iterable) and not isinstance(env, (str, Mapping)) else [env]
    for creator in creators:
        if is_env(creator):
            raise ArgumentTypeError(
                f"env: expected something that makes envs, got one {type(creator).__name__} that is made "
                "already. Pass a class, or wrap it: lambda: make_my_env()."
            )
        if not callable(creator):
            hint = f". Names are for shoal.make({creator!r}, ...)" if isinstance(creator, str) else ""
            raise ArgumentTypeError(f"env: expected a creator or a list of creators, got {creator!r}{hint}")
    if not creators:
        raise ArgumentError("env: expected at least one creator, got an empty list")
    if num_envs is not None and num_envs != len(creators):
        raise ArgumentError(
            f"num_envs: expected {len(creators)}, the length of the list of creators, got {num_envs}"
        )
    return creators


def autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    """Return an autoreset mode, given as a member, by its value ("NextStep") or by its name ("NEXT_STEP").

    Raises:
        ArgumentError: If there is no such mode.
    """
    if isinstance(mode, str) and mode in AutoresetMode.__members__:
        return AutoresetMode[mode]
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(m.value) for m in AutoresetMode)
        raise ArgumentError(f"autoreset_mode: expected one of {known}, got {mode!r}") from None


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Return one seed per env: counted up from an integer, or the entries of a list.

    Raises:
        ArgumentError: If the seed is not an integer, a sequence of the right length or None.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    try:
        seeds = list(seed)
    except TypeError:
        kind = type(seed).__name__
        raise ArgumentTypeError(f"seed: expected an integer, a list or None, got {kind}") from None
    for each in seeds:
        if each is not None and not isinstance(each, (int, np.integer)):
            raise ArgumentTypeError(f"seed: expected integers, got {each!r}")
    if len(seeds) != num_envs:
        raise ArgumentError(f"seed: expected one for each of {num_envs} envs, got {len(seeds)}")
    return [None if each is None else int(each) for each in seeds]


def reset_mask_of(
    options: dict[str, Any] | None, num_envs: int, stride: int = 1
) -> tuple[NDArray[np.bool_], dict[str, Any] | None]:
    """Return which envs to reset, and the options for the envs. Leave `options` unchanged.

    Args:
        options: The options that the caller passed to `reset`.
        num_envs: The number of entries that the mask must have.
        stride: The number of neighbouring entries that belong to one env.

    Raises:
        ArgumentError: If the mask is not valid, or chooses only some agents of an env.
    """
    if not isinstance(options, Mapping) or "reset_mask" not in options:
        return np.ones(num_envs // stride, np.bool_), options
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        got = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ArgumentTypeError(f"reset_mask: expected a NumPy array of bool, got {got}")
    if mask.shape != (num_envs,):
        raise ArgumentError(f"reset_mask: expected shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ArgumentError("reset_mask: expected at least one True, got none")
    by_env = mask.reshape(-1, stride)
    split = by_env.any(1) != by_env.all(1)
    if split.any():
        raise ArgumentError(
            "reset_mask: agents of one env can only be reset together, got a mask that splits env "
            f"{int(split.argmax())}"
        )
    return by_env[:, 0].copy(), rest
