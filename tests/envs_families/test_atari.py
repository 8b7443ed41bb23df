"""Atari games, preprocessed by us and by ale-py's vector env."""

from pathlib import Path

import cv2
import gymnasium
import numpy as np
import pytest
from ale_py.env import AtariEnv
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

import shoal
from shoal import _core
from shoal.envs import ale, atari
from shoal.errors import ArgumentError, EpisodeOver, SnapshotError
from shoal.testing.contract import difference
from tests.conftest import wait_until

NEEDS_WORKERS = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


@pytest.fixture(autouse=True, scope="module")
def _cv2_has_its_threads():
    """Before a test counts threads: OpenCV starts its own when it first makes a frame smaller."""
    cv2.resize(np.zeros((210, 160), np.uint8), (84, 84), interpolation=cv2.INTER_AREA)


def count_threads():
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def one(name, **kwargs):
    return shoal.make(name, backend="serial", env_kwargs=kwargs)


def play(vec, actions, seed=0):
    """What the vec returns for these actions, one after another."""
    yield vec.reset(seed=seed)
    for action in actions:
        yield vec.step(action)


def random_actions(count, num_envs=1, num_actions=4):
    return np.random.default_rng(7).integers(0, num_actions, (count, num_envs))


class ByHand:
    """A game played frame by frame, with the preprocessing written out."""

    def __init__(self, game, *, fires):
        self.env = AtariEnv(
            game,
            frameskip=1,
            repeat_action_probability=0.0,
            obs_type="grayscale",
            max_num_frames_per_episode=108_000,
        )
        self.fires = fires

    def new_game(self, seed=None):
        frame, info = self.env.reset(seed=seed)
        for _ in range(self.env.np_random.integers(1, 31)):
            frame, _, _, _, info = self.env.step(0)
        self.lives, self.seen = info["lives"], frame

    def hold(self, action):
        """Four frames of an action: the reward, whether the game is over and whether a life was lost."""
        total, frames = 0, []
        for _ in range(4):
            frame, reward, over, _, info = self.env.step(action)
            total += reward
            frames.append(frame)
            if over:
                break
        else:
            self.seen = np.maximum(frames[2], frames[3])
        before, self.lives = self.lives, info["lives"]
        return total, over, 0 < self.lives < before

    def small(self):
        return cv2.resize(self.seen, (84, 84), interpolation=cv2.INTER_AREA)

    def begin(self, seed=None, *, goes_on=False):
        if goes_on:
            self.hold(0)
        else:
            self.new_game(seed)
        if self.fires:
            self.hold(1)
            self.hold(2)
        self.stack = [self.small()] * 4
        return np.array(self.stack)

    def step(self, action):
        reward, over, lost = self.hold(action)
        self.stack = [*self.stack[1:], self.small()]
        return np.array(self.stack), np.sign(reward), over, lost


@pytest.mark.parametrize(
    ("name", "fires", "steps"),
    [
        ("breakout", True, 700),
        ("ms-pacman", False, 700),
        ("freeway", False, 200),
    ],
)
def test_every_step_is_what_it_is_by_hand(name, fires, steps):
    hand = ByHand(name.replace("-", "_"), fires=fires)
    with one(f"atari-{name}", full_action_space=False) as vec:
        actions = random_actions(steps, num_actions=vec.single_action_space.n)
        obs, _ = vec.reset(seed=5)
        assert np.array_equal(obs[0], hand.begin(5))
        lives_lost, games, positive = 0, 0, 0
        begins, goes_on = False, False
        for number, action in enumerate(actions):
            obs, rewards, terminations, truncations, _ = vec.step(action)
            assert not truncations[0]
            if begins:
                frames, reward, over, lost = hand.begin(goes_on=goes_on), 0, False, False
            else:
                frames, reward, over, lost = hand.step(action[0])
            assert np.array_equal(obs[0], frames), number
            assert (rewards[0], terminations[0]) == (reward, over or lost), number
            begins, goes_on = over or lost, lost and not over
            lives_lost += goes_on
            games += over
            positive += reward > 0
    # The run has seen what it is to compare.
    if name != "freeway":
        assert lives_lost >= 2
        assert games >= 1
        assert positive >= 2


def test_spaces_are_as_cleanrl_has_them():
    with one("atari-breakout") as vec:
        assert vec.single_observation_space == Box(0, 255, (4, 84, 84), np.uint8)
        assert vec.single_action_space == Discrete(4)
        obs, _ = vec.reset(seed=0)
        assert obs.dtype == np.uint8


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"size": 42}, (4, 42, 42)),
        ({"size": (60, 80)}, (4, 80, 60)),
        ({"stack": 1}, (1, 84, 84)),
        ({"greyscale": False, "stack": 2}, (2, 84, 84, 3)),
    ],
)
@pytest.mark.parametrize("family", ["atari", "ale"])
def test_frames_have_the_shape_asked_for(family, kwargs, shape):
    with one(f"{family}-breakout", **kwargs) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs.shape == (1, *shape)
        assert obs in vec.observation_space
        assert obs.max() > 100


def test_colours_are_those_of_the_screen():
    raw = AtariEnv("breakout", frameskip=1, repeat_action_probability=0.0)
    raw.reset(seed=0)
    screen, *_ = raw.step(0)
    options = {"noop_max": 1, "fire_reset": False, "size": (160, 210), "greyscale": False, "stack": 1}
    with one("atari-breakout", **options) as vec:
        obs, _ = vec.reset(seed=0)
    assert np.array_equal(obs[0, 0], screen)


def test_a_game_goes_on_after_a_lost_life_and_begins_anew_after_the_last():
    lives, frames = [], []
    with one("atari-breakout") as vec:
        _, infos = vec.reset(seed=0)
        while len(lives) < 7:
            begins = ~vec.mask[0]
            *_, infos = vec.step([0])
            if begins:
                lives.append(infos["lives"][0])
                frames.append(infos["episode_frame_number"][0])
    assert lives == [4, 3, 2, 1, 5, 4, 3]
    assert frames[:4] == sorted(frames[:4])
    assert frames[4] <= 30 + 2 * 4


def test_without_episodic_life_an_episode_is_a_game():
    with one("atari-breakout", episodic_life=False) as vec:
        _, infos = vec.reset(seed=0)
        seen = {5}
        terminated = False
        while not terminated:
            _, _, (terminated,), _, infos = vec.step([1])  # FIRE, for each new ball
            seen.add(infos["lives"][0])
        assert seen == {0, 1, 2, 3, 4, 5}


def test_a_seed_begins_a_new_game_whatever_came_before():
    with one("atari-breakout") as vec:
        first, _ = vec.reset(seed=3)
        while not vec.step([0])[2][0]:
            pass
        again, infos = vec.reset(seed=3)
        assert np.array_equal(first, again)
        assert infos["lives"][0] == 5


def test_a_reset_amid_a_life_begins_a_new_game():
    with one("atari-breakout") as vec:
        vec.reset(seed=0)
        for _ in range(12):
            *_, infos = vec.step([0])
        assert infos["episode_frame_number"][0] >= 48
        _, infos = vec.reset()
        assert infos["episode_frame_number"][0] <= 30 + 2 * 4


def test_a_game_cut_short_begins_anew():
    # Not terminated: a wrapper that asks only for that would take a no-op step for ever.
    with one("atari-breakout", max_num_frames_per_episode=60, noop_max=1) as vec:
        vec.reset(seed=0)
        lengths = []
        for _ in range(3):
            length = 0
            truncated = False
            while not truncated:
                _, _, (terminated,), (truncated,), _ = vec.step([0])
                assert not terminated
                length += 1
            lengths.append(length)
            vec.step([0])
    assert lengths[0] == lengths[1] == lengths[2] > 10


def test_fire_begins_the_game():
    def balls_lost(**kwargs):
        with one("atari-breakout", **kwargs) as vec:
            return sum(results[2][0] for results in list(play(vec, [[0]] * 100))[1:])

    assert balls_lost() >= 2
    assert balls_lost(fire_reset=False) == 0


def test_a_new_game_begins_with_no_ops():
    def frames(**kwargs):
        with one("atari-freeway", **kwargs) as vec:
            return [vec.reset(seed=seed)[1]["episode_frame_number"][0] for seed in range(4)]

    assert set(frames(noop_max=0)) == {0}
    assert set(frames(noop_max=1)) == {1}
    counts = frames()
    assert set(counts) <= set(range(1, 31))
    assert len(set(counts)) >= 3


def test_frame_skip_is_the_length_of_a_step():
    for skip in (1, 2, 4):
        with one("atari-freeway", frame_skip=skip, noop_max=0) as vec:
            vec.reset(seed=0)
            assert vec.step([0])[4]["frame_number"][0] == skip


def test_rewards_are_clipped_to_their_sign():
    actions = random_actions(300, num_actions=9)
    with one("atari-ms-pacman") as vec, one("atari-ms-pacman", clip_rewards=False) as plain:
        clipped = [results[1][0] for results in list(play(vec, actions))[1:]]
        whole = [results[1][0] for results in list(play(plain, actions))[1:]]
    assert max(whole) >= 10
    assert clipped == np.sign(whole).tolist()
    assert [atari.sign(reward) for reward in (-7.0, 0.0, 30)] == [-1, 0, 1]


def test_actions_stick_only_if_asked_to():
    def last_frames(vec, seed):
        return list(play(vec, random_actions(60), seed))[-1][0]

    with (
        one("atari-breakout", noop_max=0) as plain,
        one("atari-breakout", noop_max=0, repeat_action_probability=0.5) as sticky,
    ):
        assert np.array_equal(last_frames(plain, 0), last_frames(plain, 1))
        first = last_frames(sticky, 0)
        assert not np.array_equal(first, last_frames(sticky, 1))
        assert np.array_equal(first, last_frames(sticky, 0))


@pytest.mark.parametrize("name", ["backgammon", "video-checkers"])
def test_games_without_a_no_op(name):
    with one(f"atari-{name}") as vec:
        frames = [vec.reset(seed=seed)[1]["frame_number"][0] for seed in range(3)]
        assert len(set(frames)) == 1
        vec.step([0])


def test_rendering():
    with shoal.make("atari-breakout", backend="serial", render_mode="rgb_array") as vec:
        vec.reset(seed=0)
        (frame,) = vec.render()
        assert frame.shape == (210, 160, 3)


def test_continuous_actions_are_refused():
    with pytest.raises(ArgumentError, match=r"continuous: expected False, because a reset"):
        one("atari-breakout", continuous=True)


@pytest.mark.parametrize("family", [atari, ale])
def test_names_are_those_of_games_for_one_player(family):
    names = family.names()
    assert {"breakout", "ms-pacman", "pong"} <= set(names)
    assert names == sorted(names)
    assert not {"combat", "joust", "warlords"} & set(names)  # to load one of these ends the process


def test_envs_are_seeded_each_by_itself_and_reproduce():
    actions = random_actions(100, 2)
    runs = []
    for _ in range(2):
        with shoal.make("atari-breakout", num_envs=2, backend="serial") as vec:
            runs.append(list(play(vec, actions, seed=11)))
    assert difference(*runs) is None
    with one("atari-breakout") as vec:
        alone = list(play(vec, actions[:, 1:2], seed=12))
    assert all(np.array_equal(all_of[0][1], own[0][0]) for all_of, own in zip(runs[0], alone, strict=True))


@NEEDS_WORKERS
def test_workers_give_the_same_trajectories():
    actions = random_actions(100, 3)
    make = {"num_envs": 3, "autoreset_mode": "SameStep"}
    with (
        shoal.make("atari-breakout", backend="serial", **make) as serial,
        shoal.make("atari-breakout", num_workers=2, **make) as workers,
    ):
        ended = 0
        for mine, reference in zip(play(workers, actions), play(serial, actions), strict=True):
            assert difference(mine, reference) is None
            ended += len(mine) == 5 and mine[2].sum()
    assert ended >= 4


class Script(gymnasium.Env):
    """Tells of each step what it is told: lives, and whether the game is over then."""

    observation_space = Discrete(100)
    action_space = Discrete(3)

    def __init__(self, *moments):
        self.moments = list(moments)
        self.done = []

    def reset(self, *, seed=None, options=None):
        self.done.append("reset" if seed is None else f"reset {seed}")
        return len(self.done), {"lives": 3}

    def step(self, action):
        self.done.append(int(action))
        lives, terminated, truncated = self.moments.pop(0)
        return len(self.done), 1.0, terminated, truncated, {"lives": lives}


GOES_ON, LOST, OVER, CUT = (3, False, False), (2, False, False), (0, True, False), (2, False, True)


def test_a_life_lost_at_the_end_of_the_game_is_no_life_to_go_on_with():
    env = atari.EpisodicLife(Script(OVER, CUT))
    env.reset()
    assert env.step(1)[2:4] == (True, False)
    env.reset()
    assert env.step(1)[2:4] == (True, True)
    env.reset()
    assert env.env.done == ["reset", 1, "reset", 1, "reset"]


def test_no_lives_left_is_not_yet_the_end():
    env = atari.EpisodicLife(Script((1, False, False), (0, False, False), (0, True, False)))
    env.reset()
    assert [env.step(1)[2] for _ in range(3)] == [True, False, True]


def test_a_life_won_and_lost_is_a_life_lost():
    env = atari.EpisodicLife(Script((4, False, False), (3, False, False)))
    env.reset()
    assert [env.step(1)[2] for _ in range(2)] == [False, True]


@pytest.mark.parametrize("end", [OVER, CUT])
def test_a_game_that_ends_in_the_no_op_after_a_life_begins_anew(end):
    env = atari.EpisodicLife(Script(LOST, end, LOST))
    env.reset()
    env.step(1)
    obs, info = env.reset()
    assert env.env.done == ["reset", 1, 0, "reset"]
    assert (obs, info["lives"]) == (4, 3)
    assert env.step(1)[2]  # counted from the lives of the new game


def test_a_seed_after_a_lost_life_is_not_forgotten():
    env = atari.EpisodicLife(Script(LOST))
    env.reset(seed=1)
    env.step(1)
    env.reset(seed=2)
    assert env.env.done == ["reset 1", 1, "reset 2"]


@pytest.mark.parametrize(
    ("moments", "done"),
    [
        ((GOES_ON, GOES_ON), ["reset 1", 1, 2]),
        ((OVER, GOES_ON), ["reset 1", 1, "reset", 2]),
        ((GOES_ON, OVER), ["reset 1", 1, 2, "reset"]),
        ((GOES_ON, CUT), ["reset 1", 1, 2, "reset"]),
        ((GOES_ON, LOST, GOES_ON), ["reset 1", 1, 2, 0]),
    ],
)
def test_a_game_that_ends_while_fire_is_pressed_is_reset(moments, done):
    env = atari.FireReset(atari.EpisodicLife(Script(*moments)))
    obs, _ = env.reset(seed=1)
    assert env.env.env.done == done
    assert obs == len(done)


# -- ale-py's own vector env ---------------------------------------------------------------------------------


@pytest.fixture
def direct(monkeypatch):
    """Makes ale-py's vector env as it is."""
    monkeypatch.setattr(AtariVectorEnv, "metadata", {}, raising=False)  # else it writes into VectorEnv's own

    def make(mode="NextStep"):
        return AtariVectorEnv("breakout", 2, autoreset_mode=mode, episodic_life=True)

    return make


def same(mine, theirs):
    """Compare what a vec and ale-py have returned."""
    *arrays, infos = mine
    *expected, their_infos = theirs
    for own, their in zip(arrays, expected, strict=True):
        assert np.array_equal(own, their)
    for key in ("lives", "frame_number", "episode_frame_number"):
        assert np.array_equal(infos[key], their_infos[key])
        assert infos[f"_{key}"].all()


def test_ale_is_what_ale_py_gives(direct):
    actions = random_actions(100, 2)
    theirs = direct()
    with shoal.make("ale-breakout", num_envs=2) as vec:
        assert isinstance(vec, shoal.Serial)
        assert (vec.single_observation_space, vec.single_action_space) == (
            theirs.single_observation_space,
            theirs.single_action_space,
        )
        ended = 0
        for mine, reference in zip(play(vec, actions), play(theirs, actions), strict=True):
            same(mine, reference)
            ended += len(mine) == 5 and mine[2].sum()
        assert mine[1].dtype == np.float64
        assert "env_id" not in mine[4]
    assert ended >= 4


def test_ale_in_the_same_step_has_final_observations_where_episodes_end(direct):
    actions = random_actions(100, 2)
    theirs = direct("SameStep")
    with shoal.make("ale-breakout", num_envs=2, autoreset_mode="SameStep") as vec:
        ended = 0
        for mine, reference in zip(play(vec, actions), play(theirs, actions), strict=True):
            same(mine, reference)
            if "final_obs" not in reference[-1]:
                assert "final_obs" not in mine[-1]
                continue
            done = mine[2] | mine[3]
            assert mine[4]["_final_obs"].tolist() == done.tolist()
            for row in range(2):
                final = mine[4]["final_obs"][row]
                assert np.array_equal(final, reference[4]["final_obs"][row]) if done[row] else final is None
            ended += done.sum()
    assert ended >= 4


def test_ale_disabled_leaves_resets_to_the_caller(direct):
    actions = random_actions(100, 2)
    theirs = direct()
    with shoal.make("ale-breakout", num_envs=2, autoreset_mode="Disabled") as vec:
        assert vec.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        obs, _ = vec.reset(seed=0)
        theirs.reset(seed=0)
        resets = 0
        for action in actions:
            if not vec.mask.all():
                with pytest.raises(EpisodeOver, match=r"have finished and autoreset is DISABLED"):
                    vec.step(action)
                mine, infos = vec.reset(options={"reset_mask": ~vec.mask})
                begun = infos["_lives"]
                reference, their_infos = theirs.reset(options={"reset_mask": begun})
                assert np.array_equal(mine, reference)
                assert np.array_equal(mine[~begun], obs[~begun])
                assert infos["lives"][begun].tolist() == their_infos["lives"][begun].tolist()
                resets += begun.sum()
            results = vec.step(action)
            obs = results[0]
            same(results, theirs.step(action))
    assert resets >= 4


def test_ale_seeds_each_env_by_itself():
    with shoal.make("ale-breakout", num_envs=4) as vec:
        first, _ = vec.reset(seed=20)
        second, _ = vec.reset(seed=[23, 22, 21, 20])
        assert np.array_equal(second, first[::-1])
        chosen = np.array([False, True, False, True])
        third, infos = vec.reset(seed=20, options={"reset_mask": chosen})
        assert np.array_equal(third[chosen], first[chosen])
        assert np.array_equal(third[~chosen], second[~chosen])
        assert infos["_lives"].tolist() == chosen.tolist()
        fourth, _ = vec.reset(seed=[20, None, 22, None])
        assert np.array_equal(fourth[::2], first[::2])


def test_ale_without_a_seed_goes_on_with_its_random_streams():
    def frames(vec):
        return vec.reset()[1]["episode_frame_number"].tolist()

    with shoal.make("ale-breakout", num_envs=2) as vec, shoal.make("ale-breakout", num_envs=2) as other:
        vec.reset(seed=0)
        other.reset(seed=0)
        counts = [frames(vec) for _ in range(5)]
        assert counts == [frames(other) for _ in range(5)]
        assert len(set(map(tuple, counts))) > 1


def test_ale_takes_large_seeds_and_refuses_negative_ones():
    with shoal.make("ale-breakout", num_envs=2) as vec:
        first, _ = vec.reset(seed=2**31 + 1)
        again, _ = vec.reset(seed=2**31 + 1)
        assert np.array_equal(first, again)
        with pytest.raises(ArgumentError, match=r"seed: expected integers that are not negative, got -1"):
            vec.reset(seed=-1)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_ale_ends_its_threads_at_close(mode):
    before = count_threads()
    vec = shoal.make("ale-breakout", num_envs=2, autoreset_mode=mode, env_kwargs={"num_threads": 2})
    vec.reset(seed=0)
    vec.step([0, 0])
    assert count_threads() > before
    vec.close()
    assert wait_until(lambda: count_threads() == before, 10)


def test_ale_leaves_the_metadata_of_other_vector_envs_alone():
    shoal.make("ale-breakout", num_envs=1, autoreset_mode="SameStep").close()
    assert "autoreset_mode" not in gymnasium.vector.VectorEnv.metadata


def test_ale_arguments_reach_ale_py():
    actions = random_actions(250, 1, 9)
    with one("ale-ms-pacman", clip_rewards=False, episodic_life=False, frame_skip=2) as vec:
        results = list(play(vec, actions))
    assert max(rewards[0] for _, rewards, *_ in results[1:]) >= 10
    frames = [infos["frame_number"][0] for *_, infos in results]
    assert np.diff(frames).tolist() == [2] * 250


@pytest.mark.parametrize("argument", ["batch_size", "life_loss_info"])
def test_ale_refuses_what_a_vec_cannot_keep(argument):
    with pytest.raises(ArgumentError, match=rf"{argument}: a vec steps all envs"):
        shoal.make("ale-breakout", num_envs=2, env_kwargs={argument: 1})


def test_ale_cannot_render():
    with pytest.raises(ArgumentError, match=r"render_mode: .* Use 'atari-breakout'"):
        shoal.make("ale-breakout", num_envs=2, render_mode="rgb_array")


def test_ale_says_that_its_envs_are_out_of_reach():
    with shoal.make("ale-breakout", num_envs=2) as vec:
        vec.reset(seed=0)
        with pytest.raises(AttributeError, match=r"lives: ale-py's envs are stepped in C\+\+"):
            vec.get_attr("lives")
        with pytest.raises(AttributeError, match=r"lives: ale-py's envs are stepped in C\+\+"):
            vec.set_attr("lives", 3)
        with pytest.raises(SnapshotError, match=r"cannot be pickled"):
            vec.snapshot()
        vec.step([0, 1])


@NEEDS_WORKERS
def test_ale_on_workers_gives_the_same_trajectories():
    actions = random_actions(60, 2)
    with (
        shoal.make("ale-breakout", num_envs=2) as serial,
        shoal.make("ale-breakout", num_envs=2, num_workers=2) as workers,
    ):
        assert isinstance(workers, shoal.Multiprocessing)
        for mine, reference in zip(play(workers, actions), play(serial, actions), strict=True):
            assert difference(mine, reference) is None


def test_ale_episode_statistics():
    with shoal.make("ale-breakout", num_envs=2, episode_stats=True) as vec:
        vec.reset(seed=0)
        returns, found = np.zeros(2), 0
        for action in random_actions(120, 2):
            _, rewards, terminations, _, infos = vec.step(action)
            returns += rewards
            if terminations.any():
                assert infos["episode"]["r"][terminations].tolist() == returns[terminations].tolist()
                returns[terminations] = 0
                found += terminations.sum()
    assert found >= 3


def test_the_score_of_a_game_is_told_when_it_ends():
    lives, score, scores = 0, 0.0, []
    raw = atari.create("breakout", clip_rewards=False, fire_reset=False, noop_max=0)
    raw.reset(seed=0)
    raw.action_space.seed(0)
    while len(scores) < 2:
        _, reward, terminated, truncated, info = raw.step(raw.action_space.sample())
        score += reward
        if terminated or truncated:
            lives += 1
            if "score" in info:
                scores.append(info["score"])
                assert (lives, info["score"]) == (5, score)
                lives, score = 0, 0.0
            raw.reset()
    assert max(scores) > 0
    raw.close()


@pytest.mark.parametrize("name", ["atari-pong", "ale-pong"])
@pytest.mark.parametrize("wrong", ["clip_reward", "frameskip"])
def test_an_argument_of_another_name_is_refused_with_the_right_ones(name, wrong):
    with pytest.raises(ArgumentError, match=f"^{wrong}: expected clip_rewards, episodic_.*repeat_action"):
        shoal.make(name, env_kwargs={wrong: 1})
