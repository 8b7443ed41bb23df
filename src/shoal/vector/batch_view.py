"""BatchView: the rows of a batch, with the observations for the caller and the actions from the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal._core import Transitions
from shoal.batch import Batch
from shoal.rows.actions import ActionWriter
from shoal.rows.arena import Arena, copier
from shoal.rows.fields import Kind, Leaf
from shoal.rows.layout import Layout
from shoal.vector.bounds import warn_if_outside


class BatchView:
    """The rows of a batch.

    Args:
        arena: The rows, in the order of the batch.
        observation: The layout of the observations.
        action: The layout of the actions.
        agents: The number of rows of an env.
        flat: Whether observations and actions are flat.
        copy: Whether observations are copied, so that the caller may keep them.

    Attributes:
        arena: The rows: a slice of the vec's arena, or an arena of copies.
        mask: Which rows need an action.
        agents: The number of rows of an env.
        blocks: The blocks of these rows, in the same order.
        env_ids: The env of each row.
        agent_ids: The agent of each row.
        where: The place of these rows in the vec's arena: a slice, or an array if this view holds copies.
        observe: A function that returns the observations in the form that the caller asked for.
        transitions: The object that copies rewards and flags, and counts and times steps.
        actions: The object that checks actions and writes them into the rows.
    """

    def __init__(
        self, arena: Arena, observation: Layout, action: Layout, agents: int, *, flat: bool, copy: bool
    ) -> None:
        self.arena, self.mask, self.agents = arena, arena.mask, agents
        self.observe = _observer(observation, arena, flat=flat, copy=copy)
        self.transitions = Transitions(arena)
        self.actions = ActionWriter(action, arena, agents, flat=flat)
        self._observation, self._action, self._flat, self._copy = observation, action, flat, copy
        self._columns = observation.columns(arena.observations, arena.observation_objects)
        self.blocks: list[int] = []
        self.env_ids, self.agent_ids = np.divmod(np.arange(len(arena)), agents)
        self.where: slice | NDArray[np.int64] = slice(None)

    def like(self, arena: Arena) -> BatchView:
        """Make a view of other rows with the same layouts and options."""
        made = BatchView(
            arena, self._observation, self._action, self.agents, flat=self._flat, copy=self._copy
        )
        made.actions.dumps = self.actions.dumps
        return made

    def allocate(self, num_rows: int) -> Arena:
        """Allocate an arena for copies of rows."""
        return Arena.allocate(num_rows, self._observation, self._action)

    def show(self, blocks: Sequence[int], env_ids: NDArray[np.int64]) -> None:
        """Point this view at the rows of `blocks`."""
        self.blocks = list(blocks)
        self.env_ids = self.actions.env_ids = env_ids

    def warn_if_outside(self, verb: str) -> bool:
        """Warn if an observation that `verb` returned is outside its space; return whether it warned."""
        return warn_if_outside(self._observation, self._columns, self.mask, self.env_ids, verb)

    def batch(
        self,
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> Batch:
        """Make the batch of these rows. Observations are views if the vec has ``copy=False``."""
        return Batch(
            self.observe(),
            rewards,
            terminations,
            truncations,
            self.mask.copy(),
            self.arena.resets.copy(),
            self.env_ids.copy(),
            self.agent_ids.copy(),
            infos,
        )


def _observer(layout: Layout, arena: Arena, *, flat: bool, copy: bool) -> Callable[[], Any]:
    """Make a function that returns the current observations of all rows."""
    root, columns = layout.root, layout.columns(arena.observations, arena.observation_objects)
    plain = {field.kind for field in layout.fields} <= {Kind.ARRAY, Kind.SCALAR}
    if flat or (plain and isinstance(root, Leaf)):
        view = layout.flat(arena.observations) if flat else columns[0]
        return copier(view) if copy else lambda: view
    if copy:
        # Each field is copied by itself, so that each array that the caller keeps is contiguous.
        copiers = [copier(column) for column in columns]
        return lambda: root.values([copied() for copied in copiers])
    if not plain:
        return lambda: root.values(columns)
    views = root.values(columns)
    return lambda: _copy_containers(views)


def _copy_containers(views: Any) -> Any:
    """Put the same views into new dicts and tuples, which the caller may change."""
    if type(views) is dict:
        return {key: _copy_containers(view) for key, view in views.items()}
    return tuple(map(_copy_containers, views)) if type(views) is tuple else views
