"""A worker dies: what the error says, and how the vec goes on (numbers: those of our list of failures)."""

import os
import signal
from functools import partial

import numpy as np
import pytest
from tests.conftest import wait_until
from tests.envs import Fragile
from tests.vector.faulty import LONG, Gate, Gated, Pid, crash, pids, pool, sleeps, still_works

import shoal
from shoal import _core
from shoal.errors import ResetNeeded, WorkerDied
from shoal.testing import CrashEnv, SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

DEATHS = {
    "kill": (-signal.SIGKILL, r"was killed by signal 9 \(SIGKILL\)"),
    "segfault": (-signal.SIGSEGV, r"was killed by signal 11 \(SIGSEGV\)"),
    "exit": (3, "left with exit code 3"),
}
if "libasan" in os.environ.get("LD_PRELOAD", ""):
    del DEATHS["segfault"]  # the sanitizer makes something else of it


def check_death(vec, verb, how):
    code, text = DEATHS[how]
    with pytest.raises(WorkerDied, match=text) as caught:
        verb()
    assert caught.value.env_ids == [2, 3]
    assert caught.value.exit_code == code
    assert "worker 1, which ran envs 2 to 3" in str(caught.value)
    assert "It was last in env 3" in str(caught.value)
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        vec.step([0] * 4)


def test_02_a_worker_that_dies_in_a_step(capfd):
    with pool((3, partial(Fragile, 3))) as vec:
        for how in DEATHS:
            vec.reset(seed=0)
            vec.set_attr("crash", CrashEnv(3, how=how))
            vec.step([0] * 4)
            vec.step([0] * 4)
            check_death(vec, partial(vec.step, [0, 0, 0, 999]), how)
            still_works(vec)
    capfd.readouterr()  # Python's own words about a crash


def test_02_a_worker_that_dies_in_a_reset():
    with pool(crash(3, 0, "kill")) as vec:
        check_death(vec, vec.reset, "kill")


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_02_an_env_that_ends_its_worker(method, capfd):
    ways = [
        (partial(os._exit, 7), 7, "left with exit code 7"),
        (os.abort, -signal.SIGABRT, r"was killed by signal 6 \(SIGABRT\)"),
        (partial(signal.raise_signal, signal.SIGTERM), -signal.SIGTERM, r"killed by signal 15 \(SIGTERM\)"),
    ]

    class Ending(SentinelEnv):
        def step(self, action):
            ways[action][0]()

    with shoal.Multiprocessing([SentinelEnv, Ending], num_workers=2, start_method=method) as vec:
        for action, (_, code, words) in enumerate(ways if method == "forkserver" else ways[:1]):
            vec.reset(seed=0)
            with pytest.raises(WorkerDied, match=words) as caught:
                vec.step([0, action])
            assert (caught.value.env_ids, caught.value.exit_code) == ([1], code)
    capfd.readouterr()  # Python's own words about a crash


def test_02_a_worker_killed_between_steps():
    with pids() as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"worker 0, which ran envs 0 to 1, was killed by signal 9"):
            vec.step([0] * 4)
        still_works(vec)
        assert len(set(vec.call("pid"))) == 2


def test_02_a_worker_killed_before_a_call():
    with pids() as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[3], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="envs 2 to 3"):
            vec.get_attr("count")
        for verb in (
            partial(vec.step, [0] * 4),
            partial(vec.get_attr, "count"),
            vec.snapshot,
            partial(vec.reset, options={"reset_mask": np.array([True, False, False, False])}),
        ):
            with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
                verb()
        still_works(vec)


def test_02_a_lost_worker_is_replaced_by_restore():
    with pids() as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)
        saved = vec.snapshot()
        os.kill(vec.call("pid")[3], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="envs 2 to 3"):
            vec.step([0] * 4)
        vec.restore(saved)
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2] * 4


def test_02_a_worker_killed_while_it_works_on_a_step_that_is_dropped(tmp_path):
    gate = Gate(tmp_path)
    with pool((0, partial(Gated, 0, gate))) as vec:
        vec.reset(seed=0)
        vec.send([998, 0, 0, 0])
        assert wait_until(gate.reached, 60)
        (reached,) = tmp_path.iterdir()
        os.kill(int(reached.name.rpartition("-")[2]), signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"dropped by reset\(\): WorkerDied"):
            vec.reset(seed=1)
        still_works(vec)


def test_02_several_workers_die_at_once():
    creators = [partial(CrashEnv, i, 2, "kill", max_length=LONG) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=4) as vec:
        for _ in range(3):
            vec.reset(seed=0)
            vec.step([0] * 4)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                vec.step([0] * 4)


def test_15_an_envs_signal_handler_that_raises_while_nobody_has_called(capfd):
    class Alarmed(Pid):
        def reset(self, **kwargs):
            def cry(*_):
                raise ValueError("alarm")

            signal.signal(signal.SIGUSR1, cry)
            return super().reset(**kwargs)

    with shoal.Multiprocessing([partial(Alarmed, i, LONG) for i in range(4)], num_workers=2) as vec:
        vec.reset(seed=0)
        pid = vec.call("pid")[0]
        assert wait_until(lambda: sleeps(pid), 60)
        os.kill(pid, signal.SIGUSR1)
        assert wait_until(lambda: "ValueError: alarm" in capfd.readouterr().err, 60)
        still_works(vec)
