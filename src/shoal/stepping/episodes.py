"""The rules of episodes: the value that each column of the arena gets when something happens to a row.

A row acts in a step if its `mask` was set before the step. In the table, `r` is the reward and `t`, `u` are
the flags that the env gives the row in the step; the row ends if `t` or `u` is set. "+ r" and "+ 1" are added
to the row's total. Before each step and each reset, the totals of rows that ended in the last step become 0.

    event                               rewards  terminations  mask       resets  starts   episode_  episode_
                                                 truncations                               returns   lengths
    ----------------------------------  -------  ------------  ---------  ------  -------  --------  --------
    step, the row
      acts                              r        t, u          the env's  False   if ends  + r       + 1
      waits, has acted in its episode   r        t, u          the env's  False   if ends  + r       same
      waits, has not acted yet          r        t, u          the env's  True    True     + r       same
      ended earlier, other agents act   0        False         the env's  True    True     0         0
    reset by the vec
      NEXT_STEP                         0        False         the env's  True    True     0         0
      SAME_STEP, at the end of a step   same     same          the env's  same    True     same      same
    reset by the caller, the row is
      chosen                            0        False         the env's  True    True     0         0
      not chosen                        0        False         same       True    same     same      same

- An env with one row leaves its `mask` set. An env with several agents may clear the `mask` of an agent that
  is to wait, and set it again later. If a row ends, its `mask` is cleared. An env may set the `mask` of an
  agent that has ended: the agent then begins a new episode.
- The episode of an env is over when no row of the env has its `mask` set. Under NEXT_STEP the next step
  resets the env, under SAME_STEP the same step, under DISABLED the caller. Until that reset, `starts` has no
  meaning.
- A row to which the env gave no flag is truncated when the episode is over, if the agent took part in the
  episode: it has acted, or the sum of its rewards is not 0. An agent that ended earlier is not truncated.
- Rewards and flags that the env writes for an agent that ended earlier are dropped, also in the step in which
  the env sets the agent's `mask` again.

`Episodes` executes these rules. For speed, `core/include/shoal/stepping/step_loop.hpp` (Python envs with
one agent) and `native/bodies.py` (compiled envs) have code of their own. `tests/stepping/test_episodes.py`
compares all of them with `Episodes`, column by column.
"""

from __future__ import annotations

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.rows.arena import Arena

Flags = NDArray[np.bool_]


class Episodes:
    """Apply the rules of episodes to the columns of an arena.

    In each step, call `begin_step`, let the envs write their rows, then call `end_step`. Before the vec
    resets an env, call `restart` for its rows. Before the caller resets envs, call `reset`.

    Args:
        arena: The rows.
        mode: When the vec resets an env whose episode is over.
        agents: Number of rows per env.

    Attributes:
        ended: Rows whose agent has ended in an episode that other agents of the env go on with.
    """

    def __init__(self, arena: Arena, mode: AutoresetMode, agents: int = 1) -> None:
        self._arena, self._mode, self._agents = arena, mode, agents
        self.ended: Flags = np.zeros(len(arena), np.bool_)

    def reset(self, rows: Flags) -> None:
        """Prepare all rows for a reset of the chosen `rows` by the caller."""
        arena = self._arena
        # No row carries a transition after a reset, so no transition is counted twice.
        clear_step(arena)
        arena.episode_returns[rows] = 0.0
        arena.episode_lengths[rows] = 0
        arena.resets[:] = True
        self.restart(rows)

    def restart(self, rows: Flags | slice) -> None:
        """Prepare `rows` for the next episode of their envs."""
        self._arena.mask[rows] = True
        self._arena.starts[rows] = True
        self.ended[rows] = False

    def begin_step(self) -> Flags:
        """Clear what the last step wrote; return the rows that act in this step."""
        clear_step(self._arena)
        return self._arena.mask.copy()

    def end_step(self, acting: Flags) -> Flags:
        """Complete the columns after all envs have written their rows.

        Args:
            acting: The rows that acted, as `begin_step` returned them.

        Returns:
            For each env, whether its episode is over.
        """
        arena, starts = self._arena, self._arena.starts
        if self._agents > 1:
            self._drop_writes_for_ended(acting)
        done = arena.terminations | arena.truncations
        arena.mask[done] = False
        over = ~self.any_row(arena.mask)
        if self._agents > 1:
            if over.any():
                cut = np.repeat(over, self._agents) & ~done & self.took_part(acting)
                arena.truncations[cut] = True
            self.ended |= done
        np.add(arena.episode_returns, arena.rewards, out=arena.episode_returns)
        np.add(arena.episode_lengths, acting, out=arena.episode_lengths)
        # A waiting row that has acted in its episode carries a transition: its last action earned the reward.
        np.logical_and(starts, ~acting, out=arena.resets)
        np.logical_or(arena.resets, done, out=starts)
        return over

    def end_step_of_single_rows(self, acting: Flags) -> None:
        """Complete the columns of envs with one row each that have also done the resets of their mode."""
        # Under NEXT_STEP, a row that did not act has been reset.
        self._arena.mask[:] = True
        over = self.end_step(acting)
        if self._mode is AutoresetMode.SAME_STEP:
            self.restart(over)

    def any_row(self, rows: Flags) -> Flags:
        """Return for each env whether any of its rows is set in `rows`."""
        return rows if self._agents == 1 else np.logical_or.reduce(rows.reshape(-1, self._agents), 1)

    def took_part(self, acting: Flags) -> Flags:
        """Return the rows that have acted or earned a reward in their episode and did not end earlier."""
        arena = self._arena
        earned: Flags = arena.episode_returns + arena.rewards != 0
        return acting | ((~arena.starts | earned) & ~self.ended)

    def _drop_writes_for_ended(self, acting: Flags) -> None:
        self.ended &= ~acting  # an agent that acts again has begun an episode
        if self.ended.any():
            self._arena.rewards[self.ended] = 0.0
            self._arena.terminations[self.ended] = False
            self._arena.truncations[self.ended] = False


def clear_step(arena: Arena) -> None:
    """Clear rewards and flags of the last step, and the totals of the episodes that it ended."""
    ended = arena.terminations | arena.truncations
    if ended.any():
        arena.episode_returns[ended] = 0.0
        arena.episode_lengths[ended] = 0
        arena.terminations[:] = False
        arena.truncations[:] = False
    arena.rewards[:] = 0.0
