"""Which envs and vecs a VecEnv can be made of: agents, names, compiled ones, and what is refused."""

import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    VecMonitor,
)

import shoal
from shoal.compat.sb3 import ShoalVecEnv, as_vec_env
from shoal.errors import (
    ArgumentError,
    ArgumentTypeError,
    EnvsElsewhere,
    MissingExtra,
)
from tests.compat.sb3_envs import (
    ROLLOUT,
    Pair,
    Tick,
    Walk,
    backends,
    creators,
    needs_processes,
)

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@backends
def test_agents_as_envs(backend):
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", episode_stats=True, **backend)
    env = as_vec_env(vec)
    assert env.num_envs == 4
    env.seed(0)  # 0 and 2 are for the envs: the first agents die after 1 and 3 steps
    assert env.reset().tolist() == [[0, 0], [1, 0]] * 2
    assert env.reset_infos == [{"begun": 0}, {"begun": 1}] * 2
    ends = [[], [], [], []]
    for step in range(1, 9):
        env.reset_infos[:] = [{}] * 4
        obs, _, dones, infos = env.step([1, 2, 1, 2])
        for row in range(4):
            assert ("terminal_observation" in infos[row]) == ("episode" in infos[row]) == dones[row]
            if dones[row]:
                ends[row].append((step, infos[row]["TimeLimit.truncated"], infos[row]["episode"]["l"]))
                assert infos[row]["said"] == 10 + row % 2
                assert infos[row]["terminal_observation"][1] == (step - 1) % 4 + 1
        if step % 4 == 0:
            assert obs.tolist() == [[0, 0], [1, 0]] * 2
            assert env.reset_infos == [{"begun": 0}, {"begun": 1}] * 2
        else:
            assert env.reset_infos == [{}] * 4
    assert ends == [
        [(1, False, 1), (5, False, 1)],
        [(4, True, 4), (8, True, 4)],
        [(3, False, 3), (7, False, 3)],
        [(4, True, 4), (8, True, 4)],
    ]
    assert env.get_attr("moment") == [0] * 4
    env.set_attr("first", 2)
    assert env.get_attr("first") == [2] * 4
    assert (env.has_attr("first"), env.has_attr("second")) == (True, False)
    assert env.env_method("close") == [None] * 4
    env.close()


def test_envs_by_name():
    env = ShoalVecEnv("CartPole-v1", num_envs=3, backend="serial")
    assert env.reset().shape == (3, 4)
    env.close()


class Plain:
    """An env that is nobody's child."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)
    level = 3

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


@backends
def test_envs_that_are_not_gymnasiums(backend):
    env = ShoalVecEnv([Plain] * 2, **backend)
    assert (env.render_mode, env.get_attr("render_mode", indices=0)) == (None, [None])
    env.set_attr("level", [4, 5])
    assert env.get_attr("level", indices=[1]) == [[4, 5]]
    assert (env.has_attr("level"), env.has_attr("floor")) == (True, False)
    assert env.env_method("__sizeof__") == [Plain().__sizeof__()] * 2
    assert env.env_is_wrapped(Monitor, indices=[0]) == [False]
    for ask in (partial(env.env_method, "reset"), partial(env.set_attr, "level", 1)):
        with pytest.raises(ArgumentError, match=r"indices: expected None, got \[1\]: only Gymnasium's envs"):
            ask(indices=[1])
    env.close()


@needs_processes
def test_compiled_envs():
    pytest.importorskip("numba")
    vec = shoal.make("shoal/CartPole-v1", 3, autoreset_mode="SAME_STEP", episode_stats=True)
    env = as_vec_env(vec)
    env.seed(0)
    obs = env.reset()
    np.testing.assert_allclose(env.get_attr("x", indices=[2, 0]), obs[[2, 0], 0], rtol=1e-6)
    assert not env.has_attr("y")
    with pytest.raises(EnvsElsewhere, match="envs of a Native are compiled, so there are no objects here"):
        env.envs  # noqa: B018
    done = False
    while not done:
        _, _, dones, infos = env.step(np.ones(3, np.int64))
        done = dones.any()
    for ended, info in zip(dones, infos, strict=True):
        assert ended == ("terminal_observation" in info) == ("episode" in info)
    env.close()


@backends
def test_options_for_agents(backend):
    class Optional(Pair):
        def reset(self, seed=None, options=None):
            self.options = options
            return super().reset(seed, options)

    vec = shoal.make(Optional, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", **backend)
    env = as_vec_env(vec)
    env.seed(0)
    env.set_options([{"level": 1}, {}, {}, {"level": 2}])  # the first agent's counts
    env.reset()
    assert env.get_attr("options") == [{"level": 1}, {"level": 1}, None, None]
    env.close()


def test_a_learner_for_agents():
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", backend="serial")
    env = VecMonitor(as_vec_env(vec))
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, **ROLLOUT).learn(64)
    env.close()


@backends
@pytest.mark.parametrize("wrapper", [lambda env: env, Tick], ids=["bare", "wrapped"])
def test_the_same_env_twice_in_a_process(backend, wrapper):
    one = Walk()
    with pytest.raises(ArgumentError, match="expected a new env from every call, got the same one twice"):
        ShoalVecEnv([lambda: wrapper(one)] * 4, **backend)


@needs_processes
def test_the_same_env_is_copied_to_each_worker():
    one = Walk()
    env = ShoalVecEnv([lambda: one] * 2, num_workers=2)
    env.set_attr("number", 7, indices=1)
    assert env.get_attr("number") == [0, 7]
    env.close()
    assert one.number == 0


def test_vecs_that_do_not_fit():
    create = partial(gymnasium.make, "CartPole-v1")
    theirs = gymnasium.vector.SyncVectorEnv([create])
    with pytest.raises(ArgumentTypeError, match=r"expected a vec of Shoal, .* got SyncVectorEnv"):
        as_vec_env(theirs)
    theirs.close()
    for mode in ("NEXT_STEP", "DISABLED"):
        with shoal.Serial(create, 2, autoreset_mode=mode) as vec:
            with pytest.raises(ArgumentError, match=f"reset in the step that ends them, got {mode}"):
                as_vec_env(vec)
            assert not vec.closed  # it is still the caller's
        with pytest.raises(ArgumentError, match=f"reset in the step that ends them, got {mode}"):
            ShoalVecEnv([create], autoreset_mode=mode)
    with (
        shoal.Serial(Pair, 2, autoreset_mode="SAME_STEP") as vec,
        pytest.raises(ArgumentError, match=r"the envs have 2. Make the vec with rows_as_envs=True"),
    ):
        as_vec_env(vec)
    with pytest.raises(ArgumentError, match="num_workers: Serial runs all envs in this process"):
        ShoalVecEnv([create], backend="serial", num_workers=2)
    with pytest.raises(ArgumentTypeError, match="one Walk that is made already"):
        ShoalVecEnv([Walk()])
    with pytest.raises(TypeError, match="no_such_option"):
        ShoalVecEnv([create], no_such_option=1)


@needs_processes
@pytest.mark.parametrize("options", [{"batch_size": 2}, {"mode": "async"}])
def test_asynchronous_vecs_do_not_fit(options):
    with pytest.raises(ArgumentError, match="expected a synchronous vec, got an asynchronous one"):
        ShoalVecEnv(creators(4), num_workers=2, **options)


def test_without_sb3(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, "shoal.compat.sb3")
    with pytest.raises(MissingExtra, match=r'needs Stable-Baselines3 .*pip install "shoal\[sb3\]"'):
        import shoal.compat.sb3  # noqa: F401
