from functools import partial

import gymnasium
import pytest

import shoal
from shoal._core import _reference
from shoal.errors import ArgumentError
from shoal.testing import CrashEnv, SentinelEnv
from shoal.testing.contract import difference

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


def test_time_outside_is_counted_once(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(_reference, "time", watch)
    monkeypatch.setattr(
        "shoal.vector.batch_view.Transitions", _reference.Transitions
    )  # the other's clock is its own
    with shoal.Serial(partial(CrashEnv, 0, 2, max_length=1000)) as vec:
        vec.reset(seed=0)
        vec.step([0])
        watch.now += 10.0
        with pytest.raises(ValueError, match="failed as told"):
            vec.step([0])
        watch.now += 10.0  # after a failure nobody was waiting for a step
        vec.reset(seed=0)
        vec.step([0])
        assert vec.stats()["seconds_outside"] == 10.0


def test_stats_count_transitions_and_not_autoresets():
    with shoal.Serial([partial(SentinelEnv, i, 2) for i in range(3)]) as vec:
        vec.async_reset(seed=0)
        transitions = -3  # the first batch is a reset
        for _ in range(20):
            batch = vec.recv()
            transitions += int((~batch.resets).sum())
            vec.send([0, 0, 0])
        batch = vec.recv()
        transitions += int((~batch.resets).sum()) + 3
        stats = vec.stats()
        assert stats["transitions"] == transitions < 60
        assert stats["vector_steps"] == 20
        assert stats["steps_per_second"] > 0


def test_dropped_steps_do_not_count():
    with shoal.Serial(SentinelEnv, 2) as vec:
        vec.reset(seed=0)
        vec.step([0, 0])
        saved = vec.snapshot()
        vec.send([0, 0])
        vec.async_reset()
        vec.recv()
        vec.send([0, 0])
        vec.restore(saved)
        vec.reset()
        stats = vec.stats()
        assert (stats["vector_steps"], stats["transitions"]) == (1, 2)


def test_episode_stats_are_those_of_gymnasiums_wrapper():
    ours = shoal.Serial([CARTPOLE] * 3, episode_stats=True)
    theirs = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.vector.SyncVectorEnv([CARTPOLE] * 3))
    ours.reset(seed=0)
    theirs.reset(seed=0)
    theirs.action_space.seed(0)
    seen = 0
    for _ in range(200):
        actions = theirs.action_space.sample()
        mine, reference = ours.step(actions)[-1], theirs.step(actions)[-1]
        assert mine.keys() == reference.keys()
        if "episode" in mine:
            seen += 1
            assert difference(mine["_episode"], reference["_episode"]) is None
            for key in "rl":
                assert difference(mine["episode"][key], reference["episode"][key]) is None
            assert (mine["episode"]["t"][mine["_episode"]] > 0).all()
    assert seen > 5
    ours.close()
    theirs.close()


class Watch:
    """A clock that stands still unless told."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_episode_stats_count_the_seconds_of_their_episode(monkeypatch, mode):
    watch = Watch()
    monkeypatch.setattr("shoal.vector.statistics.time", watch)

    def step(vec):
        watch.now += 1.0
        return vec.step([0])[-1]

    create = partial(gymnasium.make, "CartPole-v1", max_episode_steps=3)
    with shoal.Serial(create, autoreset_mode=mode, episode_stats=True) as vec:
        watch.now = 100.0
        vec.reset(seed=0)
        step(vec)
        saved = vec.snapshot()
        watch.now += 1000.0
        vec.restore(saved)  # what happened in between has not happened
        step(vec)
        assert step(vec)["episode"]["t"].tolist() == [3.0]
        if mode == "NextStep":
            step(vec)
        elif mode == "Disabled":
            watch.now += 50.0
            vec.reset()
        step(vec)
        step(vec)
        assert step(vec)["episode"]["t"].tolist() == [3.0]


def test_episode_stats_twice_is_an_error():
    def create():
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=2))

    with shoal.Serial(create, episode_stats=True) as vec:
        vec.reset()
        vec.step([0])
        with pytest.raises(ArgumentError, match=r"the envs already give infos\[.episode.\] themselves"):
            vec.step([0])
