"""A warning for observations that lie outside their space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.fields import Columns, Kind, where
from shoal.layout import Layout
from shoal.vector._warning import warn_caller


def warn_if_outside(
    layout: Layout, columns: Columns, rows: NDArray[np.bool_], env_ids: NDArray[np.int64], verb: str
) -> bool:
    """Warn of the first of these rows that lies outside its space. The values are left as they are.

    Returns:
        Whether there was one.
    """
    for index, field in enumerate(layout.fields):
        if field.kind is Kind.OBJECT or field.size == 0:
            continue
        column, (low, high) = columns[index], field.bounds()
        # Asked this way, NaN is outside as well.
        outside = ~((column >= low) & (column <= high)).reshape(len(rows), -1).all(1)
        outside &= layout.counts(index, columns) & rows
        if outside.any():
            env = int(env_ids[outside.argmax()])
            warn_caller(
                f"{where(field.path, 'observation')} of env {env}, from {verb}(), is outside its space "
                f"{field.space}. Values are passed on as they are."
            )
            return True
    return False
