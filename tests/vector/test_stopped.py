"""Processes that are stopped (SIGSTOP), and launchers that die again and again."""

import os
import signal
import time

import pytest
from tests.conftest import wait_until
from tests.vector.scripts import METHODS, said_by, start_script

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

BEGIN = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
import shoal
from shoal.errors import WorkerDied
from shoal.testing import SentinelEnv

class Env(SentinelEnv):
    def pid(self):
        return os.getpid()

def launcher_of(worker):
    return int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])

def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)

def make():
    creators = [partial(Env, i, 10**6) for i in range(2)]
    vec = shoal.Multiprocessing(creators, num_workers=2, start_method="METHOD")
    vec.reset(seed=0)
    return vec
"""


def run(code, method="forkserver"):
    return said_by((BEGIN + code).replace("METHOD", method)).splitlines()


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_launcher_delays_neither_a_new_worker_nor_close_nor_exit(method):
    """Numbers 2 and 5 of our list: a worker dies while the launcher is stopped; then close, and exit."""
    code = """
vec = make()
workers = vec.call("pid")
stop(launcher_of(workers[0]))
os.kill(workers[0], signal.SIGKILL)
try:
    vec.step([0, 0])
except WorkerDied as error:
    print(error.exit_code)
vec.reset(seed=0)
print(vec.step([0, 0])[0][:, 2].tolist())

workers = vec.call("pid")
stop(launcher_of(workers[0]))
begun = time.monotonic()
vec.close()
print(time.monotonic() - begun < 10)  # it was 21 s, and is some milliseconds
print(any(Path(f"/proc/{worker}").exists() for worker in workers))

vec = make()
stop(launcher_of(vec.call("pid")[0]))
"""
    assert run(code, method) == ["-9", "[1, 1]", "True", "False"]


def test_05_launchers_that_die_leave_no_descriptor():
    code = """
def descriptors():
    return len(os.listdir("/proc/self/fd"))

vec = make()
before = descriptors()
for _ in range(2):
    workers = vec.call("pid")
    os.kill(launcher_of(workers[0]), signal.SIGKILL)
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.001)
    try:
        vec.step([0, 0])
    except WorkerDied:
        vec.reset(seed=0)
print(descriptors() - before)
vec.close()
"""
    assert run(code) == ["0"]


WAITING = """
class Waiting(Env):
    def step(self, action):
        if self.env_id == 1:
            Path("in").touch()
            while not Path("go").exists():
                time.sleep(0.001)
        return super().step(action)

creators = [partial(Waiting, i, 10**6) for i in range(2)]
with shoal.Multiprocessing(creators, num_workers=2, **OPTIONS) as vec:
    vec.async_reset(seed=0)
    batches = [vec.recv() for _ in range(2 // vec.batch_size)]
    for batch in batches:
        vec.send([0] * vec.batch_size, batch.env_ids)
    while not Path("in").exists():
        time.sleep(0.001)
    vec._engine._calls.timeout = 2.0  # from now on: the start may take any time
    for _ in batches:
        vec.recv()
print("fine")
"""


def test_03_time_in_which_all_processes_were_stopped_does_not_count(tmp_path):
    """As by Ctrl-Z and fg, for longer than `timeout`."""
    started = []
    for number, options in enumerate(({}, {"batch_size": 1, "order": "ready"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = (BEGIN + WAITING).replace("METHOD", "forkserver").replace("OPTIONS", repr(options))
        started.append((folder, start_script(code, folder)))
    for folder, process in started:
        assert wait_until((folder / "in").exists, 60)
        os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(2.5)  # beyond `timeout`
    for folder, process in started:
        (folder / "go").touch()
        os.killpg(process.pid, signal.SIGCONT)
        said, errors = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "fine\n"), errors
