"""The bookkeeping of episodes, for steppers that move whole arrays of rows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.rows.arena import Arena
from shoal.stepping.row_slice import begin_episodes, clear_step


class Episodes:
    """Keeps `resets`, `starts` and the episode totals of a run of rows."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """These rows have been reset by the caller."""
        self._arena.starts[rows] = True
        begin_episodes(self._arena, rows)

    def clear(self) -> None:
        """Clear what the last step wrote: the next one is about to begin."""
        clear_step(self._arena)

    def settle(self, acting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A step has been written; `acting` rows took their action.

        Returns:
            The rows whose episode has just ended.
        """
        arena, starts = self._arena, self._arena.starts
        np.add(arena.episode_returns, arena.rewards, out=arena.episode_returns)
        np.add(arena.episode_lengths, acting, out=arena.episode_lengths)
        # A row that has acted in its episode and does not act now waits: it carries a transition.
        np.logical_and(starts, ~acting, out=arena.resets)
        done: NDArray[np.bool_] = arena.terminations | arena.truncations
        starts &= ~acting
        starts |= done
        return done
