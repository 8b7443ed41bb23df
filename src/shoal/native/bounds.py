"""Bounds: the values that a caller may set for a parameter or a field of the state.

A kernel does not check either: an unexpected number may be used as an index, or as the end of a loop. So a
field of the state can be set only if the class declares bounds for it. A parameter is meant to be set. It may
have any value of its dtype, unless the class declares bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError, ArgumentTypeError, NativeError


@dataclass(frozen=True)
class Bounds:
    """The lowest and the highest value: numbers, or arrays of the field's shape."""

    low: NDArray[Any]
    high: NDArray[Any]

    def __str__(self) -> str:
        """Describe the bounds in one line."""
        if not self.low.ndim and not self.high.ndim:
            return f"from {self.low} to {self.high}"
        return f"within its bounds, which are from {self.low.min()} to {self.high.max()}"


def bounds_of(cls: str, declared: Any, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Bounds]:
    """Check the bounds that a class declares, and return them.

    Args:
        cls: The name of the class.
        declared: A pair (low, high) for each name.
        dtypes: The dtypes of all fields and parameters that can have bounds.

    Raises:
        NativeError: If a name is unknown, or its bounds are not valid.
    """
    if not isinstance(declared, Mapping):
        raise NativeError(f'{cls}.bounds: expected a dict, such as {{"place": (0, 9)}}, got {declared!r}')
    found = {}
    for name, pair in declared.items():
        if name not in dtypes:
            raise NativeError(
                f"{cls}.bounds[{name!r}]: expected a field of the state or a parameter: {', '.join(dtypes)}"
            )
        bounds = _bounds(pair, dtypes[name].shape)
        if bounds is None:
            raise NativeError(
                f"{cls}.bounds[{name!r}]: expected the lowest and the highest value, numbers or arrays of "
                f"shape {dtypes[name].shape}, got {pair!r}"
            )
        found[name] = bounds
    return found


def _bounds(pair: Any, shape: tuple[int, ...]) -> Bounds | None:
    try:
        low, high = pair
        bounds = Bounds(np.asarray(low), np.asarray(high))
        for each in (bounds.low, bounds.high):
            np.broadcast_to(each, shape)
            if each.dtype.kind not in "biuf":
                return None
        return bounds if (bounds.low <= bounds.high).all() else None
    except (TypeError, ValueError):  # not a pair, or the shapes do not match
        return None


def fitting(name: str, values: Any, dtype: np.dtype[Any], bounds: Bounds | None) -> NDArray[Any]:
    """Convert values to their dtype and check them.

    Raises:
        ArgumentTypeError: If the values have a dtype that cannot be cast.
        ArgumentError: If the dtype cannot hold a value, or a value is outside the bounds. NaN and inf are
            outside all bounds.
    """
    given = np.asarray(values)
    if not np.can_cast(given.dtype, dtype, "same_kind"):
        raise ArgumentTypeError(f"{name}: expected {dtype}, got {given.dtype}")
    with np.errstate(over="ignore"):
        cast = given.astype(dtype)
    # A float may lose digits, but a finite float must stay finite. Other values must stay equal.
    wrong = np.isfinite(cast) != np.isfinite(given) if dtype.kind == "f" else cast != given
    if wrong.any():
        raise ArgumentError(f"{name}: expected values that {dtype} can hold, got {given[wrong].flat[0]}")
    if bounds is not None:
        wrong = ~((bounds.low <= cast) & (cast <= bounds.high) & np.isfinite(cast))
        if wrong.any():
            raise ArgumentError(f"{name}: expected values {bounds}, got {cast[wrong].flat[0]}")
    return cast
