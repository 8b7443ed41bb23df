"""Hand: some rows, with all that is needed to hand them to the caller and to take actions for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal._core import Transitions
from shoal.batch import Batch
from shoal.rows.actions import ActionWriter
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.vector.bounds import warn_if_outside
from shoal.vector.observer import observer


class Hand:
    """Some rows, as the caller gets and gives them.

    Args:
        arena: The rows, in the order of the caller's batch.
        observation: Layout of the observations.
        action: Layout of the actions.
        agents: Rows of an env.
        flat: Whether observations and actions are flat.
        copy: Whether observations are to be kept.

    Attributes:
        agents: Rows of an env.
        blocks: That the rows are of, in the same order.
        env_ids: The env of each row.
        agent_ids: The agent of each row.
        observe: Returns the observations, as the caller wants them.
        transitions: Gives copies of what a step wrote beside them.
        actions: Takes actions.
        where: The rows in the arena of the vec; an array if they had to be gathered.
    """

    def __init__(
        self, arena: Arena, observation: Layout, action: Layout, agents: int, *, flat: bool, copy: bool
    ) -> None:
        self.arena = arena
        self.observe = observer(observation, arena, flat=flat, copy=copy)
        self.transitions = Transitions(arena)
        self.actions = ActionWriter(action, arena, agents, flat=flat)
        self.agents, self._observation, self._action = agents, observation, action
        self._flat, self._copy = flat, copy
        self._columns = observation.columns(arena.observations, arena.observation_objects)
        self.blocks: list[int] = []
        self.env_ids, self.agent_ids = np.divmod(np.arange(len(arena)), agents)
        self.where: slice | NDArray[np.int64] = slice(None)

    def like(self, arena: Arena) -> Hand:
        """The same for other rows."""
        made = Hand(arena, self._observation, self._action, self.agents, flat=self._flat, copy=self._copy)
        made.actions.dumps = self.actions.dumps
        return made

    def allocate(self, num_rows: int) -> Arena:
        """Rows like these, on the heap."""
        return Arena.allocate(num_rows, self._observation, self._action)

    def hold(self, blocks: Sequence[int], env_ids: NDArray[np.int64]) -> None:
        """Be the rows of these blocks from now on."""
        self.blocks = list(blocks)
        self.env_ids = self.actions.env_ids = env_ids

    def warn_if_outside(self, verb: str) -> bool:
        """Warn if an observation that a verb gave is outside its space; whether one is."""
        return warn_if_outside(self._observation, self._columns, self.arena.mask, self.env_ids, verb)

    def batch(
        self,
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> Batch:
        """All there is of the rows, to be kept (the observations only if `copy` says so)."""
        return Batch(
            self.observe(),
            rewards,
            terminations,
            truncations,
            self.arena.mask.copy(),
            self.arena.resets.copy(),
            self.env_ids.copy(),
            self.agent_ids.copy(),
            infos,
        )
