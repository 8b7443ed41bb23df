"""Envs that the tests of Shoal's stand-in for PufferLib share."""

import sys
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import shoal
from shoal import _core
from shoal.compat import pufferlib as face
from shoal.testing import SentinelEnv

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")


class MyEnvironment:
    """A walk in the style of old gym, which ends where its seed says."""

    observation_space = Box(-100, 100, (2,), np.float32)
    action_space = Discrete(3)
    random = np.random.default_rng(0)

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.place = np.zeros(2, np.float32)
        self.place[1] = self.random.integers(2, 6)
        return self.place.copy()

    def step(self, action):
        self.place[0] += 1
        return self.place.copy(), float(action), bool(self.place[0] >= self.place[1]), {"action": int(action)}


class Pair(shoal.Env):
    """Two agents who see who they are, and what they did; the second leaves a step before the end."""

    observation_space = MultiDiscrete([2, 9, 4])
    action_space = Discrete(9)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.count = 0
        self.observations[:] = [[0, 0, 0], [1, 0, 0]]

    def step(self, actions):
        self.count += 1
        self.observations[:, 1], self.observations[:, 2] = actions, self.count
        self.rewards[:] = actions
        self.terminations[1] = self.count == 2
        self.truncations[0] = self.count == 3
        return [{"count": self.count}, {}]


def sentinels(count, max_length=3):
    return [partial(SentinelEnv, i, max_length) for i in range(count)]


class Dice(face.PufferEnv):
    """Throws as its seed says."""

    def __init__(self, buf=None, sides=6):
        super().__init__(buf)
        self.observation_space = self.action_space = self.make_space(sides)

    def reset(self):
        return int(self.np_random.integers(6))

    def step(self, action):
        return self.reset(), 0.0, False, {}


def forget():
    """Take the stand-in out of this process again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pufferlib"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not face.FACADE]
