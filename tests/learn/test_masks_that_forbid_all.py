"""A mask that forbids all that a row could do is an error, before an action is taken."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from shoal.errors import ArgumentError
from shoal.learn import PPO, PPOConfig
from tests.learn.off_policy import make


class Closed(gymnasium.Env):
    """After some steps, nothing is allowed."""

    action_space = Discrete(3)

    def __init__(self, in_infos):
        masks = {} if in_infos else {"action_mask": Box(0, 1, (3,), np.int8)}
        self.observation_space = Dict({"light": Box(0, 1, (2,)), **masks})
        self._in_infos, self._steps = in_infos, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen()

    def step(self, action):
        self._steps += 1
        obs, info = self._seen()
        return obs, 0.0, False, False, info

    def _seen(self):
        mask = np.full(3, self._steps < 5, np.int8)
        light = {"light": np.zeros(2, np.float32)}
        return (light, {"action_mask": mask}) if self._in_infos else ({**light, "action_mask": mask}, {})


@pytest.mark.parametrize("in_infos", [False, True])
@pytest.mark.parametrize("learner", ["dqn", "ppo"])
def test_a_mask_that_forbids_all_is_an_error(learner, in_infos):
    env = lambda: Closed(in_infos)  # noqa: E731
    if learner == "dqn":
        made = make("dqn", env, backend="serial")
    else:
        config = PPOConfig(num_envs=2, horizon=16, minibatch_size=16, backend="serial", torch_threads=1)
        made = PPO(env, config)
    wanted = (
        r"action_mask: expected at least one allowed .* a mask of env 0 that forbids all of one: \[0, 0, 0\]"
    )
    with made, pytest.raises(ArgumentError, match=wanted):
        made.train()
