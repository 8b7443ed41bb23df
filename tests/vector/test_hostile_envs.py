"""Envs that fork, close what is not theirs, or reach for the shared memory."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.vector.faulty import LONG, ClosesDescriptors, Forking, Gate, Gated, Scribbling, running
from tests.vector.scripts import said_by

import shoal
from shoal import _core
from shoal.errors import EnvError, ResetNeeded, RestartWarning, WorkerDied
from shoal.processes import workers as workers_module

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


# -- a worker that dies when nothing is due of it ----------------------------------------------------------


@pytest.mark.parametrize("verb", ["step", "get_attr"])
def test_02_a_worker_that_dies_after_its_answer_is_told_of_once(tmp_path, verb):
    """While the other worker is still waited for."""
    gate = Gate(tmp_path)
    with shoal.Multiprocessing([partial(Gated, i, gate) for i in range(2)], num_workers=2) as vec:
        vec.reset(seed=0)
        dying, _ = vec.call("pid")
        vec.send([0, 998])
        assert wait_until(lambda: not vec._engine._signals.due(0), 60)
        os.kill(dying, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{dying}").exists(), 60)

        def release():
            # The parent has noticed it.
            wait_until(lambda: vec._turn_taken and 0 in vec._engine._workers.lost, 60)
            gate.open()

        releasing = threading.Thread(target=release)
        releasing.start()
        assert vec.recv().obs[:, 2].tolist() == [1, 1]
        releasing.join()
        with pytest.raises(WorkerDied, match=r"worker 0, which ran env 0, was killed by signal 9") as caught:
            vec.step([0, 0]) if verb == "step" else vec.get_attr("env_id")
        assert (caught.value.env_ids, caught.value.exit_code) == ([0], -signal.SIGKILL)
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            vec.step([0, 0])
        vec.reset(seed=0)
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


# -- an env that forks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_an_env_whose_forked_child_comes_back(method, tmp_path):
    creators = [partial(Forking, i, i in (1, 2), tmp_path) for i in range(4)]
    vec = shoal.Multiprocessing(creators, num_workers=2, start_method=method)
    vec.reset(seed=5)
    for count in (1, 2, 3):
        obs, *_ = vec.step([10, 11, 12, 13])
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert obs[:, 2].tolist() == [count] * 4
        assert obs[:, 3].tolist() == [10, 11, 12, 13]
    assert vec.call("method") == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="as told"):
        vec.call("fail")
    vec.close()
    for verb in ("creator", "reset", "step", "method", "fail", "close"):
        assert wait_until(lambda verb=verb: any(tmp_path.glob(f"{verb}-*")), 60)
    children = [int(path.name.rpartition("-")[2]) for path in tmp_path.iterdir()]
    assert wait_until(lambda: not any(map(running, children)), 60)


def test_a_forked_child_of_an_env_has_rows_of_its_own():
    with shoal.Multiprocessing([Scribbling, Scribbling], num_workers=2) as vec:
        vec.reset(seed=0)
        obs, rewards, *_ = vec.step([0, 1])
        assert obs.tolist() == [[1, 1], [1, 1]]
        assert rewards.tolist() == [0, 0]


def test_a_child_of_an_env_in_this_process_leaves_the_workers_alone(tmp_path):
    """It inherits the vec, and everything that is done at exit."""
    code = """
import os, sys, shoal
from shoal.testing import SentinelEnv

class Forking(SentinelEnv):
    def step(self, action):
        self.child = os.fork()
        return super().step(action)

for method in ("forkserver", "fork"):
    vec = shoal.Multiprocessing(SentinelEnv, 2, num_workers=2, start_method=method)
    vec.reset(seed=0)
    with shoal.Serial(Forking) as serial:
        serial.reset(seed=0)
        serial.step([0])
        child = serial.envs[0].child
    if child == 0:
        sys.exit(7)  # as a script ends
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(vec.step([0, 0])[0][:, 2].tolist(), flush=True)
    vec.close()
"""
    assert said_by(code, folder=tmp_path) == "7\n[1, 1]\n" * 2


# -- an env that closes what is not its own ----------------------------------------------------------------


def closing(**options):
    creators = [partial(ClosesDescriptors, i, LONG) for i in range(2)]
    return shoal.Multiprocessing(creators, num_workers=2, **options)


def test_an_env_that_closes_all_descriptors(monkeypatch):
    with closing() as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match="the connection between a worker and this process is closed"):
            vec.step([0, 1])  # the first step has an info, which it cannot send

        vec.reset(seed=0)
        with pytest.raises(FileNotFoundError, match=r"map\.txt") as caught:
            vec.step([0, 2])
        raised, broken = caught.value.__notes__
        assert raised == "raised by step() of env 1"
        assert "the connection between a worker and this process is closed" in broken
        assert 'raise FileNotFoundError(2, "No such file", "map.txt")' in str(caught.value.__cause__)

        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"an env raised ValueError: much to say much to say"):
            vec.step([0, 4])

        vec.reset(seed=0)
        monkeypatch.setattr(workers_module, "GRACE", 0.1)  # it hangs for certain
        with pytest.raises(WorkerDied, match=r"worker 1.* was ended: the connection .* is closed") as caught:
            vec.step([0, 3])
        monkeypatch.undo()
        assert caught.value.exit_code is None
        vec.reset(seed=0)
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_an_env_that_closes_all_descriptors_is_restarted():
    with closing(on_error="restart") as vec:
        vec.reset(seed=0)
        for action in (1, 2, 3):
            with pytest.warns(RestartWarning, match="worker 1 is restarted"):
                *_, infos = vec.step([0, action])
            assert infos["restarted"].tolist() == [False, True]
            vec.step([0, 0])
            vec.step([0, 0])
            vec.reset(seed=0)


def test_an_env_that_closes_all_descriptors_of_this_process():
    code = """
import os, shoal
from functools import partial
from shoal.testing import SentinelEnv

class Closing(SentinelEnv):
    def step(self, action):
        if action:
            os.closerange(3, 1024)
        return super().step(action)

vec = shoal.Multiprocessing([partial(Closing, i) for i in range(4)], num_workers=1, parent_steps=True)
vec.reset(seed=0)
try:
    vec.step([1, 0, 0, 0])
    vec.get_attr("env_id")
except shoal.errors.WorkerError as error:
    print(error)
vec.close()
print("closed")
"""
    died, closed = said_by(code).splitlines()
    assert "the connection between a worker and this process is closed" in died or "worker 0" in died
    assert closed == "closed"


# -- the shared memory -------------------------------------------------------------------------------------


TRUNCATING = """
import os, shoal
from functools import partial
from shoal.testing import SentinelEnv

class Truncating(SentinelEnv):
    def truncate(self):
        found = set()
        for entry in os.listdir("/proc/self/fd"):
            try:
                if "memfd:shoal" in os.readlink(f"/proc/self/fd/{entry}"):
                    os.ftruncate(int(entry), 0)
                    found.add("truncated")
            except PermissionError:
                found.add("refused")
            except FileNotFoundError:
                pass
        return found

for options in ({"num_workers": 2}, {"num_workers": 1, "parent_steps": True}):
    with shoal.Multiprocessing([partial(Truncating, i, 10**6) for i in range(2)], **options) as vec:
        vec.reset(seed=0)
        print(*vec.call("truncate"), vec.step([0, 0])[0][:, 2].tolist())
"""


def test_an_env_cannot_truncate_the_shared_memory():
    """Every process that touched the rows would die of SIGBUS."""
    assert said_by(TRUNCATING) == "{'refused'} {'refused'} [1, 1]\n" * 2
