"""A compiled env to copy. It uses every feature once, in the usual order. The guide is docs/compiled.md."""

# Compiled functions have no annotations, and spaces may be functions of the constants.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"
# ruff: noqa: D102, E731

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.native import NativeEnv

# Numbers and arrays of the module are compiled in.
UP, RIGHT, DOWN, LEFT = range(4)
ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # the change of row and column of each move

GRASS, APPLE, PICKER = range(3)  # the values of a cell in an observation


def _observation_space(config: Any) -> Dict:
    # Refuse constants that cannot work here. `reset` would search for a free cell forever, and compiled code
    # cannot be interrupted.
    if not 0 < config.apples < config.size**2:
        raise ArgumentError(
            f"apples: expected 1 to {config.size**2 - 1}, one less than cells, got {config.apples}"
        )
    cells = Box(GRASS, PICKER, (config.size, config.size), np.uint8)
    return Dict({"cells": cells, "left": Discrete(config.apples + 1)})


# Functions that `reset` and `step` call are compiled with them. Define them above the class, because a class
# is checked as soon as it is defined.
def _observe(state, obs):
    for row in range(len(state.cells)):
        for column in range(len(state.cells)):
            obs.cells[row, column] = state.cells[row, column]
    obs.cells[state.row, state.column] = PICKER
    obs.left = state.left


class Orchard(NativeEnv):
    """A picker walks through an orchard and picks the apples. Sometimes the wind changes its move.

    An action is a move up, right, down or left. The picker cannot leave the orchard. An apple gives 1, and
    each step costs 0.01. The episode terminates when all apples are picked.
    """

    # 1. The spaces of an agent. For a Dict, `obs` is a record; for other spaces it is an array. A space may
    #    be a function of the constants, as here.
    observation_space = _observation_space
    action_space = Discrete(4)

    # 2. The state that an env keeps between steps: named numbers and arrays. All are zero when an episode
    #    begins.
    state = lambda config: np.dtype(
        [
            ("row", np.int64),
            ("column", np.int64),
            ("cells", np.uint8, (config.size, config.size)),
            ("left", np.int64),
        ]
    )

    # 3. The number of steps after which Shoal truncates an episode.
    max_episode_steps = lambda config: 4 * config.size * config.size

    # 4. Constants are compiled in. Use them for shapes and for numbers that do not change while envs run.
    constants = {"size": 5, "apples": 6}

    # 5. Each env has its own parameters. They may change at any time: vec.set_attr("wind", [0.0, 0.5, ...]).
    parameters = {"wind": 0.1}

    # 6. The lowest and highest value that a parameter may be set to. Fields of the state that have bounds can
    #    be set too. The compiled code below must be safe with every value within the bounds.
    bounds = {"wind": (0.0, 1.0)}

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    # 7. `reset` and `step` ask for their arguments by name, in any order. All random numbers come from `rng`,
    #    so that a seed gives the same result with any number of threads.
    @staticmethod
    def reset(state, rng, obs, config):
        state.row, state.column = rng.integers(config.size), rng.integers(config.size)
        while state.left < config.apples:
            row, column = rng.integers(config.size), rng.integers(config.size)
            taken = state.cells[row, column] == APPLE or (row == state.row and column == state.column)
            if not taken:
                state.cells[row, column] = APPLE
                state.left += 1
        _observe(state, obs)

    @staticmethod
    def step(state, action, rng, obs, config):
        move = rng.integers(4) if rng.uniform() < config.wind else action
        # Compiled code does not check indices. Keep them in range, and test with debug=True.
        state.row = min(max(state.row + ROWS[move], 0), config.size - 1)
        state.column = min(max(state.column + COLUMNS[move], 0), config.size - 1)
        reward = -0.01
        if state.cells[state.row, state.column] == APPLE:
            state.cells[state.row, state.column] = GRASS
            state.left -= 1
            reward += 1.0
        _observe(state, obs)
        return reward, state.left == 0  # a third value may report truncation for another reason

    # 8. A frame for render_mode="rgb_array". This method is not compiled, so it may use all of Python.
    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the orchard from above: apples are red, the picker is blue."""
        frame = np.full((*state.cells.shape, 3), (40, 110, 50), np.uint8)
        frame[state.cells == APPLE] = 200, 40, 30
        frame[state.row, state.column] = 60, 90, 220
        return frame.repeat(16, 0).repeat(16, 1)
