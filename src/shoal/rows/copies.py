"""Copies of the objects that rows hold: as `copy.deepcopy` makes them, but faster for common types."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance
from numpy.typing import NDArray

_FIXED = {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()} - {np.object_, np.void}
"""Types whose values cannot change."""


def copied(value: Any) -> Any:
    """Copy a value. The copy shares no mutable part with the value."""
    try:
        return _copied(value)
    except RecursionError:  # the value may contain itself; deepcopy can copy that
        return deepcopy(value)


def copied_column(column: NDArray[Any]) -> NDArray[Any]:
    """Copy an array of objects and each object in it."""
    copy = np.empty_like(column)
    for index, value in np.ndenumerate(column):
        copy[index] = copied(value)
    return copy


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return value.copy(order="K")
    if kind is tuple or kind is list:
        return kind([_copied(part) for part in value])
    if kind is GraphInstance:
        return GraphInstance(*[_copied(part) for part in value])
    if kind is dict:
        return {_copied(key): _copied(part) for key, part in value.items()}
    return deepcopy(value)
