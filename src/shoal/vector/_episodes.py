"""The bookkeeping of episodes, for steppers that move whole arrays of rows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal._core.run import begin_episodes
from shoal.buffers import Arena


class Episodes:
    """Keeps `resets` and the episode totals of a run of rows.

    Attributes:
        starts: Rows whose next transition begins an episode. Their totals are cleared only then, so that
            those of a finished episode can be read until its successor's first transition.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.starts = np.ones(len(arena), np.bool_)

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """These rows have been reset by the caller."""
        self.starts |= rows
        begin_episodes(self._arena, rows)

    def settle(self, acting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A step has been written; `acting` rows took their action.

        Returns:
            The rows whose episode has just ended.
        """
        arena = self._arena
        begun = acting & self.starts
        arena.episode_returns[begun] = 0.0
        arena.episode_lengths[begun] = 0
        np.add(arena.episode_returns, arena.rewards, out=arena.episode_returns)
        np.add(arena.episode_lengths, acting, out=arena.episode_lengths)
        # A row that neither acts nor begins an episode waits: it has not been reset.
        np.logical_and(self.starts, ~acting, out=arena.resets)
        done: NDArray[np.bool_] = arena.terminations | arena.truncations
        self.starts ^= begun
        self.starts |= done
        return done
