"""Envs that go wrong late. What goes wrong is a parameter, so that each is compiled once for all tests."""

from types import ModuleType

import numba
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import shoal

TABLE = np.arange(3.0)
LATE = 20  # steps after which an index is wrong; the checks of a class see only the first ones
DIVIDES, DIVIDES_AND_IS_WRONG, WRAPS, RECURS = 10, 11, 12, 13  # ways beside those of a wrong index


@numba.njit(boundscheck=False)
def their_own(values, place):
    return values[place]


elsewhere = ModuleType("elsewhere")
elsewhere.their_own = numba.njit(lambda values, place: values[place])


@numba.njit("int64(int64)")
def deeper(n):
    """A recursion without end."""
    return n - deeper(n + 1) * deeper(n + 2) if n else 0


def called(state, place):
    state.a[place] += 1.0


class Late(shoal.NativeEnv):
    """Has a wrong index after some steps, in one way or another."""

    observation_space = Dict({"seen": Box(-1, 1, (2,), np.float32), "rest": Box(0, 1, (3,), np.float32)})
    action_space = Discrete(2)
    state = np.dtype(
        [("count", np.int64), ("a", np.float64, 3), ("m", np.float64, (2, 3)), ("next", np.float64)]
    )
    parameters = {"way": 0, "late": LATE}

    @staticmethod
    def reset(obs):
        obs.seen[:] = 0.0

    @staticmethod
    def step(state, obs, config):
        state.count += 1
        reward = 0.0
        if state.count < config.late:
            return reward, False
        if config.way == 0:
            state.a[state.count // 6] = 1.0
        elif config.way == 1:
            reward = state.a[-state.count]
        elif config.way == 2:
            state.m[1, state.count] += 1.0
        elif config.way == 3:
            state.m[state.count][0] = 1.0
        elif config.way == 4:
            obs.seen[state.count] = 1.0
        elif config.way == 5:
            reward = TABLE[state.count]
        elif config.way == 6:
            called(state, state.count)
        elif config.way == 7:
            reward = their_own(state.a, state.count)
        elif config.way == 8:
            reward = elsewhere.their_own(state.a, state.count)
        elif config.way == 9:
            obs.rest[:] = state.a[: state.count - config.late]
        elif config.way == DIVIDES or config.way == DIVIDES_AND_IS_WRONG:
            reward = 1.0 / float(state.count - config.late)  # where compiled code goes on
            if config.way == DIVIDES_AND_IS_WRONG:
                state.a[state.count] = 1.0
        elif config.way == WRAPS:  # right with Python's integers, and wrong with those of 64 bits
            place = int(state.count % 3 + 2) << 61 >> 61  # compiled, 4 becomes -4
            reward = state.a[place - 4]
        elif config.way == RECURS:
            state.count = deeper(state.count)
        return reward, False


class Crowd(shoal.NativeEnv):
    """Three agents, of which a fourth is rewarded."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)
    num_agents = 3
    state = np.dtype([("count", np.int64)])
    parameters = {"array": 0}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state, obs, rewards, terminated, alive, config):
        state.count += 1
        if state.count == LATE and config.array == 0:
            rewards[state.count // 6] = 1.0
        if state.count == LATE and config.array == 1:
            terminated[state.count // 6] = True
        if state.count == LATE and config.array == 2:
            alive[state.count // 6] = False
        if state.count == LATE and config.array == 3:
            obs[state.count // 6, 0] = 1.0


class Wrong(shoal.NativeEnv):
    """Crashes after some steps, in one way or another."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("count", np.int64), ("least", np.int64), ("minus", np.int64), ("a", np.float64, 3)])
    parameters = {"way": 0}

    @staticmethod
    def reset(state, obs):
        state.least, state.minus = -(2**63), -1
        obs[:] = 0.0

    @staticmethod
    def step(state, config):
        state.count += 1
        late = state.count >= LATE
        if config.way == 0 and late:
            state.a[-(state.count << 36)] = 1.0  # nothing is there
        if config.way == 1 and late:
            state.count = np.remainder(state.least, state.minus)  # a division that processors refuse
        if config.way == 2 and late:
            state.count = deeper(state.count)
        return 0.0, False
