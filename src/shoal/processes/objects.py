"""Objects between processes: the fields of rows that have no bytes travel in messages, as infos do.

    env.step -(copy)-> object rows of the worker -(message, with the infos)-> object rows of the parent
    actions -(copy)-> object rows of the parent -(message, with the call)--> object rows of the worker

Guarantees
  - Each process has its own object rows. The parent writes those of a block when it reads the block's
    message. That is after the block's call and before its batch, when shared memory changes too.
  - A worker that fails or dies sends no objects, so the parent still has the objects from before the call.
  - If no space needs objects, no code of this file runs.
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


class InfosAndObjects(NamedTuple):
    """The message of a block after a reset or step, if its observations have objects.

    Attributes:
        infos: The infos of the block.
        rows: The rows of the block that have new objects. The parent keeps the objects of the other rows.
        objects: For each of these rows, one object per field.
    """

    infos: Infos
    rows: NDArray[np.int64]
    objects: NDArray[Any]


class ObjectRows:
    """The object rows of a block, in its worker.

    Args:
        arena: The rows of the block.
        layouts: The layouts of observations and actions.
        first_env: The first env of the block, for error messages.
        agents: The number of rows per env.
    """

    def __init__(self, arena: Arena, layouts: tuple[Layout, Layout], first_env: int, agents: int) -> None:
        self._arena, self._first_env, self._agents = arena, first_env, agents
        self._paths = [
            [field.path for field in layout.fields if field.kind is Kind.OBJECT] for layout in layouts
        ]

    def add_to(self, infos: Infos, unreset: NDArray[np.bool_] | None) -> InfosAndObjects:
        """Return the message after a reset or step: its infos, and the objects of the observations.

        Args:
            infos: The infos of the block.
            unreset: For each env, whether it has not been reset in this worker yet. The parent keeps the
                objects of such envs, which come from the worker before. None if there are none.
        """
        rows = np.arange(len(self._arena))
        if unreset is not None:
            rows = rows[~np.repeat(unreset, self._agents)]
        return InfosAndObjects(infos, rows, self._arena.observation_objects[rows])

    def state(self) -> NDArray[Any]:
        """Return the objects of all observations, for a snapshot."""
        return self._arena.observation_objects

    def load(self, state: NDArray[Any]) -> None:
        """Restore the objects of all observations from a snapshot."""
        self._arena.observation_objects[...] = state

    def take_actions(self, pickles: NDArray[Any]) -> None:
        """Unpickle the objects of actions into their rows.

        Raises:
            EnvError: If an object cannot be unpickled.
        """
        for (row, column), pickled in np.ndenumerate(pickles):
            try:
                self._arena.action_objects[row, column] = None if pickled is None else pickle.loads(pickled)
            except Exception as error:
                name = where(self._paths[1][column], "action")
                raise EnvError(
                    f"{name} of env {self._env(row)} cannot be unpickled in its worker: {error}"
                ) from error

    def check(self, message: InfosAndObjects) -> None:
        """Raise if an object of an observation cannot be pickled.

        Raises:
            EnvError: Names the env and the field of the first such object.
        """
        for row, own in zip(message.rows.tolist(), message.objects, strict=True):
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
    """Return the pickled objects of the actions in these rows; None for rows that need no action."""
    pickles = rows.action_objects.copy()
    pickles[~rows.mask] = None
    return pickles
