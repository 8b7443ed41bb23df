import time
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal.testing import (
    ContractViolation,
    CrashEnv,
    HangEnv,
    SampleEnv,
    SentinelEnv,
    SlowEnv,
    check_env,
    random_space,
)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"])
def test_envs_of_gymnasium_pass(name):
    check_env(partial(gymnasium.make, name))


def test_the_kits_own_envs_pass():
    check_env(SentinelEnv)
    check_env(partial(SlowEnv, seconds=0.0, busy=True, spread=1.0))
    check_env(partial(CrashEnv, at=10**9))
    check_env(partial(HangEnv, at=10**9))


class Wrong(gymnasium.Env):
    observation_space = sp.Box(0, 1, (2,))
    action_space = sp.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.np_random.random(2, np.float32), 0.0, False, False, {}


class Outside(Wrong):
    def step(self, action):
        return np.full(2, 3, np.float32), 0.0, False, False, {}


class Unseeded(Wrong):
    def step(self, action):
        return np.random.default_rng().random(2, np.float32), 0.0, False, False, {}


class Endless(Wrong):
    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), False, False, {}


@pytest.mark.filterwarnings("ignore:.*outside its space")
@pytest.mark.parametrize(
    ("env", "text"),
    [
        (Outside, "must be in the env's observation_space"),
        (Unseeded, "same seed must give the same trajectory"),
        (Endless, "rewards must be finite"),
    ],
)
def test_broken_promises_are_found(env, text):
    check_env(Wrong)
    with pytest.raises(ContractViolation, match=text):
        check_env(env)


def test_spaces_without_a_layout_are_checked_too():
    check_env(lambda: SampleEnv(sp.Sequence(sp.Discrete(2)), sp.Graph(sp.Discrete(2), None)))

    class Wrong(SampleEnv):
        def step(self, action):
            return ("neither", "this"), *super().step(action)[1:]

    with (
        pytest.warns(UserWarning, match=r"from step\(\), is outside its space Sequence"),
        pytest.raises(ContractViolation, match="must be in the env's observation_space"),
    ):
        check_env(lambda: Wrong(sp.Sequence(sp.Discrete(2)), sp.Discrete(2)))


def test_sentinel_knows_every_moment():
    env = SentinelEnv(7, max_length=5)
    obs, info = env.reset(seed=3)
    assert obs.tolist() == [7, 0, 0, 0, 3]
    assert info == {"begun": 0}
    done, steps = False, 0
    while not done:
        obs, reward, terminated, truncated, _ = env.step(np.int64(9))
        steps += 1
        assert obs.tolist() == [7, 0, steps, 9, 3]
        assert reward == SentinelEnv.reward_of(obs)
        done = terminated or truncated
    with pytest.raises(RuntimeError, match="env 7 was stepped after its episode had ended"):
        env.step(np.int64(0))
    assert env.reset()[0].tolist() == [7, 1, 0, 0, 3]


def test_crash_env_fails_at_its_step():
    env = CrashEnv(2, at=2, max_length=100)
    env.reset(seed=0)
    env.step(np.int64(0))
    with pytest.raises(ValueError, match="env 2 failed as told"):
        env.step(np.int64(0))
    with pytest.raises(ValueError, match="env 0 failed as told"):
        CrashEnv(at=0).reset()
    with pytest.raises(Exception, match="2: failed as told") as caught:
        CrashEnv(2, at=0, how="unpicklable").reset()
    import pickle

    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(caught.value)


def test_hang_env_takes_its_time():
    env = HangEnv(at=1, seconds=0.05)
    env.reset(seed=0)
    begun = time.perf_counter()
    env.step(np.int64(0))
    assert time.perf_counter() - begun >= 0.05


def test_random_spaces_repeat():
    for seed in range(30):
        one, other = random_space(seed), random_space(seed)
        assert one == other
        assert shoal.testing.contract.difference(one.sample(), other.sample()) is None
