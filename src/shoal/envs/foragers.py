"""Foragers: hundreds of agents in one world, moved by a few NumPy calls. An example of a `shoal.Env`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.adapters.env import Env
from shoal.errors import ArgumentError

FULL = 255  # the largest byte: marks a pellet, and is the highest energy
STAY = 4  # the action that does not move


@cache
def windows(size: int, width: int) -> NDArray[np.intp]:
    """Return the numbers of the cells around each cell of a torus: [size * size, width, width].

    All worlds of a process share the array. It is not an attribute of a world, because snapshots would copy
    it.
    """
    row, column = np.divmod(np.arange(size * size)[:, None, None], size)
    offset = np.arange(width) - width // 2
    cells = (row + offset[:, None]) % size * size + (column + offset) % size
    cells.setflags(write=False)
    return cells


class Foragers(Env):
    """Agents on a torus look for pellets, and starve if they find too few.

    An action is one of the 3x3 cells around the agent, row by row; 4 means stay. A step costs 1 energy. A
    pellet gives reward 1 and `meal` energy. All agents on the cell share it equally, so the order of agents
    does not matter. At energy 0 an agent terminates. After `max_steps` all living agents are truncated.

    An observation is the cells around the agent, in two channels of bytes: 255 where a pellet lies, and the
    energy of the strongest agent in the cell. The agent itself is in the middle.

    Args:
        num_agents: The number of agents in the world. Each is a row of the vec.
        size: The number of rows and columns of the world.
        vision: The number of rows and columns that an agent sees; odd, so that there is a middle.
        pellets: The number of pellets at the start of an episode, in random cells; several may share a cell.
        regrowth: The number of new pellets in each step. The world feeds up to ``regrowth * meal`` agents.
        meal: The energy of a pellet.
        energy: The energy of an agent when it begins.
        max_steps: The number of steps of an episode.
        respawn: The number of steps after its death when an agent returns, in a random cell; None for never.
            An episode is over as soon as no agent is alive, even if agents would return later.
        render_mode: ``"rgb_array"`` or None.

    Example:
        >>> import shoal
        >>> from shoal.envs.foragers import Foragers
        >>> with shoal.Serial(Foragers, num_envs=2, seed=0) as vec:
        ...     obs, infos = vec.reset()
        ...     for _ in range(100):
        ...         obs, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())
        ...     living = vec.mask
        >>> obs.shape, rewards.shape
        ((512, 5, 5, 2), (512,))
        >>> bool(living.any()), bool(living.all())  # some have starved: their rows need no action
        (True, False)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = Discrete(9)  # both spaces are those of one agent

    def __init__(
        self,
        num_agents: int = 256,
        size: int = 64,
        vision: int = 5,
        *,
        pellets: int = 500,
        regrowth: int = 8,
        meal: int = 20,
        energy: int = 50,
        max_steps: int = 500,
        respawn: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if vision % 2 == 0 or not 0 < vision <= size:
            raise ArgumentError(f"vision: expected an odd number from 1 to size ({size}), got {vision}")
        if not 0 < energy <= FULL:
            raise ArgumentError(f"energy: expected a number from 1 to {FULL}, got {energy}")
        if respawn is not None and respawn < 1:
            raise ArgumentError(f"respawn: expected None or a number of steps from 1, got {respawn}")
        super().__init__()
        # The vec reads these. It binds rows (self.observations, self.mask, ...) later: do not use them here.
        self.num_agents, self.render_mode = num_agents, render_mode
        self.observation_space = Box(0, FULL, (vision, vision, 2), np.uint8)
        self.size, self.vision, self.max_steps, self.respawn = size, vision, max_steps, respawn
        self.pellets, self.regrowth, self.meal, self.first_energy = pellets, regrowth, meal, energy
        # The world: arrays with an entry for each agent or cell, so that one expression moves all of them.
        self.place = np.zeros(num_agents, np.intp)  # the number of a cell
        self.energy = np.zeros(num_agents, np.int64)  # after a death: minus the number of steps since
        self.cells = np.zeros((size * size, 2), np.uint8)  # as agents see them

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode. The vec has set the mask of all agents before."""
        super().reset(seed=seed)  # without a seed, as in an autoreset, the random stream goes on
        self.count = 0
        self.cells[:] = 0
        self.cells[self._anywhere(self.pellets), 0] = FULL
        self.place[:] = self._anywhere(self.num_agents)
        self.energy[:] = self.first_energy
        self._observe()

    def step(self, actions: NDArray[np.int64]) -> None:
        """Move all agents. The vec has cleared rewards and flags, so only other values are written."""
        place, energy, (pellets, strongest) = self.place, self.energy, self.cells.T
        strongest[place] = 0
        # Dead agents stay where they are: their entry in `actions` is an old action.
        moves = np.where(self.mask, actions, STAY)
        place[:] = windows(self.size, 3).reshape(-1, 9)[place, moves]

        energy -= 1
        (eaters,) = (self.mask & (pellets[place] > 0)).nonzero()
        meals = place[eaters]
        sharers = np.bincount(meals)[meals]
        energy[eaters] += self.meal // sharers
        np.minimum(energy, FULL, out=energy)
        self.rewards[eaters] = 1 / sharers
        pellets[meals] = 0
        pellets[self._anywhere(self.regrowth)] = FULL

        # This step is the last one of these agents. The vec reports it and clears their mask.
        self.terminations[:] = energy == 0
        self.count += 1
        if self.count == self.max_steps:
            self.truncations[:] = energy > 0  # now no agent is left to act, and the vec resets the env
        elif self.respawn is not None:  # not in the last step, or an agent would be left to act
            (back,) = (energy == -self.respawn).nonzero()
            place[back] = self._anywhere(len(back))
            energy[back] = self.first_energy
            self.mask[back] = True  # this observation begins a new episode of the agent
        self._observe()

    def _anywhere(self, count: int) -> NDArray[np.intp]:
        """Draw random cells. For a few cells this takes a third of the time of `integers`."""
        return (self.np_random.random(count) * len(self.cells)).astype(np.intp)

    def _observe(self) -> None:
        """Write all rows in place. Rows of dead agents are not read, but leaving them out takes longer."""
        np.maximum.at(self.cells[:, 1], self.place, np.maximum(self.energy, 0).astype(np.uint8))
        around = np.take(windows(self.size, self.vision), self.place, axis=0)
        # All numbers are in range. The mode is "clip" because only then `take` writes to `out` without a
        # buffer.
        np.take(self.cells, around, axis=0, out=self.observations, mode="clip")

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the world from above: pellets are green, agents orange; stronger agents are brighter."""
        if self.render_mode is None:
            return None
        frame = np.full((self.size, self.size, 3), 24, np.uint8)
        pellets, strongest = self.cells.T.reshape(2, self.size, self.size)
        frame[pellets > 0] = 40, 130, 60
        frame[strongest > 0] = (140, 60, 20) + strongest[strongest > 0, None] / FULL * (115, 120, 60)
        return frame.repeat(8, 0).repeat(8, 1)
