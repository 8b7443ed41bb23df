"""Entries for rows and entries for agents, inside whatever arrays are nested in.

A tuple may have an entry for each row, as that of a Text has, or the parts of a Tuple space. Mostly the first
entry tells. Where rows hold objects, which may be tuples themselves, the layout tells: `node` is its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.rows.fields import Branch, Kind, Leaf, Node
from shoal.rows.layout import Layout


def structure_of(rows: Any, *layouts: Layout) -> Node | None:
    """The root of the first layout with objects that these values could be a batch of."""
    return next((each.root for each in layouts if each.num_objects and _is_batch_of(each.root, rows)), None)


def _is_batch_of(node: Node, rows: Any) -> bool:
    if isinstance(node, Branch):
        parts: Any = None
        if node.is_dict and isinstance(rows, Mapping) and set(rows) == set(node.keys):
            parts = [rows[key] for key in node.keys]
        elif not node.is_dict and isinstance(rows, tuple) and len(rows) == len(node.keys):
            parts = rows
        return parts is not None and all(map(_is_batch_of, node.children, parts))
    is_array = isinstance(node, Leaf) and node.field.kind in (Kind.ARRAY, Kind.SCALAR)
    return isinstance(rows, (np.ndarray, list)) if is_array else isinstance(rows, (tuple, list))


def every(rows: Any, first: int, step: int, node: Node | None = None) -> Any:
    """Every `step`-th entry, as views."""
    if isinstance(rows, Mapping):
        return {key: every(part, first, step, _child(node, key)) for key, part in rows.items()}
    if type(rows) is tuple and not _are_rows(rows, node):
        return tuple(every(part, first, step, _child(node, index)) for index, part in enumerate(rows))
    return rows[first::step]


def interleaved(parts: Sequence[Any], node: Node | None = None) -> Any:
    """The first entry of each, then the second of each, and so on."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: interleaved([part[key] for part in parts], _child(node, key)) for key in first}
    if type(first) is not tuple:
        stacked = np.stack(parts, axis=1)
        return stacked.reshape(-1, *stacked.shape[2:])
    together = zip(*parts, strict=True)
    if _are_rows(first, node):
        return tuple(entry for entries in together for entry in entries)
    return tuple(interleaved(part, _child(node, index)) for index, part in enumerate(together))


def _child(node: Node | None, key: Any) -> Node | None:
    return node.children[node.keys.index(key)] if isinstance(node, Branch) else None


def _are_rows(values: tuple[Any, ...], node: Node | None) -> bool:
    """Whether a tuple has an entry per row, as those of Text and OneOf have, and not the parts of a Tuple."""
    if node is not None:
        return not isinstance(node, Branch)
    first = values[0] if values else ""
    choice = type(first) is tuple and len(first) == 2 and isinstance(first[0], (int, np.integer))
    return choice or np.isscalar(first)
