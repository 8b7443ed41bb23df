"""Infos: merge the infos of rows into Gymnasium's dict of arrays, and split it again.

The values of a key in this batch decide which array the key gets:

- Numbers become an array of the smallest dtype that holds each of them exactly.
- Arrays of one shape are stacked.
- Dicts are merged key by key.
- Other values, and values of different kinds, become an object array that holds each value unchanged.

The array ``_key`` says which rows have the key. The other rows hold 0 or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS = {int, float, bool, np.int32, np.int64, np.float32, np.float64}


def merge_infos(pairs: Iterable[tuple[int, dict[str, Any]]], num_rows: int) -> dict[str, Any]:
    """Merge (row, info) pairs into one dict of arrays with ``num_rows`` entries."""
    found: dict[str, dict[int, Any]] = {}
    for row, info in pairs:
        for key, value in info.items():
            values = found.get(key)
            if values is None:
                values = found[key] = {}
            elif row in values and isinstance(value, dict) and isinstance(values[row], dict):
                value = {**values[row], **value}  # a step and the reset that followed it both gave the key
            values[row] = value
    merged: dict[str, Any] = {}
    for key, values in found.items():
        mask = np.ones(num_rows, np.bool_)
        if len(values) < num_rows:
            mask[:] = False
            mask[list(values)] = True
        # Callers read final_obs row by row, so it is never stacked.
        merged[key] = _objects(values, num_rows) if key == "final_obs" else _merge(values, num_rows)
        merged[f"_{key}"] = mask
    return merged


def _merge(values: dict[int, Any], num_rows: int) -> Any:
    """Merge the values of one key, by row, into an array or a dict of arrays."""
    kinds = set(map(type, values.values()))
    if len(kinds) == 1 and kinds <= _NUMBERS:  # the most common case, and always exact
        with suppress(OverflowError):  # an int beyond 64 bits
            (kind,) = kinds
            rows, numbers = list(values), list(values.values())
            if rows == list(range(num_rows)):
                return np.array(numbers, kind)
            array: NDArray[Any] = np.zeros(num_rows, kind)
            array[rows] = numbers
            return array
    if all(isinstance(value, dict) for value in values.values()):
        return merge_infos(values.items(), num_rows)
    dtype, shape = _common(values)
    if dtype is None:
        return _objects(values, num_rows)
    stacked = np.zeros((num_rows, *shape), dtype)
    for row, value in values.items():
        stacked[row] = value
    return stacked


def _common(values: dict[int, Any]) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return the dtype and shape that hold every value exactly; the dtype is None if there is none."""
    dtypes, shapes = set(), set()
    for value in values.values():
        if isinstance(value, np.ndarray):
            dtypes.add(value.dtype)
        elif type(value) in (int, float, bool) or isinstance(value, np.number):
            dtypes.add(np.dtype(type(value)))
        else:
            return None, ()
        shapes.add((np.ndarray, value.shape) if isinstance(value, np.ndarray) else ())
    if len(shapes) > 1:
        return None, ()
    try:
        dtype = np.result_type(*dtypes)
    except TypeError:
        return None, ()
    exact = all(_same_kind(each, dtype) for each in dtypes)
    shape = shapes.pop()
    if any(not _fits(value, dtype) for value in values.values()):
        return None, ()
    return (dtype, shape[1] if shape else ()) if exact else (None, ())


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether an integer, or every integer of an array, keeps its value in this dtype."""
    if dtype.kind != "f":
        return type(value) is not int or -(2**63) <= value < 2**63
    integers = type(value) is int or getattr(value, "dtype", dtype).kind in "iu"
    return not integers or bool(np.all(np.abs(np.asarray(value, object)) <= 2**53))


def _same_kind(each: np.dtype[Any], common: np.dtype[Any]) -> bool:
    """Return whether values of a dtype may be converted into the common one."""
    # A bool must not become a number, nor a large integer a float: that would change the env's value.
    if each == common:
        return True
    if each.kind == "b" or common.kind not in "iufc":
        return False
    return common.kind == each.kind or np.can_cast(each, common, "safe")


def _objects(values: dict[int, Any], num_rows: int) -> NDArray[Any]:
    """Return an object array that holds each value at its row, and None at other rows."""
    array = np.full(num_rows, None, dtype=object)
    for row, value in values.items():
        # Arrays are copied, because an env may reuse an array that it put into an info.
        array[row] = value.copy() if isinstance(value, np.ndarray) else value
    return array


def split_infos(infos: dict[str, Any], num_rows: int) -> list[tuple[int, dict[str, Any]]]:
    """Split a dict of arrays into (row, info) pairs, for rows that have an info: undo `merge_infos`."""
    rows: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key.startswith("_") and key[1:] in infos:
            continue
        if isinstance(values, dict):
            parts = dict(split_infos(values, num_rows))
            for row in range(num_rows) if mask is None else np.flatnonzero(mask):
                rows[row][key] = parts.get(int(row), {})
        elif isinstance(values, (np.ndarray, list, tuple)) and len(values) == num_rows:
            if isinstance(values, np.ndarray) and values.dtype == np.bool_ and values.ndim == 1:
                values = values.tolist()  # Python's own bools, which `merge_infos` merges as bools again
            for row in range(num_rows) if mask is None else np.flatnonzero(mask):
                rows[row][key] = values[row]
        else:  # an info about the whole vector env goes to its first row
            rows[0][key] = values
    return [(row, info) for row, info in enumerate(rows) if info]
