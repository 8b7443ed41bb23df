import gymnasium
import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.envs.template import APPLE, DOWN, LEFT, PICKER, RIGHT, UP, Orchard
from shoal.testing import check_env

# One process of pytest's, so that each kernel is compiled and loaded once.
pytestmark = [
    pytest.mark.xdist_group("template"),
    pytest.mark.skipif(_core.NAME != "native", reason="without the core, nothing is compiled"),
]

CALM = {"wind": 0.0}
SMALL = {"size": 2, "apples": 3}  # the picker, and apples everywhere else
# Other constants are another kernel, which takes seconds to compile: small orchards run uncompiled.
small = {"num_envs": 1, "env_kwargs": {**CALM, **SMALL}, "debug": True}

# Into the corner, and from there through all cells.
WHOLE_WAY = [UP] * 4 + [LEFT] * 4 + ([RIGHT] * 4 + [DOWN] + [LEFT] * 4 + [DOWN]) * 2 + [RIGHT] * 4


def places(obs):
    """Row and column of each picker."""
    size = obs["cells"].shape[1]
    return np.divmod((obs["cells"] == PICKER).reshape(-1, size * size).argmax(1), size)


def test_who_goes_everywhere_gets_all_apples():
    with shoal.make(Orchard, num_envs=200, env_kwargs=CALM) as vec:
        vec.reset(seed=0)
        returns, lengths, going = np.zeros(200), np.zeros(200, np.int64), np.ones(200, np.bool_)
        for move in WHOLE_WAY:
            _, rewards, terminations, truncations, _ = vec.step(np.full(200, move))
            returns += np.where(going, rewards, 0.0)
            lengths += going
            going &= ~terminations
            assert not truncations.any()
    assert not going.any()
    assert returns == pytest.approx(6 - 0.01 * lengths)


def test_an_episode_ends_with_the_last_apple():
    with shoal.make(Orchard, **small) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs["left"].tolist() == [3]
        assert sorted(obs["cells"].reshape(-1)) == [APPLE] * 3 + [PICKER]
        (row,), (column,) = places(obs)
        around = [UP if row else DOWN, LEFT if column else RIGHT, DOWN if row else UP]
        for left, move in zip((2, 1, 0), around, strict=True):
            obs, rewards, terminations, truncations, _ = vec.step([move])
            assert obs["left"].tolist() == [left]
            assert rewards == pytest.approx([0.99])
            assert terminations.tolist() == [left == 0]
            assert not truncations.any()


def test_or_when_time_is_up():
    with shoal.make(Orchard, **small) as vec:
        obs, _ = vec.reset(seed=0)
        (row,), _ = places(obs)
        for step in range(1, 17):
            _, rewards, terminations, truncations, _ = vec.step([DOWN if row else UP])  # against the wall
            assert rewards == pytest.approx([-0.01])
            assert truncations.tolist() == [step == 16]
            assert not terminations.any()


def test_the_wind_is_each_envs_own():
    with shoal.make(Orchard, num_envs=1000, env_kwargs={"wind": np.repeat([0.0, 1.0], 500)}) as vec:
        obs, _ = vec.reset(seed=0)
        before, _ = places(obs)
        obs, *_ = vec.step(np.full(1000, UP))
        after, _ = places(obs)
        assert (after[:500] == np.maximum(before[:500] - 1, 0)).all()
        blown_down = (after[500:] > before[500:]).mean()
        assert blown_down == pytest.approx(0.2, abs=0.07)  # one of four moves, and the lowest row stays

        vec.set_attr("wind", [0.0] * 1000)
        assert vec.get_attr("wind") == (0.0,) * 1000
        obs, *_ = vec.step(np.full(1000, UP))
        assert (places(obs)[0] == np.maximum(after - 1, 0)).all()


@pytest.mark.parametrize(("kwargs", "debug"), [({}, False), (SMALL, True)], ids=["default", "small"])
def test_spaces_follow_the_constants(kwargs, debug):
    with shoal.make(Orchard, num_envs=3, env_kwargs=kwargs, debug=debug) as vec:
        obs, _ = vec.reset(seed=0)
        size = kwargs.get("size", 5)
        assert obs["cells"].shape == (3, size, size)
        for _ in range(50):
            assert obs in vec.observation_space
            assert ((obs["cells"] == APPLE).sum((1, 2)) == obs["left"]).all()
            assert ((obs["cells"] == PICKER).sum((1, 2)) == 1).all()
            obs, *_ = vec.step(vec.action_space.sample())


@pytest.mark.parametrize("apples", [0, 25])
def test_more_apples_than_there_is_room_for_are_refused(apples):
    with pytest.raises(shoal.errors.ArgumentError, match=f"apples: expected 1 to 24, .*got {apples}"):
        shoal.make(Orchard, num_envs=1, env_kwargs={"apples": apples})


def test_uncompiled_it_has_the_same_numbers():
    runs = []
    for debug in (False, True):
        with shoal.make(Orchard, num_envs=4, flat=True, debug=debug) as vec:
            vec.action_space.seed(0)
            run = [(vec.reset(seed=0)[0],)]
            run += [vec.step(vec.action_space.sample())[:4] for _ in range(150)]
            runs.append(run)
    for ours, theirs in zip(*runs, strict=True):
        for array, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(array, other)


def test_one_env_goes_on_as_another_did():
    with shoal.make(Orchard, num_envs=4, seed=0) as vec:
        vec.reset()
        actions = [vec.action_space.sample() for _ in range(30)]
        snapshot = vec.snapshot([2])
        first = [vec.step(action)[1][2] for action in actions]
        vec.restore(snapshot, [0])
        again = [vec.step(action[[2, 1, 2, 3]])[1][0] for action in actions]
    assert first == again
    assert len(set(first)) > 1


def test_its_picture_shows_what_is_there():
    with gymnasium.make_vec("shoal/make", num_envs=2, env=Orchard, render_mode="rgb_array") as vec:
        obs, _ = vec.reset(seed=0)
        frames = vec.render()
    for frame, cells in zip(frames, obs["cells"], strict=True):
        assert frame.shape == (80, 80, 3)
        assert frame.dtype == np.uint8
        for seen, colour in enumerate([(40, 110, 50), (200, 40, 30), (60, 90, 220)]):
            assert ((frame[::16, ::16] == colour).all(-1) == (cells == seen)).all()


def test_it_keeps_the_contract_of_envs():
    check_env(Orchard)
