"""Whole scripts with workers: how they end, by themselves, by Ctrl-C or by a kill."""

import os
import signal

import pytest
from tests.conftest import wait_until
from tests.vector.faulty import running
from tests.vector.scripts import METHODS, run_script, said_by, start_script

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

PLAIN = """
import atexit, gymnasium, numpy as np, os, shoal, signal, sys, time
from pathlib import Path

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        if action:
            raise MyError("as asked")
        return np.zeros(1, np.float32), 1.0, False, False, {}
    def close(self):
        Path(f"closed-{os.getpid()}").touch()

class MyError(Exception):
    pass

def make(method):
    vec = shoal.Multiprocessing(Mine, 2, num_workers=2, start_method=method)
    vec.reset(seed=0)
    vec.step([0, 0])
    return vec
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_script_needs_no_main_guard_and_no_close(method, tmp_path):
    code = """
vec = make(sys.argv[1])
try:
    vec.step([0, 1])
except MyError as error:
    print("caught", error)
vec.reset()
"""
    done = run_script(PLAIN + code, method, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught as asked\n", "")
    assert len(list(tmp_path.glob("closed-*"))) == 2  # the envs were closed at exit


def test_an_uncaught_error_ends_the_script_once(tmp_path):
    done = run_script(PLAIN + "make('forkserver').step([0, 1])", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("MyError: as asked") == 2  # where it was raised, and where it came out
    assert done.stderr.count("Traceback (most recent call last)") == 2


def test_a_forked_child_does_not_keep_the_script_from_ending(tmp_path):
    """It never ends by itself: whoever waited for it would wait for ever."""
    code = """
for method in ("fork", "spawn", "forkserver"):
    vec = make(method)
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
    atexit.register(lambda pid=pid: (os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)))
    vec.close()
"""
    said_by(PLAIN + code, folder=tmp_path)


def test_children_that_reap_themselves(tmp_path):
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for method in ("fork", "spawn", "forkserver"):
    make(method).close()
"""
    done = run_script(PLAIN + code, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


HANGING = """
import os, shoal, signal, sys, threading, time
from pathlib import Path
from shoal.testing import SentinelEnv

class Hanging(SentinelEnv):
    def pid(self):
        return os.getpid()
    def step(self, action):
        Path(f"in-step-{os.getpid()}").touch()
        if action:
            time.sleep(3600)
        return super().step(action)

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells switch it off for what runs behind them
vec = shoal.Multiprocessing(Hanging, 4, num_workers=2, start_method="METHOD")
vec.reset(seed=0)
print(*sorted({os.getpid(), *vec.call("pid")}), flush=True)
"""


def start(tmp_path, method, code):
    """Start a script, and wait until both workers are in a step."""
    process = start_script(HANGING.replace("METHOD", method) + code, tmp_path)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3, process.stderr.read()
    assert wait_until(lambda: len(list(tmp_path.glob("in-step-*"))) == 2, 60)
    return process, pids


# A worker that is idle is ended by its line, one in an env by the kernel, whatever started it.
CASES = [("forkserver", 0), ("forkserver", 1), ("fork", 1), ("spawn", 0)]


@pytest.mark.parametrize(("method", "action"), CASES)
def test_05_a_killed_parent_takes_its_workers_with_it(method, tmp_path, action):
    process, pids = start(tmp_path, method, f"vec.send([{action}] * 4); time.sleep(3600)")
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(map(running, pids)), 60)  # usually some milliseconds
    process.communicate()


@pytest.mark.parametrize(("method", "action"), CASES)
def test_06_ctrl_c_ends_a_run_once(method, tmp_path, action):
    process, pids = start(tmp_path, method, f"while True: vec.step([{action}] * 4)\n")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert errors.count("KeyboardInterrupt") == 1
    assert errors.count("Traceback") == 1
    assert wait_until(lambda: not any(map(running, pids)), 60)


def test_a_daemon_thread_in_a_step_does_not_crash_the_end(tmp_path):
    code = """
threading.Thread(target=lambda: vec.step([1] * 4), daemon=True).start()
while len(list(Path(".").glob("in-step-*"))) < 2:
    time.sleep(0.001)
"""
    said_by(HANGING.replace("METHOD", "forkserver") + code, folder=tmp_path)


def test_06_ctrl_c_while_the_launcher_starts(tmp_path):
    code = """
import os, signal, threading, time, warnings
from pathlib import Path
import shoal
from shoal.testing import SentinelEnv
signal.signal(signal.SIGINT, signal.default_int_handler)
# Ctrl-C may come inside Python's own socketpair(), which then drops two open sockets.
warnings.simplefilter("ignore", ResourceWarning)

def interrupt():
    while not Path(f"/proc/self/task/{os.getpid()}/children").read_text():
        time.sleep(0.001)
    os.killpg(os.getpgid(0), signal.SIGINT)

threading.Thread(target=interrupt).start()
shoal.Multiprocessing(SentinelEnv, 2, num_workers=2)
time.sleep(3600)
"""
    process = start_script(code, tmp_path)
    _, errors = process.communicate(timeout=60)
    assert errors.count("Traceback") == 1
    assert errors.count("KeyboardInterrupt") == 1


@pytest.mark.parametrize("method", METHODS)
def test_06_ctrl_c_does_not_reach_an_env(method, tmp_path):
    """Even if every new Python begins with a handler of its own for Ctrl-C."""
    handler = "import signal; signal.signal(signal.SIGINT, lambda *_: 1 / 0)"
    (tmp_path / "sitecustomize.py").write_text(handler)
    code = f"""
        import os, signal
        os.environ["PYTHONPATH"] = os.getcwd()
        import shoal
        from shoal.testing import SentinelEnv

        class Interrupted(SentinelEnv):
            def __init__(self):
                super().__init__(0, 10**6)
                signal.raise_signal(signal.SIGINT)

            def pid(self):
                signal.raise_signal(signal.SIGINT)
                return os.getpid()

            def step(self, action):
                signal.raise_signal(signal.SIGINT)
                return super().step(action)

        with shoal.Multiprocessing(Interrupted, 2, num_workers=2, start_method="{method}") as vec:
            vec.reset(seed=0)
            workers = vec.call("pid")
            for worker in workers:
                os.kill(worker, signal.SIGINT)
            print(vec.step([0, 0])[0][:, 2].tolist(), vec.call("pid") == workers)
        """
    assert said_by(code, folder=tmp_path) == "[1, 1] True\n"


def test_05_a_dead_launcher_is_replaced(tmp_path):
    code = """
from shoal.errors import WorkerDied
worker = vec.call("pid")[0]
launcher = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
os.kill(launcher, signal.SIGKILL)
while Path(f"/proc/{worker}").exists():
    time.sleep(0.001)
try:
    vec.step([0] * 4)
except WorkerDied as error:
    print(error)
print(vec.reset(seed=0)[0][:, 4].tolist())
vec.close()
with shoal.Multiprocessing(Hanging, 4, num_workers=2) as vec:
    vec.reset(seed=0)
    print(vec.step([0] * 4)[0][:, 2].tolist())
"""
    done = run_script(HANGING.replace("METHOD", "forkserver") + code, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _, died, gone, works = done.stdout.splitlines()
    assert "worker 0, which ran envs 0 to 1, died; its exit code is not known" in died
    assert gone == "[0, 1, 2, 3]"
    assert works == "[1, 1, 1, 1]"
