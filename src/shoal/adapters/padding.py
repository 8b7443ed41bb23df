"""Agents with different spaces -> one common space that is large enough for all.

Observations are padded with zeros at the end of each axis. Actions are cut to the shape of the agent's own
space. A discrete action that the agent does not have is replaced by its first action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

from shoal.errors import SpaceError

Change = Callable[[Any], Any]


def common_space(spaces: Mapping[Any, Space[Any]], what: str) -> Space[Any]:
    """Return the smallest space that is large enough for all given spaces.

    Args:
        spaces: The space of each agent.
        what: The name of the spaces, for messages.

    Raises:
        SpaceError: If the spaces cannot be padded to a common one.
    """
    found = _common(list(spaces.values()))
    if found is None:
        each = "; ".join(f"{agent}: {space}" for agent, space in spaces.items())
        raise SpaceError(
            f"{what}: expected spaces that can be padded to one (of the same kind, dtype, keys and number of "
            f"axes), got {each}. Wrap the env so that its agents agree, or run one vec per kind of agent."
        )
    return found


def _common(spaces: Sequence[Space[Any]]) -> Space[Any] | None:
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if any(type(space) is not type(first) for space in spaces):
        return None
    if isinstance(first, Dict):
        if any(set(space.spaces) != set(first.spaces) for space in spaces):  # type: ignore[attr-defined]
            return None
        parts = {key: _common([space[key] for space in spaces]) for key in first}  # type: ignore[index]
        return None if None in parts.values() else Dict(parts)  # type: ignore[arg-type]
    if isinstance(first, Tuple):
        if any(len(space) != len(first) for space in spaces):  # type: ignore[arg-type]
            return None
        members = [_common(list(parts)) for parts in zip(*spaces, strict=True)]
        return None if None in members else Tuple(members)  # type: ignore[arg-type]
    return _common_leaf(spaces)


def _common_leaf(spaces: Sequence[Any]) -> Space[Any] | None:
    first: Any = spaces[0]
    if not isinstance(first, (Box, Discrete, MultiDiscrete, MultiBinary)):
        return None
    if any(space.dtype != first.dtype or len(space.shape) != len(first.shape or ()) for space in spaces):
        return None
    shape = tuple(np.max([space.shape for space in spaces], axis=0).tolist())
    if isinstance(first, Box):
        low = np.minimum.reduce([_padded(space.low, shape) for space in spaces])
        high = np.maximum.reduce([_padded(space.high, shape) for space in spaces])
        return Box(low, high, shape, first.dtype.type)
    if isinstance(first, Discrete) and all(space.start == first.start for space in spaces):
        return Discrete(max(int(space.n) for space in spaces), start=int(first.start))
    if isinstance(first, MultiDiscrete) and not any(np.any(space.start) for space in spaces):
        return MultiDiscrete(
            np.maximum.reduce([_padded(space.nvec, shape) for space in spaces]), dtype=first.dtype.type
        )
    return MultiBinary(shape) if isinstance(first, MultiBinary) else None


def padder(own: Space[Any], common: Space[Any]) -> Change | None:
    """Return a function that pads a value of an agent's own space; None if it needs no padding."""
    if own == common or isinstance(own, Discrete):
        return None
    if isinstance(own, (Dict, Tuple)):
        return _per_part(own, common, padder)
    expected, shape = own.shape, common.shape
    assert shape is not None

    def pad(value: Any) -> Any:
        array = np.asarray(value)
        # A value that does not fit stays as it is: the packer raises the error.
        return _padded(array, shape) if array.shape == expected else value

    return pad


def cutter(own: Space[Any], common: Space[Any]) -> Change | None:
    """Return a function that cuts a value of the common space to an agent's own; None if it fits already."""
    if own == common:
        return None
    if isinstance(own, (Dict, Tuple)):
        return _per_part(own, common, cutter)
    if isinstance(own, Discrete):
        first, last = own.start, own.start + own.n - 1
        return lambda action: action if action <= last else first
    part = tuple(slice(size) for size in own.shape or ())
    if isinstance(own, MultiDiscrete):
        nvec = own.nvec
        return lambda action: np.where(action[part] < nvec, action[part], 0)
    return lambda action: action[part]


def _per_part(own: Any, common: Any, change: Callable[[Any, Any], Change | None]) -> Change:
    keys: Any = list(own) if isinstance(own, Dict) else range(len(own))
    changes = {key: each for key in keys if (each := change(own[key], common[key])) is not None}

    def apply(value: Any) -> Any:
        parts = {key: changes[key](value[key]) if key in changes else value[key] for key in keys}
        # A key that the space does not declare stays: the packer warns about it.
        return {**value, **parts} if isinstance(own, Dict) else tuple(parts.values())

    return apply


def _padded(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    # An array with another number of axes stays as it is: the packer raises the error.
    if array.shape == shape or array.ndim != len(shape):
        return array
    out = np.zeros(shape, array.dtype)
    out[tuple(map(slice, array.shape))] = array
    return out
