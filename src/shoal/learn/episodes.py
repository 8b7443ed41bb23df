"""Returns and lengths of finished episodes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from shoal.batch import Batch


class Episodes:
    """Statistics of the episodes of all rows.

    Args:
        rows: Number of rows of the vec.
        recent: Number of episodes to keep for means.

    Attributes:
        returns: Returns of the last episodes.
        lengths: Lengths of the last episodes.
        count: Number of finished episodes.
    """

    def __init__(self, rows: int, recent: int = 100) -> None:
        self._return, self._length = np.zeros(rows), np.zeros(rows, np.int64)
        self.returns: deque[float] = deque(maxlen=recent)
        self.lengths: deque[int] = deque(maxlen=recent)
        self.count = 0

    def add(self, batch: Batch, rows: Any) -> None:
        """Add the rewards of a batch, and finish the episodes that end in it.

        Args:
            batch: Batch received.
            rows: Indices of the batch's rows in the vec.
        """
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
        """Average the returns of the last episodes; NaN if none has finished."""
        recent = list(self.returns)[-last:]
        return float(np.mean(recent)) if recent else float("nan")

    def mean_length(self) -> float:
        """Average the lengths of the last episodes; NaN if none has finished."""
        return float(np.mean(self.lengths)) if self.lengths else float("nan")

    def abandon(self) -> None:
        """Drop the unfinished episodes."""
        self._return[:], self._length[:] = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._return, self._length = state["return"].copy(), state["length"].copy()
        self.returns = deque(map(float, state["returns"]), self.returns.maxlen)
        self.lengths = deque(map(int, state["lengths"]), self.lengths.maxlen)
        self.count = int(state["count"])
