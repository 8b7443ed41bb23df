"""Objects across a process border: the parts of rows that have no bytes travel in messages, as infos do.

    env.step -(copy)-> object rows of the worker -(message, with the infos)-> object rows of the parent
    actions -(copy)-> object rows of the parent -(message, with the call)--> object rows of the worker

Guarantees
  - Each process has object rows of its own. The parent writes those of a block when it reads the block's
    message. That is after the block's call and before its batch, when shared memory changes too.
  - A worker that fails or dies sends no objects, so the parent's are still those before the call.
  - Where no space needs objects, nothing of this file runs.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import EnvError
from shoal.processes.messages import dumps
from shoal.rows.arena import Arena
from shoal.rows.fields import Kind, where
from shoal.rows.layout import Layout
from shoal.stepping.row_slice import Infos


class Told(NamedTuple):
    """What a block says after a reset or step, if its observations have objects.

    Attributes:
        infos: As without objects.
        rows: Rows of the block whose objects follow; the parent keeps those of others.
        objects: Of each of these rows: one for each field.
    """

    infos: Infos
    rows: NDArray[np.int64]
    objects: NDArray[Any]


class ObjectRows:
    """The object rows of a block, on the side of its worker.

    Args:
        arena: The rows of the block.
        layouts: Of observations and actions.
        first_env: Of the block, for messages.
        agents: Rows of an env.
    """

    def __init__(self, arena: Arena, layouts: tuple[Layout, Layout], first_env: int, agents: int) -> None:
        self._arena, self._first_env, self._agents = arena, first_env, agents
        self._paths = [
            [field.path for field in layout.fields if field.kind is Kind.OBJECT] for layout in layouts
        ]

    def told(self, infos: Infos, fresh: NDArray[np.bool_] | None) -> Told:
        """What to say after a reset or step.

        Args:
            infos: Of the rows.
            fresh: Envs that have not been reset here, so that the parent's rows show those before them.
        """
        rows = np.arange(len(self._arena))
        if fresh is not None:
            rows = rows[~np.repeat(fresh, self._agents)]
        return Told(infos, rows, self._arena.observation_objects[rows])

    def state(self) -> NDArray[Any]:
        """The objects of observations, for a snapshot."""
        return self._arena.observation_objects

    def load(self, state: NDArray[Any]) -> None:
        """Go on from a snapshot."""
        self._arena.observation_objects[...] = state

    def take_actions(self, pickles: NDArray[Any]) -> None:
        """Take the objects of actions.

        Raises:
            EnvError: If one cannot be unpickled.
        """
        for (row, column), pickled in np.ndenumerate(pickles):
            try:
                self._arena.action_objects[row, column] = None if pickled is None else pickle.loads(pickled)
            except Exception as error:
                name = where(self._paths[1][column], "action")
                raise EnvError(
                    f"{name} of env {self._env(row)} cannot be unpickled in its worker: {error}"
                ) from error

    def check(self, told: Told) -> None:
        """Find out what of a message cannot be pickled.

        Raises:
            EnvError: If it is an object of an observation; it names env and field.
        """
        for row, own in zip(told.rows.tolist(), told.objects, strict=True):
            for path, value in zip(self._paths[0], own, strict=True):
                try:
                    dumps(value)
                except Exception as error:
                    name = where(path, "observation")
                    raise EnvError(
                        f"{name} of env {self._env(row)} cannot be pickled, so it cannot leave its worker: "
                        f"{error}"
                    ) from error

    def _env(self, row: int) -> int:
        return self._first_env + row // self._agents


def action_pickles(rows: Arena) -> NDArray[Any]:
    """The objects of actions of these rows, pickled; None for rows that need no action."""
    pickles = rows.action_objects.copy()
    pickles[~rows.mask] = None
    return pickles
