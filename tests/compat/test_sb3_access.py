"""A vec as a VecEnv: methods, attributes, wrappers and pictures of its envs."""

import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecNormalize,
)

import shoal
from shoal.compat.sb3 import ShoalVecEnv, as_vec_env
from shoal.errors import (
    EnvsElsewhere,
)
from tests.compat.sb3_envs import (
    WITH_PARENT,
    Pair,
    Tick,
    Tock,
    Walk,
    backends,
    creators,
    needs_processes,
    workers,
    wrapped,
)

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@backends
def test_methods_of_some_envs(backend):
    env = ShoalVecEnv([partial(wrapped, number) for number in range(4)], **backend)
    assert env.env_method("count") == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert env.env_method("count", 2, indices=[3, 1], times=2) == [(3, 5), (1, 5)]
    assert env.env_method("count", indices=-1) == [(3, 6)]
    assert env.env_method("count", indices=iter((0, 2))) == [(0, 2), (2, 2)]
    assert env.env_method("count", indices=[]) == []
    assert env.get_attr("calls") == [2, 5, 2, 6]
    assert env.get_attr("calls", indices=np.array([1, 1, -2])) == [5, 5, 2]
    for where in (None, [2]):
        with pytest.raises(LookupError, match="nothing in"):
            env.env_method("fail", indices=where)
    with pytest.raises(IndexError, match="out of range"):
        env.env_method("count", indices=[4])
    env.close()


@backends
def test_attributes_of_some_envs(backend):
    env = ShoalVecEnv([partial(wrapped, number) for number in range(3)], **backend)
    assert env.get_attr("number", indices=[2, 0]) == [2, 0]
    assert env.get_attr("ticks") == [7, 7, 7]
    env.set_attr("number", 9, indices=[0, -1])
    assert env.get_attr("number") == [9, 1, 9]
    assert env.env_method("count") == [(9, 1), (1, 1), (9, 1)]  # set where it is, not at the wrapper
    env.set_attr("fresh", [1, 2])
    assert env.get_attr("fresh") == [[1, 2]] * 3
    assert env.has_attr("fresh")
    assert env.has_attr("ticks")
    assert env.has_attr("number")
    assert not env.has_attr("tocks")
    env.set_attr("rare", 1, indices=1)
    assert not env.has_attr("rare")
    assert env.get_attr("rare", indices=1) == [1]
    for where in (None, 0):
        with pytest.raises(AttributeError, match="rare"):
            env.get_attr("rare", indices=where)
    env.close()


@backends
def test_wrappers_of_each_env(backend):
    def plain():
        return Walk()

    env = ShoalVecEnv([plain, lambda: Tock(plain()), lambda: Tick(Tock(plain()))], **backend)
    assert env.env_is_wrapped(Tick) == [False, True, True]
    assert env.env_is_wrapped(Tock, indices=[2, 0]) == [True, False]
    assert env.env_is_wrapped(Monitor, indices=1) == [False]
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, True, True]
    env.close()


def test_the_envs_themselves():
    env = ShoalVecEnv([lambda each=each: Monitor(each()) for each in creators(3)], backend="serial")
    assert [type(each) for each in env.envs] == [Monitor] * 3
    assert [each.unwrapped.number for each in VecNormalize(VecCheckNan(env)).envs] == [0, 1, 2]
    env.envs[1].unwrapped.calls = 5
    assert env.get_attr("calls") == [0, 5, 0]
    env.close()


def test_the_envs_themselves_of_agents():
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", backend="serial")
    env = as_vec_env(vec)
    assert len(env.envs) == env.num_envs == 4
    assert env.envs[0] is env.envs[1] is not env.envs[2]
    env.close()


@pytest.mark.parametrize("backend", [workers, WITH_PARENT])
def test_envs_of_workers_are_not_here(backend):
    env = ShoalVecEnv(creators(2), **backend)
    for each in (env, VecNormalize(env)):
        assert not hasattr(each, "envs")
        text = r"envs of a Multiprocessing run in worker processes.* get_attr\(\), .*backend='serial'"
        with pytest.raises(EnvsElsewhere, match=text):
            each.envs  # noqa: B018
    env.close()


@needs_processes
def test_workers_need_not_import_sb3():
    env = ShoalVecEnv(creators(2), num_workers=2)
    assert env.env_is_wrapped(Monitor) == [False, False]
    env.env_method("count", indices=0)
    env.set_attr("calls", 3, indices=1)
    assert env.env_method("modules") == [set(), set()]
    env.close()


def test_nothing_is_left_at_the_envs(monkeypatch):
    monkeypatch.delattr(gymnasium.Env, "_shoal_run", raising=False)  # by other tests
    env = ShoalVecEnv(creators(2), backend="serial")
    env.env_method("count", indices=0)
    left = [name for walk in env._vec.envs for name in vars(walk) if "shoal" in name]
    assert not left
    env.close()


@backends
def test_pictures_are_tiled(backend):
    env = ShoalVecEnv(creators(3, render_mode="rgb_array"), **backend)
    other = DummyVecEnv(creators(3, render_mode="rgb_array"))
    assert [image.tolist() for image in env.get_images()] == [image.tolist() for image in other.get_images()]
    assert env.render().shape == (4, 6, 3)
    np.testing.assert_array_equal(env.render("rgb_array"), other.render())
    with pytest.warns(UserWarning, match="has to be the same as the environment render mode"):
        assert env.render("ansi") is None
    env.close()


@backends
def test_no_pictures(backend):
    env = ShoalVecEnv(creators(2), **backend)
    assert env.render_mode is None
    with pytest.warns(UserWarning, match="render_mode is None: 'rgb_array' would give images"):
        assert env.get_images() == [None, None]
    with pytest.warns(UserWarning, match="no `render_mode` was passed"):
        assert env.render() is None
    env.close()
