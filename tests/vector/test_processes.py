"""How workers start and end: start methods, what creators may be, and who survives whom."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tests.conftest import wait_until

import shoal
from shoal import _core
from shoal.errors import ArgumentTypeError, WorkerDied, WorkerError
from shoal.testing import SentinelEnv
from shoal.testing.check_vector_env import (
    cast_for,
    check_attributes,
    check_errors,
    check_snapshots,
    check_trajectories,
)

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

METHODS = ("forkserver", "fork", "spawn")


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def alive(pid):
    """Whether a process runs, or waits to be buried."""
    return Path(f"/proc/{pid}").exists()


# -- start methods and creators ----------------------------------------------------------------------------


def test_the_contract_holds_whatever_the_start_method(method):
    backend = partial(shoal.Multiprocessing, num_workers=2, start_method=method)
    for check in (check_trajectories, check_attributes, check_errors, check_snapshots):
        check(cast_for(backend), 4, 20)


def test_creators_that_only_this_process_knows(method):
    offset = 40

    class Local(SentinelEnv):
        def place(self):
            return self.env_id + offset

    with shoal.Multiprocessing([lambda i=i: Local(i) for i in range(3)], start_method=method) as vec:
        vec.reset(seed=0)
        assert vec.call("place") == (40, 41, 42)


def test_ids_registered_only_in_this_process(method):
    class Local(SentinelEnv):
        pass

    gymnasium.register("OnlyHere-v0", entry_point=lambda **kwargs: Local(**kwargs), kwargs={"env_id": 7})
    try:
        create = partial(gymnasium.make, "OnlyHere-v0", disable_env_checker=True)
        with shoal.Multiprocessing(create, 2, start_method=method) as vec:
            assert vec.reset(seed=0)[0][:, 0].tolist() == [7, 7]
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_a_creator_that_cannot_be_pickled_needs_fork():
    lock = threading.Lock()

    def create():
        with lock:
            return SentinelEnv()

    with pytest.raises(ArgumentTypeError, match=r'a creator cannot be pickled.*or use start_method="fork"'):
        shoal.Multiprocessing(create, 2)
    with shoal.Multiprocessing(create, 2, start_method="fork") as vec:
        vec.reset(seed=0)
        vec.step([0, 0])


class World(SentinelEnv):
    """Tells where it lives."""

    def look(self):
        import cv2
        import torch

        return {
            "path": sys.path,
            "folder": str(Path.cwd()),
            "variable": os.environ.get("SHOAL_TEST"),
            "arguments": sys.argv,
            "threads": (os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads(), cv2.getNumThreads()),
            "draws": float(np.random.random()),  # noqa: NPY002 - the shared stream is the point
        }


def test_workers_live_in_the_parents_world(method, monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_TEST", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with shoal.Multiprocessing([World, World], num_workers=2, start_method=method) as vec:
        first, second = vec.call("look")
    assert first["path"][0] == str(tmp_path)
    assert first["folder"] == str(tmp_path)
    assert first["variable"] == "seen"
    assert first["arguments"] == sys.argv
    assert first["draws"] != second["draws"]
    if method != "fork":  # there libraries are as the parent has loaded them
        assert first["threads"] == ("1", 1, 1)


def test_what_envs_print_goes_where_the_parent_prints(method, capfd):
    class Talking(SentinelEnv):
        def step(self, action):
            print("from the env")
            return super().step(action)

    with shoal.Multiprocessing(Talking, start_method=method) as vec:
        vec.reset(seed=0)
        vec.step([0])
    assert "from the env" in capfd.readouterr().out


def run_in_daemon(pipe):
    with shoal.Multiprocessing([partial(SentinelEnv, i) for i in range(4)], num_workers=2) as vec:
        vec.reset(seed=3)
        pipe.send(vec.step([0] * 4)[0][:, 4].tolist())


def test_inside_a_daemonic_process():
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run_in_daemon, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == [3, 4, 5, 6]
    process.join()
    assert process.exitcode == 0
    ours.close()
    process.close()


def test_a_vec_inside_a_vec():
    def create():
        return shoal.Multiprocessing([partial(SentinelEnv, i) for i in range(2)], num_workers=2)

    with shoal.Multiprocessing(create, 2, num_workers=2) as vec:
        assert vec.reset(seed=0)[0][:, 4].tolist() == [0, 1, 2, 3]
        vec.step([0] * 4)


def test_made_and_used_by_different_threads():
    made = []
    thread = threading.Thread(target=lambda: made.append(shoal.Multiprocessing(SentinelEnv, 2)))
    thread.start()
    thread.join()
    (vec,) = made
    vec.reset(seed=0)
    vec.step([0, 0])
    vec.close()
    made.clear()


def test_other_threads_run_while_the_parent_waits():
    class Slow(SentinelEnv):
        def step(self, action):
            time.sleep(0.2)
            return super().step(action)

    with shoal.Multiprocessing(Slow, 2) as vec:
        vec.reset(seed=0)
        counted = 0
        stop = threading.Event()

        def count():
            nonlocal counted
            while not stop.wait(0.001):
                counted += 1

        thread = threading.Thread(target=count)
        thread.start()
        vec.step([0, 0])
        stop.set()
        thread.join()
        assert counted > 20


def test_several_vecs_at_once_close_in_any_order(method):
    vecs = [shoal.Multiprocessing(SentinelEnv, 2, num_workers=2, start_method=method) for _ in range(3)]
    for vec in vecs:
        vec.reset(seed=0)
    for vec in (vecs[1], vecs[0], vecs[2]):
        vec.step([0, 0])
        vec.close()


def test_an_id_registered_anew_is_that_of_the_parent(method):
    before = gymnasium.registry["CartPole-v1"]
    gymnasium.register(
        "Slippery-v0", "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", kwargs={"map_name": "4x4"}
    )
    gymnasium.registry["CartPole-v1"] = gymnasium.spec("Slippery-v0")
    try:
        for name in ("CartPole-v1", "Slippery-v0"):
            with shoal.Multiprocessing(partial(gymnasium.make, name), start_method=method) as vec:
                assert vec.single_observation_space == gymnasium.spaces.Discrete(16)
    finally:
        gymnasium.registry["CartPole-v1"] = before
        del gymnasium.registry["Slippery-v0"]


def test_a_creator_that_dies_and_leaves_a_child():
    def create():
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        os._exit(9)

    begun = time.monotonic()
    with pytest.raises(WorkerDied, match="exit code 9"):
        shoal.Multiprocessing(create, 1)
    assert time.monotonic() - begun < 7


# -- forks of the parent -----------------------------------------------------------------------------------


def test_a_fork_of_the_parent_cannot_use_or_end_its_workers():
    with shoal.Multiprocessing([partial(SentinelEnv, i, 10**6) for i in range(2)]) as vec:
        vec.reset(seed=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(WorkerError, match="made by the process from which this one was forked"):
                    vec.step([0, 0])
                vec.close()
                with shoal.Multiprocessing(SentinelEnv, 2) as own:
                    own.reset(seed=0)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


# -- scripts -----------------------------------------------------------------------------------------------


def script(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(code)
    return [sys.executable, "-W", "error", str(path)]


def run(tmp_path, code):
    return subprocess.run(
        script(tmp_path, code), capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )


PLAIN = """
import gymnasium, numpy as np, os, shoal, sys
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

vec = shoal.Multiprocessing(Mine, 2, num_workers=2, start_method="METHOD")
vec.reset(seed=0)
vec.step([0, 0])
"""


def test_a_script_needs_no_main_guard_and_no_close(method, tmp_path):
    code = (
        PLAIN
        + """
try:
    vec.step([0, 1])
except MyError as error:
    print("caught", error)
vec.reset()
"""
    )
    done = run(tmp_path, code.replace("METHOD", method))
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught as asked\n", "")
    assert len(list(tmp_path.glob("closed-*"))) == 2  # the envs were closed at exit


def test_a_forked_child_does_not_keep_the_script_from_ending(method, tmp_path):
    code = (
        PLAIN
        + """
import time
pid = os.fork()
if pid == 0:
    time.sleep(20)
    os._exit(0)
begun = time.monotonic()
vec.close()
import atexit, signal
atexit.register(lambda: (os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)))
"""
    )
    begun = time.monotonic()
    done = run(tmp_path, code.replace("METHOD", method).replace("-W error", ""))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 15


def test_a_daemon_thread_in_a_step_does_not_crash_the_end(tmp_path):
    code = (
        HANGING.replace("METHOD", "forkserver")
        + """
import threading
threading.Thread(target=lambda: vec.step([1] * 4), daemon=True).start()
time.sleep(0.2)
"""
    )
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_06_ctrl_c_while_the_launcher_starts(tmp_path):
    code = """
import os, signal, threading, time
import shoal
from shoal.testing import SentinelEnv
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.05, lambda: os.killpg(os.getpgid(0), signal.SIGINT)).start()
shoal.Multiprocessing(SentinelEnv, 2, num_workers=2)
time.sleep(1)
"""
    process = subprocess.Popen(
        script(tmp_path, code), stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )
    _, errors = process.communicate(timeout=20)
    assert errors.count("Traceback") == 1
    assert errors.count("KeyboardInterrupt") == 1


def test_children_that_reap_themselves(method, tmp_path):
    code = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)" + PLAIN + "vec.close()"
    done = run(tmp_path, code.replace("METHOD", method))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_uncaught_error_ends_the_script_once(method, tmp_path):
    done = run(tmp_path, PLAIN.replace("METHOD", method) + "vec.step([0, 1])\n")
    assert done.returncode == 1
    assert done.stderr.count("MyError: as asked") == 2  # where it was raised, and where it came out
    assert done.stderr.count("Traceback (most recent call last)") == 2


HANGING = """
import os, shoal, signal, sys, time
from shoal.testing import SentinelEnv

class Hanging(SentinelEnv):
    def pid(self):
        return os.getpid()
    def step(self, action):
        if action:
            time.sleep(3600)
        return super().step(action)

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells switch it off for what runs behind them
vec = shoal.Multiprocessing(Hanging, 4, num_workers=2, start_method="METHOD")
vec.reset(seed=0)
print(*sorted({os.getpid(), *vec.call("pid")}), flush=True)
"""


def start(tmp_path, code):
    process = subprocess.Popen(
        script(tmp_path, code),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3, process.stderr.read()
    return process, pids


@pytest.mark.parametrize("action", [0, 1], ids=["idle", "in a hanging step"])
def test_05_a_killed_parent_takes_its_workers_with_it(method, tmp_path, action):
    process, pids = start(
        tmp_path, HANGING.replace("METHOD", method) + f"vec.send([{action}] * 4); time.sleep(99)"
    )
    time.sleep(0.1)
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(map(running, pids)), 5.0)  # usually some milliseconds
    process.communicate()


def running(pid):
    """Whether a process still does anything; who buries it is not our business once its parent is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("action", [0, 1], ids=["stepping", "in a hanging step"])
def test_06_ctrl_c_ends_a_run_once(method, tmp_path, action):
    code = HANGING.replace("METHOD", method) + f"while True: vec.step([{action}] * 4)\n"
    process, pids = start(tmp_path, code)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert errors.count("KeyboardInterrupt") == 1
    assert errors.count("Traceback") == 1
    assert not any(map(alive, pids))


def test_05_a_dead_launcher_is_replaced(tmp_path):
    code = (
        HANGING.replace("METHOD", "forkserver")
        + """
from pathlib import Path
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
    )
    done = run(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    _, died, gone, works = done.stdout.splitlines()
    assert "worker 0, which ran envs 0 to 1, died; nobody is left to say how" in died
    assert gone == "[0, 1, 2, 3]"
    assert works == "[1, 1, 1, 1]"


# -- nothing is left behind --------------------------------------------------------------------------------


def test_05_no_name_in_shared_memory_and_no_descriptor_left(method):
    gc.collect()
    names = set(os.listdir("/dev/shm"))  # noqa: PTH208 - pathlib would hold one open itself
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        vec = shoal.Multiprocessing(SentinelEnv, 4, num_workers=2, start_method=method)
        obs, _ = vec.reset(seed=0)
        assert set(os.listdir("/dev/shm")) == names  # noqa: PTH208
        vec.close()
        del vec, obs
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_views_survive_the_vec():
    vec = shoal.Multiprocessing([partial(SentinelEnv, i) for i in range(2)], copy=False)
    obs, _ = vec.reset(seed=0)
    vec.close()
    del vec
    gc.collect()
    assert obs[:, 0].tolist() == [0, 1]


def cpu_seconds(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class Pid(SentinelEnv):
    def pid(self):
        return os.getpid()


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "parent_steps": True}], ids=str)
def test_14_an_idle_pool_takes_no_time(options):
    with shoal.Multiprocessing([partial(Pid, i) for i in range(4)], **options) as vec:
        vec.reset(seed=0)
        pids = set(vec.call("pid")) - {os.getpid()}
        vec.step([0] * 4)
        time.sleep(0.1)
        before = sum(map(cpu_seconds, pids))
        time.sleep(1)
        assert sum(map(cpu_seconds, pids)) - before < 0.02


def test_12_exactly_as_many_envs_as_asked_for_are_made_and_none_here(tmp_path):
    def create(env_id):
        with (tmp_path / str(os.getpid())).open("a") as file:
            file.write(f"{env_id}\n")
        return SentinelEnv(env_id)

    with shoal.Multiprocessing([partial(create, i) for i in range(7)], num_workers=3) as vec:
        vec.reset(seed=0)
    made = {int(path.name): path.read_text().split() for path in tmp_path.iterdir()}
    assert os.getpid() not in made
    assert sorted(made.values()) == [["0", "1", "2"], ["3", "4"], ["5", "6"]]
