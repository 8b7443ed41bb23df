"""A vec as a VecEnv: steps, ends, seeds and options, errors, and how it is closed."""

import sys

import cloudpickle
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
)

from shoal.compat.sb3 import ShoalVecEnv
from shoal.errors import (
    ActionError,
    AlreadyPending,
    ArgumentError,
    Closed,
    NothingPending,
    ResetNeeded,
    RestartWarning,
)
from shoal.testing.contract import require_equal
from tests.compat.sb3_envs import (
    Ending,
    backends,
    creators,
    needs_processes,
)

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@backends
def test_ends(backend):
    env = ShoalVecEnv([Ending] * 4, **backend)
    assert env.reset_infos == [{}] * 4
    env.reset()
    assert env.reset_infos == [{"begun": True}] * 4
    env.reset_infos[:] = [{}] * 4
    obs, rewards, dones, infos = env.step([0, 1, 2, 3])
    assert obs.tolist() == [[1], [0], [0], [0]]
    assert (rewards.dtype, rewards.tolist()) == (np.float32, [1.5] * 4)
    assert (dones.dtype, dones.tolist()) == (np.bool_, [False, True, True, True])
    assert infos == [
        {"said": 0, "TimeLimit.truncated": False},
        {"said": 1, "TimeLimit.truncated": False, "terminal_observation": np.ones(1)},
        {"said": 2, "TimeLimit.truncated": True, "terminal_observation": np.ones(1)},
        {"said": 3, "TimeLimit.truncated": False, "terminal_observation": np.ones(1)},
    ]
    assert env.reset_infos == [{}, *[{"begun": True}] * 3]
    env.close()


@backends
def test_episode_statistics_instead_of_a_monitor(backend):
    env = ShoalVecEnv([Ending] * 2, episode_stats=True, **backend)
    env.reset()
    assert "episode" not in env.step([0, 0])[3][0]
    said, going = env.step([1, 0])[3]
    assert (said["episode"]["r"], said["episode"]["l"]) == (3.0, 2)
    assert {type(figure) for figure in said["episode"].values()} == {float, int}
    assert "episode" not in going
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(48)
    assert model.ep_info_buffer
    env.close()


@backends
def test_seeds_and_options_are_for_the_next_reset(backend):
    env = ShoalVecEnv(creators(3), **backend)
    env.seed(5)
    env.set_options({"level": 1})
    assert env.get_attr("resets") == [[]] * 3
    env.reset()
    env.reset()
    assert env.get_attr("resets") == [[(seed, {"level": 1}), (None, None)] for seed in (5, 6, 7)]
    env.close()


@backends
def test_options_of_each_env(backend):
    each = [{"level": 1}, {}, {"level": 1}, {"other": np.arange(2)}]
    env, other = ShoalVecEnv(creators(4), **backend), DummyVecEnv(creators(4))
    for vec_env in (env, other):
        vec_env.seed(5)
        vec_env.reset()
    for seed in (None, 8):
        for vec_env in (env, other):
            if seed is not None:
                vec_env.seed(seed)
            vec_env.set_options(each)
        require_equal(env.reset(), other.reset(), "the same as by DummyVecEnv")
        require_equal(env.reset_infos, other.reset_infos, "the same infos")
        require_equal(env.get_attr("resets"), other.get_attr("resets"), "one reset of each env")
    assert env.get_attr("resets", indices=0)[0][-1] == (8, {"level": 1})
    env.close()


@backends
def test_options_of_each_env_for_the_first_reset(backend):
    each = [{"level": 1}, {}, {"level": 2}]
    env, other = ShoalVecEnv(creators(3), **backend), DummyVecEnv(creators(3))
    for vec_env in (env, other):
        vec_env.seed(5)
        vec_env.set_options(each)
    require_equal(env.reset(), other.reset(), "the same as by DummyVecEnv")
    # A vec begins as a whole, so some envs have been reset before, but never with the options of another.
    assert env.get_attr("resets") == [
        [(5, None), (5, {"level": 1})],
        [(6, None)],
        [(7, None), (7, {"level": 2})],
    ]
    env.set_options([{}, {}])
    with pytest.raises(ArgumentError, match="options: expected a dict, or one for each of 3 envs, got 2"):
        env.reset()
    env.close()


@backends
def test_halves_of_a_step(backend):
    env = ShoalVecEnv([Ending] * 2, **backend)
    with pytest.raises(NothingPending, match=r"call async_reset\(\) or send\(\) before recv\(\)"):
        env.step_wait()
    env.reset()
    env.step_async([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way: call recv\(\) before"):
        env.step_async([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way: call recv\(\) before call"):
        env.get_attr("moment")
    assert env.step_wait()[0].tolist() == [[1], [1]]
    env.step_async([0, 0])
    env.set_options([{"level": 1}, {}])
    assert env.reset().tolist() == [[0], [0]]  # what was under way is dropped
    assert env.step([0, 0])[0].tolist() == [[1], [1]]
    with pytest.raises(ActionError, match="expected integers from 0 to 3, got 4"):
        env.step([0, 4])
    assert env.step([0, 0])[0].tolist() == [[2], [2]]
    env.close()


@needs_processes
def test_waiting_is_time_in_steps():
    env = ShoalVecEnv([Ending] * 2, num_workers=2)
    env.reset()
    before = env._vec.stats()
    for _ in range(5):
        env.step([0, 1])
    after = env._vec.stats()
    spent = {name: after[name] - before[name] for name in ("seconds_in_step", "seconds_waiting")}
    assert spent["seconds_in_step"] >= spent["seconds_waiting"] > 0
    assert (after["vector_steps"], after["transitions"], after["episodes"]) == (5, 10, 5)
    env.close()


@backends
def test_close_in_any_state(backend):
    env = ShoalVecEnv(creators(2), **backend)
    env.reset()
    env.step_async([0, 0])
    env.close()
    env.close()
    with pytest.raises(Closed, match="the vec has been closed: make a new one"):
        env.reset()


class Brittle(Ending):
    def step(self, action):
        if action == 3:
            raise OSError("broken")
        return super().step(action)


@backends
def test_an_env_that_raises(backend):
    env = ShoalVecEnv([Brittle] * 2, **backend)
    env.reset()
    with pytest.raises(OSError, match="broken"):
        env.step([0, 3])
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step([0, 0])
    env.set_options([{"level": 1}, {}])
    assert env.reset().tolist() == [[0], [0]]
    assert env.step([0, 0])[0].tolist() == [[1], [1]]
    env.close()


@needs_processes
def test_an_env_whose_worker_is_replaced():
    env = ShoalVecEnv([Brittle] * 2, num_workers=2, on_error="restart")
    env.reset()
    env.step([0, 0])
    assert env.get_attr("moment", indices=1) == [1]
    with pytest.warns(RestartWarning, match="broken"):
        obs, _, dones, infos = env.step([0, 3])
    assert (obs.tolist(), dones.tolist()) == ([[2], [0]], [False, True])
    assert infos[1] == {"restarted": True, "TimeLimit.truncated": True, "terminal_observation": np.ones(1)}
    assert env.get_attr("moment", indices=[1, 0]) == [0, 2]
    env.close()
