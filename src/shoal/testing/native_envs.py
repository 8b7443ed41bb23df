"""Compiled versions of envs of `shoal.testing`."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from shoal.native import NativeEnv
from shoal.testing.envs import SentinelEnv


def _observe(state, action, obs, config):
    obs[0] = config.env_id
    obs[1] = state.nonce
    obs[2] = state.count
    obs[3] = action
    obs[4] = state.length


class SentinelNative(NativeEnv):
    """A compiled sentinel. It shows ``[env_id, random number, step, last action, length]``."""

    observation_space = SentinelEnv.observation_space
    action_space = SentinelEnv.action_space
    state = np.dtype([("nonce", np.int64), ("count", np.int64), ("length", np.int64)])
    bounds = {"count": (0, 10**9)}
    parameters = {"env_id": 0, "max_length": 7}
    reward_of = staticmethod(SentinelEnv.reward_of)

    @staticmethod
    def reset(state, rng, obs, config):  # noqa: D102
        state.nonce = rng.integers(1 << 30)
        state.length = rng.integers(1, config.max_length + 1)
        _observe(state, 0, obs, config)

    @staticmethod
    def step(state, action, obs, config):  # noqa: D102
        state.count += 1
        over = state.count >= state.length
        ending = (state.nonce + config.env_id) % 3
        _observe(state, action, obs, config)
        reward = config.env_id + state.count / 8 + action
        return reward, over and ending != 1, over and ending != 0


class PairNative(NativeEnv):
    """Two agents. The first terminates after three steps, the second is truncated after five."""

    observation_space = Box(-1, 2**31, (2,), np.float64)
    action_space = Discrete(10)
    num_agents = 2
    max_episode_steps = 5
    state = np.dtype([("count", np.int64)])
    bounds = {"count": (0, 10**9)}

    @staticmethod
    def reset(obs):  # noqa: D102
        for agent in range(2):
            obs[agent, 0] = 0
            obs[agent, 1] = agent

    @staticmethod
    def step(state, actions, obs, rewards, terminated, alive):  # noqa: D102
        state.count += 1
        for agent in range(2):
            if alive[agent]:
                obs[agent, 0] = state.count
                rewards[agent] = actions[agent]
        terminated[0] = state.count == 3


class BoxNative(NativeEnv):
    """An env that takes a Box action and returns it as the observation."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    @staticmethod
    def reset(obs):  # noqa: D102
        obs[0] = obs[1] = 0.0

    @staticmethod
    def step(action, obs):  # noqa: D102
        obs[0] = action[0]
        obs[1] = action[1]
        return action[0] + action[1], False
