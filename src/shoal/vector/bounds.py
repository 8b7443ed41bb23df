"""A warning for observations that lie outside their space."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from shoal.caller_warning import warn_caller
from shoal.rows.fields import Columns, Kind, where
from shoal.rows.layout import Layout
from shoal.stepping.env_faults import Guard


def warn_if_outside(
    layout: Layout, columns: Columns, rows: NDArray[np.bool_], env_ids: NDArray[np.int64], verb: str
) -> bool:
    """Warn of the first of these rows that lies outside its space. The values are left as they are.

    Returns:
        Whether there was one.
    """
    for index, field in enumerate(layout.fields):
        counted = layout.counts(index, columns) & rows
        if field.kind is Kind.OBJECT:
            outside = np.zeros(len(rows), np.bool_)
            outside[counted] = [_is_outside(field.space, value) for value in columns[index][counted]]
        elif field.size == 0:
            continue
        else:
            column, (low, high) = columns[index], field.bounds()
            # Asked this way, NaN is outside as well.
            outside = ~((column >= low) & (column <= high)).reshape(len(rows), -1).all(1) & counted
        if outside.any():
            env = int(env_ids[outside.argmax()])
            warn_caller(
                f"{where(field.path, 'observation')} of env {env}, from {verb}(), is outside its space "
                f"{field.space}. Values are passed on as they are."
            )
            return True
    return False


def _is_outside(space: Space[Any], value: Any) -> bool:
    """Whether a space says that a value is none of its own. One that does not answer says nothing."""
    try:
        with Guard("a space", "contains"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's spaces warn of what they cast
            return not space.contains(value)
    except Exception:
        return False
