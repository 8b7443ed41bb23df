"""Foragers: hundreds of agents in one world, moved by a few calls of NumPy. A `shoal.Env` to learn from."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.adapters.env import Env
from shoal.errors import ArgumentError

FULL = 255  # of a byte: a pellet, and the most energy there is
STAY = 4  # the action that goes nowhere


@cache
def windows(size: int, width: int) -> NDArray[np.intp]:
    """The cells around each cell of a torus, by number: [size * size, width, width].

    One for all worlds of a process, and no attribute of theirs: snapshots would copy it.
    """
    row, column = np.divmod(np.arange(size * size)[:, None, None], size)
    offset = np.arange(width) - width // 2
    cells = (row + offset[:, None]) % size * size + (column + offset) % size
    cells.setflags(write=False)
    return cells


class Foragers(Env):
    """Agents on a torus look for pellets, and starve if they find too few.

    An action is one of the 3x3 cells around the agent, row by row; 4 is to stay. A step costs 1 energy. A
    pellet gives reward 1 and `meal` energy, in equal shares to all who stand on it, so that no order among
    agents matters. At energy 0 an agent terminates; after `max_steps` all who are left are truncated.

    An observation is the cells around the agent, in two channels of bytes: 255 where a pellet lies, and the
    energy of the strongest agent who stands there. The agent itself is in the middle.

    Args:
        num_agents: Agents in the world, each a row of the vec.
        size: Rows and columns of the world.
        vision: Rows and columns that an agent sees; odd, so that there is a middle.
        pellets: Thrown at random when an episode begins; some may fall on the same cell.
        regrowth: The same in each step. The world feeds up to ``regrowth * meal`` agents.
        meal: Energy of a pellet.
        energy: What an agent begins with.
        max_steps: Steps of an episode.
        respawn: Steps after its death in which an agent returns, somewhere else; by default never. An
            episode is over as soon as nobody is alive, whoever may be about to return.
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
    action_space = Discrete(9)  # of one agent, as the other space is

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
        # What the vec asks for. It binds rows (self.observations, self.mask, ...) afterwards, so not yet.
        self.num_agents, self.render_mode = num_agents, render_mode
        self.observation_space = Box(0, FULL, (vision, vision, 2), np.uint8)
        self.size, self.vision, self.max_steps, self.respawn = size, vision, max_steps, respawn
        self.pellets, self.regrowth, self.meal, self.first_energy = pellets, regrowth, meal, energy
        # The world, with an entry for each agent or cell: one expression serves them all.
        self.place = np.zeros(num_agents, np.intp)  # a cell
        self.energy = np.zeros(num_agents, np.int64)  # falls on after a death: minus the steps since
        self.cells = np.zeros((size * size, 2), np.uint8)  # as they are seen

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode. The vec has set the mask of all agents."""
        super().reset(seed=seed)  # without a seed, as in an autoreset, np_random goes on
        self.count = 0
        self.cells[:] = 0
        self.cells[self._anywhere(self.pellets), 0] = FULL
        self.place[:] = self._anywhere(self.num_agents)
        self.energy[:] = self.first_energy
        self._observe()

    def step(self, actions: NDArray[np.int64]) -> None:
        """Move all agents. The vec has cleared rewards and flags: what is not written is 0 and False."""
        place, energy, (pellets, strongest) = self.place, self.energy, self.cells.T
        strongest[place] = 0
        # The dead stay where they fell: what stands there for them is an action of their lives.
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

        # This step is their last one. The vec reports it and clears their mask.
        self.terminations[:] = energy == 0
        self.count += 1
        if self.count == self.max_steps:
            self.truncations[:] = energy > 0  # now nobody is left to act, and the vec resets the env
        elif self.respawn is not None:  # not in the last step, which would leave somebody to act
            (back,) = (energy == -self.respawn).nonzero()
            place[back] = self._anywhere(len(back))
            energy[back] = self.first_energy
            self.mask[back] = True  # what they see now begins an episode of theirs
        self._observe()

    def _anywhere(self, count: int) -> NDArray[np.intp]:
        """Random cells. For a few, a third of the price of `integers`."""
        return (self.np_random.random(count) * len(self.cells)).astype(np.intp)

    def _observe(self) -> None:
        """Write all rows in place. Those of the dead too: nobody reads them, and to choose costs more."""
        np.maximum.at(self.cells[:, 1], self.place, np.maximum(self.energy, 0).astype(np.uint8))
        around = np.take(windows(self.size, self.vision), self.place, axis=0)
        # No number is outside; but with "clip", and only then, `take` needs no buffer before `out`.
        np.take(self.cells, around, axis=0, out=self.observations, mode="clip")

    def render(self) -> NDArray[np.uint8] | None:
        """The world from above: pellets green, agents orange, the stronger the brighter."""
        if self.render_mode is None:
            return None
        frame = np.full((self.size, self.size, 3), 24, np.uint8)
        pellets, strongest = self.cells.T.reshape(2, self.size, self.size)
        frame[pellets > 0] = 40, 130, 60
        frame[strongest > 0] = (140, 60, 20) + strongest[strongest > 0, None] / FULL * (115, 120, 60)
        return frame.repeat(8, 0).repeat(8, 1)
