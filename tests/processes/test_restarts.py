"""Restarts in asynchronous pools: several at once, and of workers whose rows are all in hand."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import shoal
from shoal import _core
from shoal.errors import RestartWarning
from tests.conftest import wait_until
from tests.envs import Fragile
from tests.vector.faulty import LONG, Pid

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
