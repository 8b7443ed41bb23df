"""Split values for rows into values for agents, and join them again, inside dicts and tuples.

A tuple either has an entry for each row, as a batch of Text values has, or the parts of a Tuple space. Mostly
the type of its first entry shows which. Objects in rows may be tuples themselves, so for spaces with objects
the layout decides: `node` is the part of the layout that belongs to the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.rows.fields import Branch, Kind, Leaf, Node
from shoal.rows.layout import Layout


def find_root(rows: Any, *layouts: Layout) -> Node | None:
    """Return the root of the first layout that has objects and fits these values; None if there is none."""
    return next((each.root for each in layouts if each.num_objects and _is_batch_of(each.root, rows)), None)


def _is_batch_of(node: Node, rows: Any) -> bool:
    """Return whether these values have the structure of a batch of a layout."""
    if isinstance(node, Branch):
        parts: Any = None
        if node.is_dict and isinstance(rows, Mapping) and set(rows) == set(node.keys):
            parts = [rows[key] for key in node.keys]
        elif not node.is_dict and isinstance(rows, tuple) and len(rows) == len(node.keys):
            parts = rows
        return parts is not None and all(map(_is_batch_of, node.children, parts))
    is_array = isinstance(node, Leaf) and node.field.kind in (Kind.ARRAY, Kind.SCALAR)
    return isinstance(rows, (np.ndarray, list)) if is_array else isinstance(rows, (tuple, list))


def take_agent(rows: Any, agent: int, num_agents: int, node: Node | None = None) -> Any:
    """Return the values of one agent, by its index, as views of the values of all rows."""
    if isinstance(rows, Mapping):
        return {key: take_agent(part, agent, num_agents, _child(node, key)) for key, part in rows.items()}
    if type(rows) is tuple and not _are_rows(rows, node):
        return tuple(take_agent(part, agent, num_agents, _child(node, i)) for i, part in enumerate(rows))
    return rows[agent::num_agents]


def interleave(parts: Sequence[Any], node: Node | None = None) -> Any:
    """Join the values of all agents, one part per agent, so that the values of an env follow each other."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: interleave([part[key] for part in parts], _child(node, key)) for key in first}
    if type(first) is not tuple:
        stacked = np.stack(parts, axis=1)
        return stacked.reshape(-1, *stacked.shape[2:])
    together = zip(*parts, strict=True)
    if _are_rows(first, node):
        return tuple(entry for entries in together for entry in entries)
    return tuple(interleave(part, _child(node, index)) for index, part in enumerate(together))


def _child(node: Node | None, key: Any) -> Node | None:
    """Return the part of a layout with this key or index; None if there is none."""
    return node.children[node.keys.index(key)] if isinstance(node, Branch) else None


def _are_rows(values: tuple[Any, ...], node: Node | None) -> bool:
    """Return whether a tuple has an entry per row, as for Text and OneOf, and not the parts of a Tuple."""
    if node is not None:
        return not isinstance(node, Branch)
    first = values[0] if values else ""
    choice = type(first) is tuple and len(first) == 2 and isinstance(first[0], (int, np.integer))
    return choice or np.isscalar(first)
