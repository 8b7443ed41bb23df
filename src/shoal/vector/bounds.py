"""Bounds: warn if observations are outside their space."""

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
    """Warn about the first row whose observation is outside its space. Leave the values unchanged.

    Args:
        layout: The layout of the observations.
        columns: The columns of the observations.
        rows: Which rows to check.
        env_ids: The env of each row.
        verb: The verb that returned the observations, for the message.

    Returns:
        Whether an observation is outside.
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
            # This form counts NaN as outside.
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
    """Return whether a space does not contain a value. If `contains` raises, the answer is False."""
    try:
        with Guard("a space", "contains"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's spaces warn about values that they cast
            return not space.contains(value)
    except Exception:
        return False
