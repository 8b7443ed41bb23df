"""Envs that the tests of Stable-Baselines3 share, and the backends they run on."""

import sys
from copy import deepcopy
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import _core

# Else workers would import this file, and pytest with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")
workers = pytest.param({"num_workers": 2}, id="multiprocessing", marks=needs_processes)
BACKENDS = [pytest.param({"backend": "serial"}, id="serial"), workers]
WITH_PARENT = pytest.param({"num_workers": 1, "parent_steps": True}, id="parent steps", marks=needs_processes)

backends = pytest.mark.parametrize("backend", BACKENDS)
ROLLOUT = {"seed": 0, "device": "cpu"}


class Walk(gymnasium.Env):
    """Random observations, rewards, ends and infos, as its seed says."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, number=0, observation_space=None, action_space=None, render_mode=None):
        self.number, self.render_mode = number, render_mode
        # Copied, because each has a random stream.
        self.observation_space = deepcopy(observation_space or Box(-10, 10, (3,), np.float32))
        self.action_space = deepcopy(action_space or Discrete(4))
        self.resets, self.calls = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.resets.append((seed, options or None))
        self.moment = 0
        info = {"luck": self.np_random.random(), "episode": len(self.resets)}
        return self.observation_space.sample(), info if self.np_random.random() < 0.8 else {}

    def step(self, action):
        assert action in self.action_space, action
        self.moment += 1
        terminated, truncated = (self.np_random.random(2) < 0.15).tolist()
        reward = self.np_random.random() + float(np.sum(np.ravel(list(leaves(action)))))
        said = {
            "moment": self.moment,
            "half": self.moment / 2,
            "small": np.float32(reward),
            "flag": bool(self.moment % 2),
            "text": f"{self.number}: {self.moment}",
            "nothing": None,
            "mixed": self.moment if self.moment % 2 else "even",
            "many": np.arange(self.moment),
            "list": [self.moment, {"deep": 1}],
            "nested": {"number": self.number, "empty": {}},
            "_hidden": self.moment,
            "TimeLimit.truncated": True,  # whatever it says: this is for the vector env to tell
        }
        info = {key: value for key, value in said.items() if self.np_random.random() < 0.5}
        return self.observation_space.sample(), reward, terminated, truncated, info

    def render(self):
        return np.full((2, 3, 3), self.number, np.uint8)

    def count(self, by=1, *, times=1):
        self.calls += by * times
        return self.number, self.calls

    def modules(self):
        return {"torch", "stable_baselines3"} & set(sys.modules)

    def fail(self):
        raise LookupError(f"nothing in {self.number}")


def leaves(action):
    if isinstance(action, dict):
        action = tuple(action.values())
    for part in action if isinstance(action, tuple) else (action,):
        yield from np.ravel(part)


def creators(count, *args, **kwargs):
    return [partial(Walk, number, *args, **kwargs) for number in range(count)]


class Ending(gymnasium.Env):
    """Ends as its actions say: 1 terminated, 2 truncated, 3 both."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.moment = 0
        return np.zeros(1, np.float32), {"begun": True}

    def step(self, action):
        self.moment += 1
        return np.full(1, self.moment, np.float32), 1.5, bool(action & 1), bool(action & 2), {"said": action}


def wrapped(number):
    return Tick(gymnasium.wrappers.TimeLimit(Walk(number), 100))


class Tick(gymnasium.Wrapper):
    ticks = 7


class Tock(Tick):
    pass


class Pair(shoal.Env):
    """Two agents: the first one dies after as many steps as its seed says, the second one after 4."""

    observation_space = Box(-1, 9, (2,), np.float32)
    action_space = Discrete(3)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.first = self.first if seed is None else 1 + seed % 3
        self.moment = 0
        self.observations[:] = [[0, 0], [1, 0]]
        return [{"begun": 0}, {"begun": 1}]

    def step(self, actions):
        self.moment += 1
        self.observations[:, 1] = self.moment
        self.rewards[:] = actions
        self.terminations[0] = self.moment == self.first
        self.truncations[1] = self.moment == 4
        return [{"said": 10}, {"said": 11}]
