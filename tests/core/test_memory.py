"""Reference counts are right: stepping and failing leave nothing behind."""

import gc
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, OneOf, Text, Tuple
from gymnasium.vector import AutoresetMode
from tests.core.disguises import Custom

import shoal
from shoal._core import _native

pytestmark = pytest.mark.core

NUM_ENVS = 50


class Known(gymnasium.Env):
    """Gives out objects whose references can be counted; an episode lasts three steps."""

    def __init__(self, observation_space, action_space, obs=None, *, said=True):
        self.observation_space, self.action_space = observation_space, action_space
        self.obs = observation_space.sample() if obs is None else obs
        # Made at run time, so that nothing else refers to them.
        self.reward, self.info = float("1.5"), {"number": float("7.5"), "array": np.zeros(2)} if said else {}
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.obs, self.info

    def step(self, action):
        self.steps += 1
        return self.obs, self.reward, self.steps == 3, False, self.info


NESTED = Dict({"map": Box(0, 255, (2, 2), np.uint8), "deep": Tuple((Discrete(3), Text(5)))})
UNKNOWN = Dict({"custom": Custom(), "either": OneOf([Custom(), Discrete(2)])})
EITHER = OneOf([Discrete(3), Box(0, 1, (2,))])

CASES = {
    "plain": lambda: Known(Box(0, 1, (3,)), Discrete(2), said=False),
    "nested": lambda: Known(NESTED, Discrete(2)),
    "custom": lambda: Known(
        Dict({"custom": Custom(), "either": OneOf([Custom(), Discrete(2)])}), Discrete(2)
    ),
    "choices": lambda: Known(EITHER, EITHER),
    "cast": lambda: Known(Box(0, 1, (3,)), Box(-1, 1, (2,)), np.zeros(3)),
    "list": lambda: Known(Box(0, 1, (3,)), Dict({"a": Discrete(2), "b": MultiDiscrete([2, 2])}), [0.5] * 3),
    "checked": lambda: Known(Box(0, 9, (3,), np.int8), Tuple((Discrete(5000),)), np.full(3, 7)),
}


def held(vec):
    """How often each of the objects that an env gives out is referred to."""
    env = vec.envs[0]
    parts = [env.obs, env.reward, env.info, *env.info.values()]
    if isinstance(env.obs, dict):
        parts += [
            part for value in env.obs.values() for part in (value, *(value if type(value) is tuple else ()))
        ]
    return [sys.getrefcount(part) for part in parts]


def resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize("steps", [400, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_stepping_leaves_nothing_behind(case, mode, steps):
    with shoal.Serial(CASES[case], NUM_ENVS, autoreset_mode=mode) as vec:
        vec.reset(seed=0)
        actions = [vec.action_space.sample() for _ in range(4)]

        def run(steps):
            for step in range(steps):
                if not vec.mask.all() and mode is AutoresetMode.DISABLED:
                    vec.reset(options={"reset_mask": ~vec.mask})
                vec.step(actions[step % 4])

        run(120)  # caches fill
        gc.collect()
        before = held(vec), sys.getallocatedblocks(), resident_megabytes()
        run(steps)
        gc.collect()
        after = held(vec), sys.getallocatedblocks(), resident_megabytes()
    assert after[0] == before[0]
    assert after[1] - before[1] < 200  # blocks; a reference lost per vector step would leave 400
    sanitized = hasattr(_native, "__sanitized__")  # sanitizers keep freed memory for a while
    assert sanitized or after[2] - before[2] < 10


def test_failing_leaves_nothing_behind():
    class Failing(Known):
        calls = 0

        def step(self, action):
            self.calls += 1
            obs, *rest = super().step(action)
            if self.calls % 5 == 0:
                raise ValueError("failed, as env 0 does")
            return (("short",), (np.zeros(9), *rest), (obs, None, *rest[1:]), (obs, *rest[:3], 5))[
                self.calls % 4
            ]

    def fail(vec, times):
        for _ in range(times):
            vec.reset()
            with pytest.raises((ValueError, TypeError), match="env 0"):
                vec.step(actions)

    with shoal.Serial(lambda: Failing(Box(0, 1, (3,)), Discrete(2)), 3) as vec:
        actions = np.zeros(3, np.int64)
        fail(vec, 50)
        gc.collect()
        before = held(vec), sys.getallocatedblocks()
        fail(vec, 2000)
        gc.collect()
        after = held(vec), sys.getallocatedblocks()
    assert after[0] == before[0]
    assert after[1] - before[1] < 250  # one lost per failure of a kind would leave 400


def test_a_vec_that_its_own_env_refers_to_is_collected():
    class Tied(Known):
        vec = None

    class Witness:
        gone = 0

        def __del__(self):
            Witness.gone += 1

    for number in range(3):
        vec = shoal.Serial(lambda: Tied(Box(0, 1, (3,)), Discrete(2)), 2)
        vec.reset(seed=0)
        vec.step([0, 1])
        vec.envs[0].vec, vec.envs[0].witness = vec, Witness()
        del vec
        gc.collect()
        assert Witness.gone == number + 1
