"""Priorities: numbers from which places are drawn in proportion to their size.

    values   [capacity]                  one number for each place
    sums     [capacity / 128], [/ 128²]  sums of 128 numbers of the level below, up to one level that is short

A draw walks down the levels. With 128 children for each sum, three levels hold two million places, and all
draws of a batch take a few operations on whole arrays. Sums are computed anew from their children, so they
never drift.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH = 128  # children of a sum
TOP = 256  # the largest length of the top level


class Priorities:
    """Non-negative numbers for places, at first 0.

    Args:
        capacity: Number of places.

    Attributes:
        values: The number of each place.
    """

    def __init__(self, capacity: int) -> None:
        self._levels = [np.zeros(_padded(capacity))]
        while len(self._levels[-1]) > TOP:
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // WIDTH)))
        self.values = self._levels[0][:capacity]

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._levels[-1].sum())

    def set(self, places: NDArray[np.int64], values: NDArray[np.float64] | float) -> None:
        """Set the numbers of places. Where a place is listed twice, the last number counts."""
        self._levels[0][places] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            places = np.unique(places // WIDTH)
            above[places] = below.reshape(-1, WIDTH)[places].sum(1)

    def fill(self, value: float) -> None:
        """Set the numbers of all places."""
        self.values[:] = value
        self.set(np.arange(len(self.values)), self.values)

    def draw(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw places: the one that a share of the total, from 0 to less than 1, falls into.

        A place whose number is 0 is never drawn.
        """
        top = self._levels[-1].cumsum()
        # Strictly below the total: a share that rounds up to it would fall behind the last place.
        left = np.minimum(shares * top[-1], np.nextafter(top[-1], 0))
        found: NDArray[np.int64] = np.searchsorted(top, left, "right")
        left -= top[found] - self._levels[-1][found]
        for level in reversed(self._levels[:-1]):
            sums = level.reshape(-1, WIDTH)[found].cumsum(1)
            # Sums in another order may differ in the last digit: stay below this one.
            left = np.clip(left, 0, np.nextafter(sums[:, -1], 0))
            child = (sums <= left[:, None]).sum(1)
            found = found * WIDTH + child
            left -= sums[np.arange(len(child)), child] - level[found]
        return found


def _padded(length: int) -> int:
    return -(-length // WIDTH) * WIDTH
