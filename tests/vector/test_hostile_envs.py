"""Envs that fork, close what is not theirs, or reach for the shared memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until

import shoal
from shoal import _core
from shoal.errors import EnvError, ResetNeeded, RestartWarning, WorkerDied
from shoal.testing import SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

LONG = 10**6


# -- a worker that dies when nothing is due of it ----------------------------------------------------------


class Waiting(SentinelEnv):
    """A step waits until a file is there."""

    def __init__(self, env_id, file):
        super().__init__(env_id, LONG)
        self.file = file

    def pid(self):
        return os.getpid()

    def step(self, action):
        while self.file is not None and not self.file.exists():
            time.sleep(0.001)
        return super().step(action)


@pytest.mark.parametrize("verb", ["step", "get_attr"])
def test_02_a_worker_that_dies_after_its_answer_is_told_of_once(tmp_path, verb):
    """While the other worker is still waited for."""
    file = tmp_path / "go"
    with shoal.Multiprocessing([partial(Waiting, 0, None), partial(Waiting, 1, file)], num_workers=2) as vec:
        vec.reset(seed=0)
        dying, _ = vec.call("pid")
        vec.send([0, 0])
        assert wait_until(lambda: not vec._signals.due(0), 20)
        os.kill(dying, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{dying}").exists(), 20)

        def release():
            wait_until(lambda: vec._moving, 20)
            time.sleep(0.3)  # so that the parent looks around meanwhile
            file.touch()

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


class Forking(SentinelEnv):
    """Forks in a verb; parent and child go on alike. The child leaves its pid in a folder."""

    def __init__(self, env_id, verb, folder):
        super().__init__(env_id, LONG)
        self.verb, self.folder = verb, folder
        self.fork("creator")

    def fork(self, verb):
        if verb == self.verb and os.fork() == 0:
            (self.folder / str(os.getpid())).touch()

    def reset(self, **kwargs):
        self.fork("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.fork("step")
        return super().step(action)

    def method(self):
        self.fork("method")
        return self.env_id

    def fail(self):
        self.fork("fail")
        raise ValueError("as told")

    def close(self):
        self.fork("close")


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("method", ["forkserver", "fork"])
@pytest.mark.parametrize("verb", ["creator", "reset", "step", "method", "fail", "close"])
def test_an_env_whose_forked_child_comes_back(verb, method, tmp_path):
    creators = [partial(Forking, i, verb if i in (1, 2) else "", tmp_path) for i in range(4)]
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
    assert wait_until(lambda: any(tmp_path.iterdir()), 20)
    children = [int(path.name) for path in tmp_path.iterdir()]
    assert wait_until(lambda: not any(map(running, children)), 20)


class Scribbling(shoal.Env):
    """Its forked child writes into the rows that it has inherited."""

    observation_space = sp.Box(0, 100, (2,), np.float32)
    action_space = sp.Discrete(2)

    def reset(self, seed=None, options=None):
        self.observations[:] = 1

    def step(self, actions):
        pid = os.fork()
        if pid == 0:
            self.observations[:] = 99
            self.rewards[:] = 99
            os._exit(int(actions[0]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == actions[0]  # it has seen them


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

vec = shoal.Multiprocessing(SentinelEnv, 2, num_workers=2, start_method="METHOD")
vec.reset(seed=0)
with shoal.Serial(Forking) as serial:
    serial.reset(seed=0)
    serial.step([0])
    child = serial.envs[0].child
if child == 0:
    sys.exit(7)  # as a script ends
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(vec.step([0, 0])[0][:, 2].tolist())
vec.close()
"""
    for method in ("forkserver", "fork"):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("METHOD", method)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "7\n[1, 1]\n", "")


# -- an env that closes what is not its own ----------------------------------------------------------------


class Closing(SentinelEnv):
    """An action of 1 closes every descriptor; 2 raises then, 3 hangs then."""

    def step(self, action):
        if action:
            os.closerange(3, 1024)
        if action == 2:
            raise FileNotFoundError(2, "No such file", "map.txt")
        if action == 3:
            time.sleep(3600)
        return super().step(action)


def closing(**options):
    return shoal.Multiprocessing([partial(Closing, i, LONG) for i in range(2)], num_workers=2, **options)


def test_an_env_that_closes_all_descriptors_and_raises():
    with closing() as vec:
        vec.reset(seed=0)
        with pytest.raises(FileNotFoundError, match=r"map\.txt") as caught:
            vec.step([0, 2])
        raised, broken = caught.value.__notes__
        assert raised == "raised by step() of env 1"
        assert "the line between a worker and this process is closed" in broken
        assert 'raise FileNotFoundError(2, "No such file", "map.txt")' in str(caught.value.__cause__)
        vec.reset(seed=0)
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_an_env_that_closes_all_descriptors_and_raises_something_long():
    class Long(Closing):
        def step(self, action):
            os.closerange(3, 1024)
            raise ValueError("much to say " * 1000)

    with shoal.Multiprocessing([SentinelEnv, Long], num_workers=2) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"an env raised ValueError: much to say much to say"):
            vec.step([0, 0])


def test_an_env_that_closes_all_descriptors_and_cannot_send_its_infos():
    with closing() as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match="the line between a worker and this process is closed"):
            vec.step([0, 1])  # the first step has an info
        vec.reset(seed=0)
        vec.step([0, 0])


def test_an_env_that_closes_all_descriptors_and_hangs():
    with closing() as vec:
        vec.reset(seed=0)
        with pytest.raises(WorkerDied, match=r"worker 1.* was ended: the line .* is closed") as caught:
            vec.step([0, 3])
        assert caught.value.exit_code is None
        vec.reset(seed=0)
        vec.step([0, 0])


@pytest.mark.parametrize("action", [1, 2, 3])
def test_an_env_that_closes_all_descriptors_is_restarted(action):
    with closing(on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.warns(RestartWarning, match="worker 1 is restarted"):
            *_, infos = vec.step([0, action])
        assert infos["restarted"].tolist() == [False, True]
        vec.step([0, 0])


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    died, closed = done.stdout.splitlines()
    assert "the line between a worker and this process is closed" in died or "worker 0" in died
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
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'refused'} {'refused'} [1, 1]\n" * 2
