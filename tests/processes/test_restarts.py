"""Restarts: several at once, of workers that are lost while no call is under way, and after a snapshot."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import RestartWarning
from shoal.testing.contract import difference
from tests.conftest import wait_until
from tests.envs import Fragile
from tests.vector.faulty import LONG, Pid, pids

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


# The envs of each worker: 0, 2 and 1, 3 under "fifo", 0, 1 and 2, 3 under "ready".
@pytest.mark.parametrize(("order", "first", "second"), [("fifo", [0, 1], [2, 3]), ("ready", [0, 2], [1, 3])])
def test_workers_that_fail_in_one_step_are_restarted_once_each(order, first, second):
    """A failure that was noted while another worker was being replaced is not one of the new worker.

    Both workers are lost when the next batch is sent. Worker 0 is replaced first. Its new envs are reset, and
    the wait for that reset notes that worker 1 will not answer. Then worker 1 is replaced, too.
    """
    creators = [partial(Fragile, i) for i in range(4)]
    options = {"num_workers": 2, "batch_size": 2, "order": order, "autoreset_mode": "SameStep"}
    with shoal.Multiprocessing(creators, on_error="restart", **options) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.recv()
        vec.send([999, 999], env_ids=first)
        workers = vec._engine._workers
        assert wait_until(lambda: workers.notice_ends() or workers.lost == {0, 1}, 60)
        with pytest.warns(RestartWarning, match="is restarted") as caught:
            vec.send([0, 0], env_ids=second)
        batches = [vec.recv(), vec.recv()]  # any warning is an error here
        texts = [str(warning.message).partition(":")[0] for warning in caught]
        assert texts == ["worker 0 is restarted (number 1)", "worker 1 is restarted (number 2)"]
        assert vec.stats()["restarts"] == 2
        for batch in batches:
            assert batch.truncations.all()
            assert batch.infos["restarted"].all()
            vec.send([0, 0], env_ids=batch.env_ids)
        for batch in (vec.recv(), vec.recv()):
            assert batch.obs[:, 2].tolist() == [1, 1]
            assert "restarted" not in batch.infos
        assert vec.stats()["restarts"] == 2


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_a_batch_that_is_cut_off_comes_though_no_worker_is_called(order):
    """The worker was lost while the caller held all rows, so the new worker is not called for this step."""
    creators = [partial(Pid, i, LONG) for i in range(2)]
    options = {"num_workers": 1, "batch_size": 1, "order": order, "on_error": "restart"}
    with shoal.Multiprocessing(creators, **options) as vec, ThreadPoolExecutor(1) as thread:
        vec.async_reset(seed=0)
        vec.recv()
        last = vec.recv()
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        workers = vec._engine._workers
        assert wait_until(lambda: workers.notice_ends() or workers.lost, 60)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.send([0], env_ids=last.env_ids)
        batch = thread.submit(vec.recv)
        try:
            assert wait_until(batch.done, 30)
        finally:
            vec.close()  # ends a wait that would not end
        assert batch.result().env_ids.tolist() == last.env_ids.tolist()
        assert batch.result().infos["restarted"].all()


def kill_idle(vec, worker):
    """Kill a worker between two verbs, and wait until the vec knows."""
    os.kill(worker, signal.SIGKILL)
    workers = vec._engine._workers
    assert wait_until(lambda: workers.notice_ends() or workers.lost, 60)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_partial_reset_reports_a_worker_that_was_lost_before(mode):
    """Worker 1 has envs 2 and 3. Only one of them is chosen."""
    with pids(on_error="restart", autoreset_mode=mode, episode_stats=True) as vec:
        vec.reset(seed=0)
        worker = vec.call("pid")[3]
        last, *_ = vec.step([0] * 4)
        kill_idle(vec, worker)
        with pytest.warns(RestartWarning, match=r"worker 1 is restarted \(number 1\).*signal 9"):
            vec.async_reset(options={"reset_mask": np.array([True, False, True, False])})
        batch = vec.recv()
        lost = [False, False, True, True]
        assert batch.truncations.tolist() == batch.infos["restarted"].tolist() == lost
        assert batch.infos["episode"]["l"].tolist() == [0, 0, 1, 1]
        same_step = mode is AutoresetMode.SAME_STEP
        assert batch.obs[:, 2].tolist() == ([0, 1, 0, 0] if same_step else [0, 1, 1, 1])
        final = batch.infos["final_obs"][2:] if same_step else batch.obs[2:]
        assert np.stack(final).tolist() == last[2:].tolist()
        assert batch.mask.tolist() == [True, True, same_step, same_step]
        assert vec.stats()["restarts"] == 1
        if mode is AutoresetMode.DISABLED:
            vec.reset(options={"reset_mask": ~vec.mask})
        after = 0 if mode is AutoresetMode.NEXT_STEP else 1
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1, 2, after, after]


def test_a_worker_that_was_idle_was_in_no_env():
    with pids(on_error="restart") as vec:
        vec.reset(seed=0)
        worker = vec.call("pid")[3]
        vec.step([0] * 4)
        kill_idle(vec, worker)
        with pytest.warns(RestartWarning, match=r"was killed by signal 9 \(SIGKILL\)\.$"):
            vec.step([0] * 4)


def test_the_first_line_of_the_warning_names_the_env_that_raised():
    creators = [partial(Fragile, i, "raise") for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart") as vec:
        vec.reset(seed=0)
        expected = r"^worker 1 is restarted \(number 1\): step\(\) of env 3 raised ValueError: env 3 failed"
        with pytest.warns(RestartWarning, match=expected):
            vec.step([0, 0, 0, 999])


def test_new_envs_have_the_same_seeds_after_a_snapshot():
    """They depend on the seeds that were given and on the number of restarts before the snapshot."""

    def fail(vec):
        with pytest.warns(RestartWarning, match="worker 1 is restarted"):
            vec.step([0, 0, 0, 999])
        return vec.step([0] * 4)  # resets the new envs

    creators = [partial(Fragile, i) for i in range(4)]
    options = {"num_workers": 2, "on_error": "restart"}
    with (
        shoal.Multiprocessing(creators, **options) as first,
        shoal.Multiprocessing(creators, **options) as second,
    ):
        first.reset(seed=0)
        fail(first)
        first.step([0] * 4)
        second.restore(first.snapshot())
        assert difference(fail(first), fail(second)) is None
