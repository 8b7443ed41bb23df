"""Spaces as JSON, so that a file can describe a space without a pickle, which could run code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from shoal.errors import SpaceError
from shoal.rows.flat_actions import MixedBox


def space_to_json(space: Space[Any]) -> dict[str, Any]:
    """Describe a space by dicts, lists, numbers and strings.

    A space of a derived class is described as its base class. Random streams are left out.

    Raises:
        SpaceError: If the space, or a part of it, has no layout of a fixed size.
    """
    for kind, (wanted, write, _) in KINDS.items():
        if isinstance(space, wanted):
            return {"kind": kind, **write(space)}
    raise SpaceError(f"expected a space that has a layout, got {space}")


def space_from_json(described: Any) -> Space[Any]:
    """Make the space that `space_to_json` described.

    Raises:
        KeyError, TypeError, ValueError, AssertionError: If `described` is anything else.
    """
    return KINDS[described["kind"]][2](described)


def _array(values: NDArray[Any]) -> dict[str, Any]:
    """Describe an array; if all values are equal, by one of them."""
    flat = values.reshape(-1).tolist()
    same = len(flat) > 0 and all(value == flat[0] for value in flat)
    shape = list(values.shape)
    return {"dtype": values.dtype.str, "shape": shape, "values": flat[:1] if same else flat}


def _array_from(described: Any) -> NDArray[Any]:
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    if dtype.kind not in "biuf":
        raise ValueError(f"expected numbers, got {dtype}")
    values = np.array(described["values"], dtype)
    return (np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)).astype(dtype)


def _box(space: spaces.Box) -> dict[str, Any]:
    return {"low": _array(space.low), "high": _array(space.high)}


def _box_from(described: Any) -> spaces.Box:
    low, high = _array_from(described["low"]), _array_from(described["high"])
    return spaces.Box(low, high, low.shape, low.dtype.type)


def _mixed_box_from(described: Any) -> MixedBox:
    low, high, whole = (_array_from(described[name]) for name in ("low", "high", "whole"))
    return MixedBox(low, high, whole)


def _discrete_from(described: Any) -> spaces.Discrete[Any]:
    dtype = np.dtype(described["dtype"])
    given = {} if dtype == np.int64 else {"dtype": dtype.type}  # old releases of Gymnasium have only int64
    return spaces.Discrete(described["n"], start=described["start"], **given)


def _multi_discrete_from(described: Any) -> spaces.MultiDiscrete:
    nvec, start = _array_from(described["nvec"]), _array_from(described["start"])
    return spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start)


def _text_from(described: Any) -> spaces.Text:
    least, most, charset = described["min_length"], described["max_length"], described["charset"]
    return spaces.Text(most, min_length=least, charset=charset)


# Kind: the class, the description of a space, and the way back. A derived class comes before its base class.
KINDS: dict[str, tuple[type[Space[Any]], Callable[[Any], dict[str, Any]], Callable[[Any], Space[Any]]]] = {
    "mixed box": (
        MixedBox,
        lambda space: {**_box(space), "whole": _array(space.whole)},
        _mixed_box_from,
    ),
    "box": (spaces.Box, _box, _box_from),
    "discrete": (
        spaces.Discrete,
        lambda space: {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.str},
        _discrete_from,
    ),
    "multi discrete": (
        spaces.MultiDiscrete,
        lambda space: {"nvec": _array(space.nvec), "start": _array(space.start)},
        _multi_discrete_from,
    ),
    "multi binary": (
        spaces.MultiBinary,
        lambda space: {"n": list(space.shape) if isinstance(space.n, tuple) else int(space.n)},
        lambda described: spaces.MultiBinary(described["n"]),
    ),
    "text": (
        spaces.Text,
        lambda space: {
            "min_length": space.min_length,
            "max_length": space.max_length,
            "charset": "".join(space.character_list),
        },
        _text_from,
    ),
    "dict": (
        spaces.Dict,
        lambda space: {"parts": [[key, space_to_json(part)] for key, part in space.spaces.items()]},
        lambda described: spaces.Dict([(key, space_from_json(part)) for key, part in described["parts"]]),
    ),
    "tuple": (
        spaces.Tuple,
        lambda space: {"parts": [space_to_json(part) for part in space.spaces]},
        lambda described: spaces.Tuple([space_from_json(part) for part in described["parts"]]),
    ),
    "one of": (
        spaces.OneOf,
        lambda space: {"parts": [space_to_json(part) for part in space.spaces]},
        lambda described: spaces.OneOf([space_from_json(part) for part in described["parts"]]),
    ),
}
