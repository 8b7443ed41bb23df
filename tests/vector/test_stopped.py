"""Processes that are stopped (SIGSTOP), and launchers that die again and again."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.conftest import wait_until

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

METHODS = ("forkserver", "fork", "spawn")

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
    done = subprocess.run(
        [sys.executable, "-c", (BEGIN + code).replace("METHOD", method)],
        capture_output=True,
        text=True,
        timeout=100,  # a guard: none of them waits
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", METHODS)
def test_05_a_stopped_launcher_delays_neither_close_nor_exit(method):
    code = """
vec = make()
workers = vec.call("pid")
stop(launcher_of(workers[0]))
begun = time.monotonic()
vec.close()
print(time.monotonic() - begun < 10)  # it was 21 s, and is some milliseconds
print(any(Path(f"/proc/{worker}").exists() for worker in workers))
vec = make()
stop(launcher_of(vec.call("pid")[0]))
"""
    assert run(code, method) == ["True", "False"]


@pytest.mark.parametrize("method", METHODS)
def test_02_a_worker_that_dies_while_the_launcher_is_stopped(method):
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
"""
    assert run(code, method) == ["-9", "[1, 1]"]


def test_05_launchers_that_die_leave_no_descriptor():
    code = """
def descriptors():
    return len(os.listdir("/proc/self/fd"))

vec = make()
before = descriptors()
for _ in range(3):
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
    def __init__(self, env_id):
        super().__init__(env_id, 10**6)
        self.wait("start")

    def wait(self, verb):
        if verb == "VERB" and self.env_id == 1:
            Path("in").touch()
            while not Path("go").exists():
                time.sleep(0.001)

    def reset(self, **kwargs):
        self.wait("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.wait("step")
        return super().step(action)

    def method(self):
        self.wait("method")

creators = [partial(Waiting, i) for i in range(2)]
with shoal.Multiprocessing(creators, num_workers=2, timeout=10.0, **OPTIONS) as vec:
    if OPTIONS:
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.recv()
            vec.send([0])
    else:
        vec.reset(seed=0)
        vec.step([0, 0])
        vec.call("method")
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "options"), [("step", {}), ("step", {"batch_size": 1, "order": "ready"})], ids=str
)
def test_03_time_in_which_all_processes_were_stopped_does_not_count(verb, options, tmp_path):
    """As by Ctrl-Z and fg, for longer than `timeout`."""
    code = (BEGIN + WAITING).replace("METHOD", "forkserver").replace("VERB", verb)
    process = subprocess.Popen(
        [sys.executable, "-c", code.replace("OPTIONS", repr(options))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert wait_until(lambda: (tmp_path / "in").exists(), 60)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(10.5)  # beyond `timeout`, which must be long enough for a start on a busy machine
    os.killpg(process.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "fine\n"), errors
