"""on_error="restart": a worker that fails is replaced, and its rows say so."""

import os
import signal
import time
from functools import partial

import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.envs import Fragile
from tests.vector.faulty import (
    LONG,
    FailsAtReset,
    Gate,
    Gated,
    limited,
    pids,
    running,
)

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import RestartWarning, SpaceMismatch, WorkerDied
from shoal.testing import CrashEnv, HangEnv, SentinelEnv
from shoal.testing.check_vector_env import cast_for, check_trajectories
from shoal.testing.contract import difference

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

ACTIONS = np.array([10, 11, 12, 13])


def pool(how="kill", **options):
    creators = [partial(Fragile, i, how) for i in range(4)]
    options = {"num_workers": 2, "on_error": "restart", **options}
    return shoal.Multiprocessing(creators, **options)


def fail(vec, env_id=3):
    actions = ACTIONS.copy()
    actions[env_id] = 999
    with pytest.warns(RestartWarning, match=r"worker \d is restarted"):
        return vec.step(actions)


@pytest.mark.parametrize("how", ["kill", "exit", "raise", "unpicklable"])
def test_next_step(how):
    with pool(how) as vec:
        vec.reset(seed=0)
        last, *_ = vec.step(ACTIONS)
        obs, rewards, terminations, truncations, infos = fail(vec)
        assert obs[2:].tolist() == last[2:].tolist()  # what was last seen
        assert obs[:2, 2].tolist() == [2, 2]  # the other worker has gone on
        assert rewards[2:].tolist() == [0, 0]
        assert terminations.tolist() == [False] * 4
        assert truncations.tolist() == [False, False, True, True]
        assert infos["restarted"].tolist() == [False, False, True, True]
        assert infos["_restarted"].tolist() == [False, False, True, True]
        assert vec.mask.tolist() == [True, True, False, False]
        assert vec.stats()["restarts"] == 1

        obs, rewards, terminations, truncations, infos = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [3, 3, 0, 0]
        assert obs[:, 1].tolist() == [0, 0, 0, 0]
        assert obs[2, 4] not in (-1, 2)  # seeded, but not as before
        assert not truncations.any()
        assert "restarted" not in infos
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [4, 4, 1, 1]
        assert obs[:, 3].tolist() == ACTIONS.tolist()


def test_same_step():
    with pool(autoreset_mode="SameStep", episode_stats=True) as vec:
        vec.reset(seed=0)
        last, first_rewards, *_ = vec.step(ACTIONS)
        obs, rewards, _, truncations, infos = fail(vec)
        assert truncations.tolist() == [False, False, True, True]
        assert rewards[2:].tolist() == [0, 0]
        assert obs[2:, 2].tolist() == [0, 0]  # the next episode has begun
        assert [list(final) for final in infos["final_obs"][2:]] == last[2:].tolist()
        assert infos["restarted"].tolist() == [False, False, True, True]
        assert infos["episode"]["l"].tolist() == [0, 0, 1, 1]
        assert infos["episode"]["r"][2:].tolist() == first_rewards[2:].tolist()
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [3, 3, 1, 1]


def test_disabled():
    with pool(autoreset_mode="Disabled") as vec:
        vec.reset(seed=0)
        *_, truncations, _ = fail(vec)
        assert truncations.tolist() == [False, False, True, True]
        with pytest.raises(shoal.errors.EpisodeOver, match=r"envs \[2, 3\] have finished"):
            vec.step(ACTIONS)
        one = np.array([False, False, True, False])
        obs, _ = vec.reset(options={"reset_mask": one})
        assert obs[:, 2].tolist() == [1, 1, 0, 0]
        assert obs[2, 4] not in (-1, 2)  # its derived seed, though none was given
        obs, _ = vec.reset(seed=9, options={"reset_mask": ~one & [False, False, True, True]})
        assert obs[3, 4] == 12
        vec.step(ACTIONS)


def test_flat():
    with pool(autoreset_mode="SameStep", flat=True) as vec:
        vec.reset(seed=0)
        last, *_ = vec.step(ACTIONS)
        *_, infos = fail(vec)
        assert infos["final_obs"][3].tolist() == last[3].tolist()


def test_an_episode_that_had_ended_does_not_end_twice():
    creators = [partial(Fragile, 0, max_length=1), partial(Fragile, 1)]
    with shoal.Multiprocessing(creators, num_workers=1, on_error="restart") as vec:
        vec.reset(seed=0)
        *_, terminations, truncations, _ = vec.step([0, 0])
        assert (terminations | truncations).tolist() == [True, False]
        vec.send([0, 999])
        with pytest.warns(RestartWarning, match="restarted"):
            batch = vec.recv()
        assert batch.truncations.tolist() == [False, True]
        assert batch.resets.tolist() == [True, False]
        assert vec.step([0, 0])[0][:, 2].tolist() == [0, 0]


def test_a_worker_killed_between_steps():
    with pids(on_error="restart") as vec:
        vec.reset(seed=0)
        vec.step(ACTIONS)
        last, *_ = vec.step(ACTIONS)
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        with pytest.warns(RestartWarning, match="was killed by signal 9"):
            obs, *_, truncations, _ = vec.step(ACTIONS)
        assert truncations.tolist() == [True, True, False, False]
        assert obs[:2].tolist() == last[:2].tolist()  # not what was there before that


def test_hanging():
    creators = [partial(SentinelEnv, 0, LONG), partial(HangEnv, 1, 2, max_length=LONG)]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart") as vec:
        vec.reset(seed=0)
        vec.step([0, 0])
        vec.send([0, 0])
        assert wait_until(lambda: not vec._engine._signals.due(0), 60)
        with limited(vec, 0.2), pytest.warns(RestartWarning, match=r"WorkerTimeout.*It was last in env 1"):
            batch = vec.recv()
        assert batch.truncations.tolist() == [False, True]
        assert vec.step([0, 0])[0][:, 2].tolist() == [3, 0]


def test_a_reset_that_fails_is_done_again_with_another_seed():
    creators = [partial(SentinelEnv, 0), partial(FailsAtReset, 1)]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart") as vec:
        with pytest.warns(RestartWarning, match="ValueError: seed 8 is bad"):
            obs, infos = vec.reset(seed=7)
        assert obs[0, 4] == 7
        assert obs[1, 4] > 100
        assert infos["restarted"].tolist() == [False, True]
        vec.step([0, 0])


def step_on(vec, steps=100):
    for _ in range(steps):
        vec.step(np.zeros(vec.num_envs, np.int64))


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_a_worker_that_always_fails_is_given_up(mode):
    creators = [partial(SentinelEnv, 0, LONG), partial(CrashEnv, 1, 1, "kill")]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart", autoreset_mode=mode) as vec:
        vec.reset(seed=0)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            step_on(vec)
        assert vec.stats()["restarts"] == 3


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_a_worker_that_can_never_be_reset_is_given_up():
    with shoal.Multiprocessing(partial(CrashEnv, 0, 0), on_error="restart") as vec:
        with pytest.raises(ValueError, match="failed as told"):
            vec.reset(seed=0)
        with pytest.raises(ValueError, match="failed as told"):
            vec.reset(seed=0)


def test_the_same_failures_give_the_same_run():
    def run():
        seen = []
        with pool() as vec:
            seen.append(vec.reset(seed=3)[0])
            for number in range(12):
                seen.append(fail(vec, number % 4) if number % 5 == 4 else vec.step(ACTIONS))
        return seen

    first, second = run(), run()
    assert difference(first, second) is None


def test_seeds_differ_between_restarts():
    with pool() as vec:
        vec.reset(seed=0)
        seeds = {0}
        for _ in range(3):
            vec.step(ACTIONS)
            fail(vec, 0)
            seeds.add(int(vec.step(ACTIONS)[0][0, 4]))
            vec.step(ACTIONS)
            vec.step(ACTIONS)
        assert len(seeds) == 4


def test_without_failures_all_is_as_ever():
    check_trajectories(cast_for(partial(shoal.Multiprocessing, num_workers=2, on_error="restart")), 5, 40)


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_mode_survives_many_failures(mode):
    creators = [partial(Fragile, i, "kill" if i else "raise", 5) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart", autoreset_mode=mode) as vec:
        rng = np.random.default_rng(0)
        vec.reset(seed=0)
        for number in range(60):
            over = ~vec.mask
            if mode is AutoresetMode.DISABLED and over.any():
                vec.reset(options={"reset_mask": over})
            actions = rng.integers(0, 900, 4)
            if number % 7 == 6:
                actions[rng.integers(4)] = 999
            obs, *_ = vec.step(actions)
            assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert vec.stats()["restarts"] >= 5


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_all_workers_fail_at_once():
    with pool(num_workers=4) as vec:
        vec.reset(seed=0)
        *_, truncations, _ = vec.step([999] * 4)
        assert truncations.all()
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [0] * 4
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1] * 4


def test_a_slow_worker_writes_no_more_rows_when_it_is_given_up():
    class Slow(SentinelEnv):
        def step(self, action):
            if action == 999:
                time.sleep(0.02)
            return super().step(action)

    creators = [partial(Slow, i, LONG) for i in range(300)]
    with shoal.Multiprocessing(creators, num_workers=1, on_error="restart") as vec:
        vec.reset(seed=0)
        for _ in range(2):
            last = vec.step(np.zeros(300, np.int64))[0]
            # Far less than 300 steps take, and time for some of them.
            with limited(vec, 0.2), pytest.warns(RestartWarning, match="WorkerTimeout"):
                obs = vec.step(np.full(300, 999))[0]
            assert difference(obs, last) is None
            vec.step(np.zeros(300, np.int64))


def test_a_late_worker_is_dead_before_its_restart_is_told(tmp_path):
    """The warning is an error here, so nothing replaces the worker: it must be dead by then all the same."""
    gate = Gate(tmp_path)
    with shoal.Multiprocessing(partial(Gated, 0, gate), on_error="restart", copy=False) as vec:
        vec.reset(seed=0)
        (worker,) = vec.call("pid")
        obs, *_ = vec.step([7])
        seen = obs.copy()
        vec.send([998])
        assert wait_until(gate.reached, 60)
        with limited(vec, 0.05), pytest.raises(RestartWarning, match="WorkerTimeout"):
            vec.recv()
        gate.open()
        assert not running(worker)
        assert difference(obs, seen) is None  # it has written nothing


def test_options_reach_the_reset_that_is_done_again():
    with shoal.Multiprocessing([partial(FailsAtReset, i) for i in range(2)], on_error="restart") as vec:
        with pytest.warns(RestartWarning, match="is bad"):
            _, infos = vec.reset(seed=7, options={"level": 3})
        assert infos["options"]["level"].tolist() == [3, 3]


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_good_steps_between_failures_are_no_failures_in_a_row():
    with pool(autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        for _ in range(6):
            vec.step([10, 11, 12, 999])
            vec.step(ACTIONS)
        assert vec.stats()["restarts"] == 6


def test_the_warning_points_at_the_callers_line():
    with pool() as vec:
        vec.reset(seed=0)
        with pytest.warns(RestartWarning, match="restarted") as caught:
            vec.step([10, 11, 12, 999])
        assert caught[0].filename == __file__


def test_sys_exit_in_an_env_is_a_failure_like_others():
    class Leaves(SentinelEnv):
        def step(self, action):
            if action == 999:
                raise SystemExit(4)
            return super().step(action)

    with shoal.Multiprocessing([partial(Leaves, i, LONG) for i in range(4)], on_error="restart") as vec:
        vec.reset(seed=0)
        assert fail(vec)[3].any()


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_spaces_that_change_with_a_restart(tmp_path):
    class Fickle(SentinelEnv):
        def __init__(self, path):
            super().__init__(0, LONG)
            with path.open("a") as file:
                file.write("made\n")
            if len(path.read_text().split()) > 1:
                self.action_space = sp.Discrete(7)

        def step(self, action):
            raise ValueError("broken")

    with shoal.Multiprocessing(partial(Fickle, tmp_path / "count"), on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.raises(SpaceMismatch, match="are not like those before"):
            vec.step([0])


@pytest.mark.parametrize("verb", ["recv", "send"])
def test_warnings_name_the_line_that_called(verb):
    creators = [partial(Fragile, i) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2, batch_size=2, on_error="restart") as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        second = vec.recv()
        vec.send([999, 0], env_ids=first.env_ids)
        while verb == "send" and not vec._engine._workers.lost:
            vec._engine._workers.notice_ends()
        with pytest.warns(RestartWarning, match="restarted") as caught:
            vec.recv() if verb == "recv" else vec.send([0, 0], env_ids=second.env_ids)
        assert caught[0].filename == __file__
