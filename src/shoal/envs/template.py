"""A compiled env to copy: every part of the kit once, in the usual order. The guide is docs/compiled.md."""

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

# Numbers and arrays of the file are compiled in.
UP, RIGHT, DOWN, LEFT = range(4)
ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # of each move

GRASS, APPLE, PICKER = range(3)  # what is seen in a cell


def _observation_space(config: Any) -> Dict:
    # The place to refuse constants that cannot work. `reset` would look for a free cell for ever, and nobody
    # can interrupt what is compiled.
    if not 0 < config.apples < config.size**2:
        raise ArgumentError(
            f"apples: expected 1 to {config.size**2 - 1}, one less than cells, got {config.apples}"
        )
    cells = Box(GRASS, PICKER, (config.size, config.size), np.uint8)
    return Dict({"cells": cells, "left": Discrete(config.apples + 1)})


# Functions that `reset` and `step` call are compiled with them. They stand above the class, which is checked
# as soon as it is made.
def _observe(state, obs):
    for row in range(len(state.cells)):
        for column in range(len(state.cells)):
            obs.cells[row, column] = state.cells[row, column]
    obs.cells[state.row, state.column] = PICKER
    obs.left = state.left


class Orchard(NativeEnv):
    """A picker walks about and picks the apples; at times the wind blows it another way.

    An action is a move up, right, down or left; nobody leaves the orchard. An apple gives 1, and each step
    takes 0.01. The episode terminates when all apples are picked.
    """

    # 1. What an agent sees and does. A Dict is a record in `obs`, anything else an array. A function of the
    #    constants, as here, gives the right space whatever they are.
    observation_space = _observation_space
    action_space = Discrete(4)

    # 2. What an env remembers between steps: numbers and arrays of them, by name. All zero when an episode
    #    begins.
    state = lambda config: np.dtype(
        [
            ("row", np.int64),
            ("column", np.int64),
            ("cells", np.uint8, (config.size, config.size)),
            ("left", np.int64),
        ]
    )

    # 3. The step in which an episode is truncated. The kit counts.
    max_episode_steps = lambda config: 4 * config.size * config.size

    # 4. Constants are compiled in: all that shapes depend on, and what nobody changes while envs run.
    constants = {"size": 5, "apples": 6}

    # 5. Parameters are each env's own, and may change at any time: vec.set_attr("wind", [0.0, 0.5, ...]).
    parameters = {"wind": 0.1}

    # 6. What they may be set to, from the lowest to the highest value. Fields of the state that have bounds
    #    can be set too: the compiled code below must be safe with every value that they allow.
    bounds = {"wind": (0.0, 1.0)}

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    # 7. `reset` and `step` ask by name for what they need, in any order. All chance comes from `rng`, so that
    #    a seed means the same on any number of threads.
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
        # Compiled, nobody notices an index outside of its array: be sure, and test with debug=True.
        state.row = min(max(state.row + ROWS[move], 0), config.size - 1)
        state.column = min(max(state.column + COLUMNS[move], 0), config.size - 1)
        reward = -0.01
        if state.cells[state.row, state.column] == APPLE:
            state.cells[state.row, state.column] = GRASS
            state.left -= 1
            reward += 1.0
        _observe(state, obs)
        return reward, state.left == 0  # a third value would say whether it is truncated for another reason

    # 8. A picture, for render_mode="rgb_array". It is not compiled: here all of Python will do.
    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """The orchard from above: apples red, the picker blue."""
        frame = np.full((*state.cells.shape, 3), (40, 110, 50), np.uint8)
        frame[state.cells == APPLE] = 200, 40, 30
        frame[state.row, state.column] = 60, 90, 220
        return frame.repeat(16, 0).repeat(16, 1)
