"""Returns and lengths of the episodes that rows have finished."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from shoal.batch import Batch


class Episodes:
    """Adds up rewards row by row.

    Args:
        rows: Of the vec.
        recent: How many episodes the means are of.

    Attributes:
        returns: Of the last episodes.
        lengths: Theirs.
        count: Episodes finished so far.
    """

    def __init__(self, rows: int, recent: int = 100) -> None:
        self._return, self._length = np.zeros(rows), np.zeros(rows, np.int64)
        self.returns: deque[float] = deque(maxlen=recent)
        self.lengths: deque[int] = deque(maxlen=recent)
        self.count = 0

    def add(self, batch: Batch, rows: Any) -> None:
        """What came of the last actions of these rows."""
        self._return[rows] += batch.rewards
        self._length[rows] += ~batch.resets
        ends = batch.terminations | batch.truncations
        if ends.any():
            ended = np.arange(len(self._return))[rows][ends]
            self.returns.extend(self._return[ended].tolist())
            self.lengths.extend(self._length[ended].tolist())
            self.count += len(ended)
            self._return[ended], self._length[ended] = 0.0, 0

    def mean_return(self, last: int = 100) -> float:
        """Of the last episodes; not a number if none has ended."""
        recent = list(self.returns)[-last:]
        return float(np.mean(recent)) if recent else float("nan")

    def mean_length(self) -> float:
        """Likewise."""
        return float(np.mean(self.lengths)) if self.lengths else float("nan")

    def abandon(self) -> None:
        """Those under way will not be finished."""
        self._return[:], self._length[:] = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """All of it, to go on from."""
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._return, self._length = state["return"].copy(), state["length"].copy()
        self.returns = deque(state["returns"], self.returns.maxlen)
        self.lengths = deque(state["lengths"], self.lengths.maxlen)
        self.count = state["count"]
