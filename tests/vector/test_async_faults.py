"""The asynchronous pool: envs that raise, hang or die, and workers that are restarted."""

import time
from functools import partial

import numpy as np
import pytest
from tests.conftest import wait_until
from tests.envs import Fragile
from tests.vector.async_pools import actions_for, info_of, pool, run, sentinels
from tests.vector.faulty import LONG, Gate, Gated, Moody, limited, sleeps

from shoal import AutoresetMode, _core
from shoal.errors import (
    ResetNeeded,
    RestartWarning,
    WorkerDied,
    WorkerTimeout,
)
from shoal.processes import calls as calls_module
from shoal.testing import CrashEnv, HangEnv, SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize(("how", "error"), [("raise", ValueError), ("kill", WorkerDied)])
def test_a_failure_comes_out_and_a_reset_helps(how, error, order):
    with pool([partial(Fragile, i, how) for i in range(8)], order=order) as vec:
        for seed in range(2):
            vec.async_reset(seed=seed)
            for _ in range(2):
                vec.send(actions_for(vec.recv()))
            batch = vec.recv()
            actions = actions_for(batch)
            actions[0] = 999
            vec.send(actions)
            with pytest.raises(error, match=r"failed as told|killed by signal 9"):
                run(vec, 10_000)
            with pytest.raises(ResetNeeded, match=r"call async_reset\(\) first"):
                vec.recv()
        vec.async_reset(seed=9)
        assert vec.recv().obs[:, 1:3].tolist() == [[0, 0]] * 4


@pytest.mark.parametrize(("order", "workers", "seconds"), [("fifo", 1, 0.2), ("ready", 2, 1.0)])
def test_a_hang_ends_by_its_timeout(order, workers, seconds):
    """Under ready, the envs of the other worker go on meanwhile."""
    creators = [*sentinels(7), partial(HangEnv, 7, at=2)]
    with pool(creators, num_workers=workers, order=order) as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        vec.send(actions_for(first))
        with (
            limited(vec, seconds),
            pytest.raises(WorkerTimeout, match=rf"has not answered within {seconds:g} s.*last in env 7"),
        ):
            run(vec, 1_000_000)
        vec.async_reset(seed=0)
        assert vec.recv().resets.all()


@pytest.mark.parametrize("state", ["new", "reset", "in hand", "under way", "failed"])
def test_close_in_any_state(state):
    vec = pool([partial(Fragile, i, "raise") for i in range(8)])
    if state != "new":
        vec.async_reset(seed=0)
    if state in ("in hand", "under way", "failed"):
        vec.recv()
    if state in ("under way", "failed"):
        vec.send(np.full(4, 999 if state == "failed" else 0))
    if state == "failed":
        with pytest.raises(ValueError, match="failed as told"):
            run(vec, 2)
    vec.close()
    vec.close()


@pytest.mark.parametrize("infos", [{}, {"a": 1}], ids=["rows only", "infos"])
@pytest.mark.parametrize(
    ("silence", "nap"),
    [
        (60.0, 0.01),
        # All steps together take longer than a worker may be silent, each of them (on a quiet machine) less.
        pytest.param(1.0, 0.15, marks=pytest.mark.slow),
    ],
)
def test_close_waits_for_those_who_go_on(tmp_path, monkeypatch, silence, nap, infos):
    monkeypatch.setattr(calls_module, "GRACE", silence)

    class Slow(SentinelEnv):
        def step(self, action):
            time.sleep(nap)
            (tmp_path / str(self.env_id)).touch()
            return (*super().step(action)[:4], infos)

    vec = pool([partial(Slow, i, LONG) for i in range(8)], num_workers=1, batch_size=1)
    vec.async_reset(seed=0)
    for batch in [vec.recv() for _ in range(8)]:
        vec.send(np.zeros(1, np.int64), env_ids=batch.env_ids)
    vec.close()
    assert len(list(tmp_path.iterdir())) == 8


def step(vec, held):
    vec.send(actions_for(held), env_ids=held.env_ids)
    return vec.recv()


@pytest.mark.parametrize("options", [{}, {"batch_size": None}], ids=["async", "sync"])
def test_an_answer_that_comes_too_late_is_nobodys(options, tmp_path):
    gate = Gate(tmp_path)
    creators = [partial(Gated, i, gate) for i in range(4)]
    with pool(creators, **{"batch_size": 2, "on_error": "restart", **options}) as vec:
        vec.async_reset(seed=0)
        held = vec.recv()
        workers = set(vec.call("pid"))
        with limited(vec, 0.2), pytest.raises(WorkerTimeout, match=r"has not answered within 0.2 s"):
            vec.call("wait")
        gate.open()
        assert wait_until(lambda: gate.reached(2) and all(map(sleeps, workers)), 60)  # both have answered
        with pytest.warns(RestartWarning, match="restarted"):
            batch = step(vec, held)
        if not options:
            batch = vec.recv()
        assert batch.infos["restarted"].all()
        assert batch.obs[:, 2].tolist() == [0] * len(batch.obs)


def test_how_a_worker_died_is_told_though_nothing_of_its_was_under_way():
    with pool(4, batch_size=2, mode="async") as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        vec._engine._workers.launcher.kill(1)
        assert wait_until(lambda: vec._engine._workers.notice_ends() or vec._engine._workers.lost, 60)
        with pytest.raises(WorkerDied, match=r"signal 9.*Call async_reset\(\)"):
            vec.send(actions_for(second), env_ids=second.env_ids)
        assert first.resets.all()


def rows(batch):
    """Of each env: its row, for what it reports."""
    return {int(env): row for row, env in enumerate(batch.env_ids)}


def restarted_envs(vec, fragile, mode):
    """Let one of these fail, and see that everybody goes on from what was last seen."""
    last, failed, restarted = {}, False, []
    for _ in range(200):
        batch = vec.recv()
        actions = actions_for(batch)
        for env, row in rows(batch).items():
            said = info_of(batch.infos, row)
            if "restarted" in said:
                restarted.append(env)
                assert batch.truncations[row]
                assert not batch.resets[row]
                final = said["final_obs"] if mode is AutoresetMode.SAME_STEP else batch.obs[row]
                assert final.tolist() == last[env]
                assert batch.mask[row] == (mode is AutoresetMode.SAME_STEP)
            elif env in last:
                begins = batch.resets[row] or last[env][1] != batch.obs[row, 1]
                assert begins or batch.obs[row, 2] == last[env][2] + 1
            last[env] = batch.obs[row].tolist()
            if env in fragile and not failed and batch.mask[row]:
                failed, actions[row] = True, 999
        vec.send(actions)
    return restarted


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("how", ["kill", "raise"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_every_env_of_a_worker_that_failed_says_so_once(mode, how, order):
    """Whether it was under way, there, or in hand; the others go on."""
    creators = [partial(Fragile, i, how) for i in range(8)]
    with pool(creators, on_error="restart", autoreset_mode=mode, order=order) as vec:
        theirs = {
            env
            for block in vec._engine._workers.blocks[0]
            for env in range(8)[vec._engine.blocks[block].envs]
        }
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.send(actions_for(vec.recv()))
        with pytest.warns(RestartWarning, match=r"worker 0 is restarted \(number 1\)"):
            restarted = restarted_envs(vec, theirs, mode)
        assert sorted(restarted) == sorted(theirs)
        assert vec.stats()["restarts"] == 1


def test_a_worker_that_fails_again_and_again_is_given_up():
    creators = [
        partial(CrashEnv, i, at=1, how="kill") if i == 0 else partial(SentinelEnv, i) for i in range(8)
    ]
    with pool(creators, on_error="restart") as vec:
        vec.async_reset(seed=0)
        with pytest.warns(RestartWarning, match="restarted"), pytest.raises(WorkerDied, match="signal 9"):
            run(vec, 10_000)
        vec.async_reset(seed=0)
        assert vec.recv().resets.all()


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_one_env_that_always_fails_is_given_up_whatever_the_others_do(order):
    creators = [
        partial(CrashEnv, i, at=1, max_length=LONG) if i == 0 else partial(SentinelEnv, i) for i in range(16)
    ]
    with pool(creators, num_workers=2, batch_size=2, order=order, on_error="restart") as vec:
        vec.async_reset(seed=0)
        with pytest.raises(ValueError, match="failed as told"):
            run(vec, 10_000)
        assert vec.stats()["restarts"] == 3


def test_restarts_under_disabled_wait_for_the_caller():
    creators = [partial(Fragile, i, "kill") for i in range(8)]
    with pool(creators, on_error="restart", autoreset_mode="Disabled") as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        actions = actions_for(first)
        actions[0] = 999  # env 0, and with it 1, 4 and 5
        vec.send(actions)
        second = vec.recv()  # in hand when their worker dies
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            batch = vec.recv()
        assert batch.truncations.tolist() == [True, True, False, False]
        vec.send(actions_for(second), env_ids=second.env_ids)
        cut = vec.recv()
        assert cut.env_ids.tolist() == [4, 5, 6, 7]
        assert cut.truncations.tolist() == [True, True, False, False]
        mask = np.zeros(8, bool)
        mask[[0, 1]] = True
        vec.async_reset(options={"reset_mask": mask})
        mask[[4, 5]] = True
        mask[[0, 1]] = False
        vec.async_reset(options={"reset_mask": mask})
        again = vec.recv()
        assert again.env_ids.tolist() == [0, 1, 2, 3]
        assert again.mask.all()
        assert again.obs[:2, 2].tolist() == [0, 0]
        assert again.obs[2:, 2].tolist() == [1, 1]


def test_a_snapshot_knows_nothing_of_what_was_cut_off():
    creators = [partial(Fragile, i, "kill") for i in range(8)]
    with pool(creators, on_error="restart") as vec:

        def fail_in(first):
            actions = actions_for(first)
            actions[0] = 999  # env 0, and with it 1, 4 and 5
            vec.send(actions, env_ids=first.env_ids)

        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        taken = vec.snapshot()
        fail_in(first)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.recv()
        vec.send(actions_for(second), env_ids=second.env_ids)  # the next recv() would tell
        vec.restore(taken)
        for batch in (first, second):
            vec.send(actions_for(batch), env_ids=batch.env_ids)
        first, second = vec.recv(), vec.recv()
        fail_in(first)
        vec.send(actions_for(second), env_ids=second.env_ids)  # nobody is left to begin with 4 and 5
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.recv()
        cut = vec.recv()
        assert cut.truncations.tolist() == [True, True, False, False]
        assert cut.obs[:2].tolist() == second.obs[:2].tolist()


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_fifo_reproduces_itself_though_workers_are_restarted():
    runs = []
    for _ in range(2):
        creators = [partial(Moody, i) for i in range(8)]
        with pool(creators, num_workers=2, batch_size=4, on_error="restart") as vec:
            vec.async_reset(seed=3)
            run = []
            for _ in range(100):
                batch = vec.recv()
                run.append((batch.env_ids.tolist(), batch.obs.tolist(), batch.truncations.tolist()))
                vec.send(actions_for(batch))
            assert vec.stats()["restarts"] > 3
            runs.append(run)
    assert runs[0] == runs[1]


def test_a_worker_that_fails_does_nothing_more():
    """Env 0 raises; those that were sent after it are as they were sent, whenever that is noticed."""
    creators = [partial(Fragile, i, "raise") for i in range(4)]
    with pool(creators, num_workers=1, batch_size=1, on_error="restart") as vec:
        vec.async_reset(seed=0)
        held = [vec.recv() for _ in range(4)]
        vec.send(np.array([999]), env_ids=held[0].env_ids)
        for batch in held[1:]:
            vec.send(np.zeros(1, np.int64), env_ids=batch.env_ids)
        assert wait_until(vec._engine._signals.unread, 60)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            batches = [vec.recv() for _ in range(4)]
        for env, batch in enumerate(batches):
            assert batch.truncations.all()
            assert batch.obs[0, :3].tolist() == [env, 0, 0]
            assert batch.rewards.tolist() == [0]
