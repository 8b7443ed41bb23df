"""Workers that do not answer in time (numbers: those of our list of failures)."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from tests.conftest import wait_until
from tests.vector.faulty import Gate, Gated, hang, limited, pids, pool, still_works

import shoal
from shoal import _core
from shoal.errors import ResetNeeded, WorkerTimeout
from shoal.processes import calls as calls_module
from shoal.processes import workers as workers_module
from shoal.testing import SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


@pytest.fixture
def short_grace(monkeypatch):
    """Give workers less time to finish what is no longer wanted: here they hang for certain."""
    for module in (workers_module, calls_module):
        monkeypatch.setattr(module, "GRACE", 0.05)


def started_within(timeout, *odd):
    """A pool with a timeout, and more of it if that is too little for the start."""
    while True:
        try:
            vec = pool(*odd, timeout=timeout)
        except WorkerTimeout:
            assert timeout < 60
            timeout *= 4
        else:
            return vec, timeout


def test_03_an_env_that_hangs(tmp_path, short_grace):
    gate = Gate(tmp_path)
    vec, timeout = started_within(1.0, (0, partial(Gated, 0, gate)))
    vec.async_reset(seed=0)
    assert wait_until(lambda: not any(map(vec._engine._signals.due, range(2))), 60)
    vec.recv()
    vec.send([998, 0, 0, 0])
    assert wait_until(gate.reached, 60)
    words = rf"worker 0, which ran envs 0 to 1, has not answered within {timeout:g} s. It was last in env 0"
    with pytest.raises(WorkerTimeout, match=words) as caught:
        vec.recv()
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.env_ids == [0, 1]
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        vec.step([0] * 4)
    vec.close()


def test_03_a_reset_replaces_a_worker_that_hangs():
    with pool(hang(2, 2)) as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)
        vec.send([0] * 4)
        assert wait_until(lambda: not vec._engine._signals.due(0), 60)
        with limited(vec, 0.2), pytest.raises(WorkerTimeout, match=r"worker 1.*not answered within 0.2 s"):
            vec.recv()
        obs, _ = vec.reset(seed=5)
        assert obs[:, 4].tolist() == [5, 6, 7, 8]
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4


def test_03_a_call_that_hangs():
    class Waits(SentinelEnv):
        def wait(self):
            time.sleep(3600)

    with shoal.Multiprocessing([Waits, SentinelEnv], num_workers=2) as vec:
        vec.reset(seed=0)
        with limited(vec, 0.2), pytest.raises(WorkerTimeout, match=r"worker 0.*not answered within 0.2 s"):
            vec.call("wait")
        with pytest.raises(ResetNeeded, match="a worker is lost"):
            vec.step([0, 0])
        vec.reset(seed=0)
        vec.step([0, 0])


def test_03_a_creator_that_hangs(short_grace):
    words = r"worker (\d), which ran env \1, has not answered while it was starting"
    with pytest.raises(WorkerTimeout, match=words):
        shoal.Multiprocessing([partial(time.sleep, 3600)] * 2, num_workers=2, timeout=0.3)


@pytest.mark.parametrize("timeout", [3e6, 1e12])
def test_03_long_timeouts(timeout):
    with pool(timeout=timeout) as vec:
        still_works(vec)


def test_03_a_worker_that_does_not_read():
    with pids() as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[0], signal.SIGSTOP)
        vec._engine._workers.timeout = 0.2  # for the message, which no socket can hold
        with limited(vec, 0.2), pytest.raises(WorkerTimeout, match="worker 0"):
            vec.set_attr("extra", np.zeros(1_000_000))
        vec._engine._workers.timeout = None
        still_works(vec)
