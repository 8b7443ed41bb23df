"""Entries for rows and entries for agents, inside whatever arrays are nested in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def every(rows: Any, first: int, step: int) -> Any:
    """Every `step`-th entry, as views."""
    if isinstance(rows, Mapping):
        return {key: every(part, first, step) for key, part in rows.items()}
    if type(rows) is tuple and not _are_rows(rows):
        return tuple(every(part, first, step) for part in rows)
    return rows[first::step]


def interleaved(parts: Sequence[Any]) -> Any:
    """The first entry of each, then the second of each, and so on."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: interleaved([part[key] for part in parts]) for key in first}
    if type(first) is not tuple:
        stacked = np.stack(parts, axis=1)
        return stacked.reshape(-1, *stacked.shape[2:])
    together = zip(*parts, strict=True)
    if _are_rows(first):
        return tuple(entry for entries in together for entry in entries)
    return tuple(map(interleaved, together))


def _are_rows(values: tuple[Any, ...]) -> bool:
    """Whether a tuple has an entry per row, as those of Text and OneOf have, and not the parts of a Tuple."""
    first = values[0] if values else ""
    choice = type(first) is tuple and len(first) == 2 and isinstance(first[0], (int, np.integer))
    return choice or np.isscalar(first)
