"""What a learner sees of a vec is what it sees of Stable-Baselines3's DummyVecEnv."""

import sys
from functools import partial

import cloudpickle
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import shoal
from shoal import AutoresetMode
from shoal.compat.sb3 import ShoalVecEnv, as_vec_env
from shoal.errors import (
    ActionError,
)
from shoal.testing import SentinelEnv
from shoal.testing.contract import require_equal
from tests.compat.sb3_envs import (
    BACKENDS,
    WITH_PARENT,
    backends,
    creators,
)

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

IMAGE = Box(0, 255, (9, 8, 3), np.uint8)
SPACES = {
    "discrete": (Discrete(5), Discrete(3)),
    "discrete from 2": (Box(-1, 1, (2, 2), np.float64), Discrete(3, start=2)),
    "continuous": (Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)),
    "multi-binary": (MultiBinary(4), MultiBinary(3)),
    "multi-discrete": (MultiDiscrete([3, 2]), MultiDiscrete([2, 5])),
    "images": (IMAGE, Discrete(2)),
    "dicts": (Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3), "image": IMAGE}), Discrete(2)),
    "tuples": (Tuple((Discrete(2), Box(-1, 1, (2,)))), Discrete(2)),
    "structured actions": (Discrete(2), Dict({"a": Discrete(2), "b": Tuple((Box(-1, 1, (2,)),))})),
}


def side_by_side(ours, theirs, steps=60):
    """Play both with the same actions, and compare all that a learner can see."""
    assert (ours.num_envs, ours.render_mode) == (theirs.num_envs, theirs.render_mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.seed(3) == theirs.seed(3)
    ours.action_space.seed(3)
    require_equal(ours.reset(), theirs.reset(), "the same first observations")
    require_equal(list(ours.reset_infos), theirs.reset_infos, "the same infos of resets")
    ends = 0
    for step in range(steps):
        actions = [ours.action_space.sample() for _ in range(ours.num_envs)]
        if not isinstance(actions[0], dict):
            actions = np.array(actions)
        mine, others = ours.step(actions), theirs.step(actions)
        for name, one, other in zip(("obs", "rewards", "dones", "infos"), mine, others, strict=True):
            require_equal(one, other, f"the same {name} in step {step}")
        for one, other in zip(mine[3], others[3], strict=True):
            assert {key: type(value) for key, value in one.items()} == {
                key: type(value) for key, value in other.items()
            }
        require_equal(list(ours.reset_infos), theirs.reset_infos, "the same infos of resets")
        ends += mine[2].sum()
    assert ends > steps * ours.num_envs // 10
    require_equal(ours.reset(), theirs.reset(), "the same observations of a reset without a seed")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("spaces", SPACES.values(), ids=SPACES)
@backends
def test_the_same_as_dummy_vec_env(backend, spaces):
    create = creators(4, *spaces)
    side_by_side(ShoalVecEnv(create, **backend), DummyVecEnv(create))


@pytest.mark.parametrize("backend", [*BACKENDS, WITH_PARENT])
def test_a_vec_that_is_there_already(backend):
    create = creators(3)
    vec = shoal.make(create, autoreset_mode=AutoresetMode.SAME_STEP, **backend)
    side_by_side(as_vec_env(vec), DummyVecEnv(create))
    assert vec.closed


WRAPPERS = {
    "VecNormalize": (None, VecNormalize),
    "VecMonitor": (None, VecMonitor),
    "VecFrameStack": (IMAGE, partial(VecFrameStack, n_stack=3)),
    "VecTransposeImage": (IMAGE, VecTransposeImage),
    "VecCheckNan": (None, partial(VecCheckNan, raise_exception=True)),
    "VecExtractDictObs": (SPACES["dicts"][0], partial(VecExtractDictObs, key="a")),
    "several": (IMAGE, lambda env: VecTransposeImage(VecFrameStack(VecMonitor(env), 2))),
}


@pytest.mark.parametrize(("space", "wrapper"), WRAPPERS.values(), ids=WRAPPERS)
@backends
def test_wrappers_of_sb3(backend, space, wrapper, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)  # VecMonitor tells it
    create = creators(3, space)
    side_by_side(wrapper(ShoalVecEnv(create, **backend)), wrapper(DummyVecEnv(create)))


@backends
def test_normalized_observations_are_saved_without_the_envs(backend, tmp_path):
    env = VecNormalize(ShoalVecEnv(creators(2), **backend))
    env.seed(0)
    env.reset()
    env.step([0, 1])
    env.save(str(tmp_path / "normalized"))
    again = VecNormalize.load(str(tmp_path / "normalized"), env.venv)
    np.testing.assert_array_equal(again.obs_rms.mean, env.obs_rms.mean)
    env.close()


@backends
def test_floats_for_whole_numbers(backend):
    env = ShoalVecEnv(creators(2, None, MultiBinary(2)), **backend)
    env.seed(0)
    env.reset()
    env.step(np.array([[0.0, 1.0], [1.0, 1.0]], np.float32))  # as SB3's policies have them
    with pytest.raises(ActionError, match=r"float"):
        env.step(np.array([[0.0, 0.5], [1.0, 1.0]], np.float32))
    env.step(np.array([[0, 1], [1, 1]]))
    env.close()


@backends
@pytest.mark.parametrize("copy", [True, False])
def test_what_is_returned_stays(backend, copy):
    # Each of them has one buffer for all its observations.
    env = ShoalVecEnv([partial(SentinelEnv, number) for number in range(2)], copy=copy, **backend)
    env.seed(0)
    seen, last = [env.reset()], []
    for _ in range(10):
        obs, _, _, infos = env.step([1, 1])
        seen.append(obs)
        last += [info["terminal_observation"] for info in infos if "terminal_observation" in info]
    assert [obs[0, 2] for obs in seen[:2]] == [0, 1]
    assert last
    assert all(final[2] > 0 for final in last)
    assert all((obs[:, 0] == [0, 1]).all() for obs in seen)
    env.close()
