"""Each of Gymnasium's vector wrappers does around Serial what it does around SyncVectorEnv."""

from copy import deepcopy
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import gymnasium.wrappers as single
import gymnasium.wrappers.vector as gw
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.backends import BACKENDS

import shoal
from shoal.testing import SampleEnv
from shoal.testing.contract import require_equal

CARTPOLE = partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)
CAR = partial(gymnasium.make, "MountainCarContinuous-v0", max_episode_steps=20)


def pictures():
    return SampleEnv(sp.Box(0, 255, (8, 8, 3), np.uint8), sp.Discrete(2))


def nested():
    return SampleEnv(sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(3)}), sp.Discrete(2))


def bounded():
    return SampleEnv(sp.Box(-2, 2, (3,)), sp.Box(-1, 1, (2,)))


WRAPPERS = {
    "RecordEpisodeStatistics": (CARTPOLE, gw.RecordEpisodeStatistics),
    "DictInfoToList": (CARTPOLE, lambda vec: gw.DictInfoToList(gw.RecordEpisodeStatistics(vec))),
    "NormalizeObservation": (CARTPOLE, gw.NormalizeObservation),
    "NormalizeReward": (CARTPOLE, gw.NormalizeReward),
    "TransformObservation": (CARTPOLE, lambda vec: gw.TransformObservation(vec, lambda obs: obs * 2)),
    "VectorizeTransformObservation": (
        CARTPOLE,
        lambda vec: gw.VectorizeTransformObservation(
            vec, single.TransformObservation, func=lambda obs: obs[:2], observation_space=sp.Box(-9, 9, (2,))
        ),
    ),
    "FilterObservation": (nested, lambda vec: gw.FilterObservation(vec, ["a"])),
    "FlattenObservation": (nested, gw.FlattenObservation),
    "GrayscaleObservation": (pictures, gw.GrayscaleObservation),
    "ResizeObservation": (pictures, lambda vec: gw.ResizeObservation(vec, (4, 4))),
    "ReshapeObservation": (pictures, lambda vec: gw.ReshapeObservation(vec, (64, 3))),
    "RescaleObservation": (bounded, lambda vec: gw.RescaleObservation(vec, np.float32(0), np.float32(1))),
    "DtypeObservation": (CARTPOLE, lambda vec: gw.DtypeObservation(vec, np.float64)),
    "TransformAction": (CAR, lambda vec: gw.TransformAction(vec, lambda actions: actions / 2)),
    "VectorizeTransformAction": (
        CAR,
        lambda vec: gw.VectorizeTransformAction(
            vec, single.TransformAction, func=lambda a: a / 2, action_space=vec.single_action_space
        ),
    ),
    "ClipAction": (CAR, gw.ClipAction),
    "RescaleAction": (CAR, lambda vec: gw.RescaleAction(vec, np.float32(0), np.float32(1))),
    "TransformReward": (CARTPOLE, lambda vec: gw.TransformReward(vec, lambda rewards: rewards - 1)),
    "VectorizeTransformReward": (
        CARTPOLE,
        lambda vec: gw.VectorizeTransformReward(vec, single.TransformReward, func=lambda reward: reward - 1),
    ),
    "ClipReward": (CARTPOLE, lambda vec: gw.ClipReward(vec, 0.2, 0.8)),
    "NumpyToTorch": (CARTPOLE, gw.NumpyToTorch),
    "ArrayConversion": (CARTPOLE, lambda vec: gw.ArrayConversion(vec, np, torch)),
}


def test_no_wrapper_of_gymnasium_is_left_out():
    special = {"HumanRendering", "RecordVideo", "JaxToNumpy", "JaxToTorch"}  # below; or need an env in JAX
    assert set(WRAPPERS) | special == set(gw.__all__)


def plain(value):
    """Nested values as NumPy, without the seconds that no two runs share."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key != "t"}
    if isinstance(value, sp.GraphInstance):
        return tuple(plain(part) for part in value)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(part) for part in value)
    return value


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper(name):
    create, wrap = WRAPPERS[name]
    ours, theirs = wrap(shoal.Serial([create] * 3)), wrap(SyncVectorEnv([create] * 3))
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    require_equal(plain(ours.reset(seed=1)), plain(theirs.reset(seed=1)), "reset")
    theirs.action_space.seed(1)
    for number in range(50):
        actions = theirs.action_space.sample()
        mine = ours.step(deepcopy(actions))
        require_equal(plain(mine), plain(theirs.step(deepcopy(actions))), f"step {number}")
    ours.close()
    theirs.close()
    assert ours.closed


GRAPH = sp.Graph(sp.Box(0, 1, (2,)), None)
OBJECT_WRAPPERS = {
    "RecordEpisodeStatistics": gw.RecordEpisodeStatistics,
    "DictInfoToList": lambda vec: gw.DictInfoToList(gw.RecordEpisodeStatistics(vec)),
    "FilterObservation": lambda vec: gw.FilterObservation(vec, ["graph"]),
    "TransformObservation": lambda vec: gw.TransformObservation(
        vec, lambda obs: {**obs, "box": obs["box"] * 2}
    ),
    "VectorizeTransformObservation": lambda vec: gw.VectorizeTransformObservation(
        vec, single.TransformObservation, func=lambda obs: obs["graph"], observation_space=GRAPH
    ),
    "NumpyToTorch": gw.NumpyToTorch,
}


@pytest.mark.parametrize(
    "backend", [BACKENDS[name] for name in BACKENDS if name in ("serial", "two workers")]
)
@pytest.mark.parametrize("name", OBJECT_WRAPPERS)
def test_wrapper_around_objects(name, backend):
    def create():
        space = sp.Dict(graph=GRAPH, box=sp.Box(0, 1, (2,)), bag=sp.Sequence(sp.Discrete(4)))
        return SampleEnv(deepcopy(space), sp.Sequence(sp.Box(0, 1, (2,))))

    wrap = OBJECT_WRAPPERS[name]
    ours, theirs = wrap(backend([create] * 3)), wrap(SyncVectorEnv([create] * 3))
    assert ours.observation_space == theirs.observation_space
    require_equal(plain(ours.reset(seed=1)), plain(theirs.reset(seed=1)), "reset")
    for number in range(12):
        actions = theirs.action_space.sample()
        mine = ours.step(deepcopy(actions))
        require_equal(plain(mine), plain(theirs.step(actions)), f"step {number}")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_record_episode_statistics_in_other_modes(mode):
    ours = gw.RecordEpisodeStatistics(shoal.Serial([CARTPOLE] * 2, autoreset_mode=mode))
    theirs = gw.RecordEpisodeStatistics(SyncVectorEnv([CARTPOLE] * 2, autoreset_mode=mode))
    ours.reset(seed=1)
    theirs.reset(seed=1)
    for number in range(50):
        actions = np.array([number % 2, 1])
        mine, reference = ours.step(actions), theirs.step(actions)
        require_equal(plain(mine), plain(reference), f"step {number}")
        done = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and done.any():
            ours.reset()
            theirs.reset()
    assert list(ours.return_queue) == list(theirs.return_queue) != []
    ours.close()
    theirs.close()


def test_observation_wrappers_refuse_same_step_as_around_gymnasium():
    with (
        shoal.Serial(CARTPOLE, autoreset_mode="SameStep") as vec,
        pytest.raises(ValueError, match="autoreset_mode"),
    ):
        gw.NormalizeObservation(vec)


def test_record_video(tmp_path):
    create = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array", max_episode_steps=5)
    vec = gw.RecordVideo(shoal.Serial([create] * 2), str(tmp_path / "videos"), disable_logger=True)
    vec.reset(seed=0)
    for _ in range(12):
        vec.step(vec.action_space.sample())
    vec.close()
    assert list(tmp_path.glob("videos/*.mp4"))


def test_human_rendering(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    create = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    vec = gw.HumanRendering(shoal.Serial([create] * 2))
    vec.reset(seed=0)
    vec.step(vec.action_space.sample())
    vec.close()
    assert vec.closed
