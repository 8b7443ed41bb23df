"""How workers start: start methods, what creators may be, what workers know, and that nothing is left."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.vector.faulty import LONG, Gate, Gated, Pid, running, sleeps
from tests.vector.scripts import METHODS

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


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


# -- start methods and creators ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "checks"),
    [
        ("forkserver", (check_trajectories, check_attributes, check_errors, check_snapshots)),
        ("fork", (check_attributes, check_errors, check_snapshots)),
        ("spawn", (check_snapshots,)),
        pytest.param("fork", (check_trajectories,), marks=pytest.mark.slow),
        pytest.param("spawn", (check_trajectories, check_attributes, check_errors), marks=pytest.mark.slow),
    ],
)
def test_the_contract_holds_whatever_the_start_method(method, checks):
    """Rows and messages are the same: where pools start slowly, the fast run makes fewer of them."""
    backend = partial(shoal.Multiprocessing, num_workers=2, start_method=method)
    for check in checks:
        check(cast_for(backend), 4, 20)


def test_creators_and_ids_that_only_this_process_knows(method):
    offset = 40

    class Local(SentinelEnv):
        def place(self):
            return self.env_id + offset

    gymnasium.register("OnlyHere-v0", entry_point=lambda **kwargs: Local(**kwargs), kwargs={"env_id": 7})
    try:
        made = partial(gymnasium.make, "OnlyHere-v0", disable_env_checker=True)
        creators = [*(lambda i=i: Local(i) for i in range(2)), made]
        with shoal.Multiprocessing(creators, num_workers=2, start_method=method) as vec:
            assert vec.reset(seed=0)[0][:, 0].tolist() == [0, 1, 7]
            assert vec.call("place") == (40, 41, 47)
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_an_id_registered_anew_is_that_of_the_parent(method):
    before = gymnasium.registry["CartPole-v1"]
    gymnasium.register(
        "Slippery-v0", "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", kwargs={"map_name": "4x4"}
    )
    gymnasium.registry["CartPole-v1"] = gymnasium.spec("Slippery-v0")
    try:
        creators = [partial(gymnasium.make, name) for name in ("CartPole-v1", "Slippery-v0")]
        with shoal.Multiprocessing(creators, num_workers=1, start_method=method) as vec:
            assert vec.single_observation_space == gymnasium.spaces.Discrete(16)
    finally:
        gymnasium.registry["CartPole-v1"] = before
        del gymnasium.registry["Slippery-v0"]


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


def test_workers_live_in_the_parents_world(method, monkeypatch, tmp_path, capfd):
    class World(SentinelEnv):
        def look(self):
            return {
                "path": sys.path,
                "folder": str(Path.cwd()),
                "variable": os.environ.get("SHOAL_TEST"),
                "arguments": sys.argv,
                "threads": os.environ.get("OMP_NUM_THREADS"),
                "draws": float(np.random.random()),  # noqa: NPY002 - the shared stream is the point
            }

        def step(self, action):
            print("from the env")
            return super().step(action)

    monkeypatch.setenv("SHOAL_TEST", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with shoal.Multiprocessing([World, World], num_workers=2, start_method=method) as vec:
        first, second = vec.call("look")
        vec.reset(seed=0)
        vec.step([0, 0])
    assert first["path"][0] == str(tmp_path)
    assert first["folder"] == str(tmp_path)
    assert first["variable"] == "seen"
    assert first["arguments"] == sys.argv
    assert first["draws"] != second["draws"]
    if method != "fork":  # there libraries are as the parent has loaded them
        assert first["threads"] == "1"
    assert capfd.readouterr().out.count("from the env") == 2  # where the parent prints


def test_libraries_in_workers_have_one_thread():
    class Threads(SentinelEnv):
        def threads(self):
            import cv2
            import torch

            return torch.get_num_threads(), cv2.getNumThreads()

    with shoal.Multiprocessing(Threads) as vec:
        assert vec.call("threads") == ((1, 1),)


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


def test_other_threads_run_while_the_parent_waits(tmp_path):
    """The step ends only if another thread runs meanwhile."""
    gate = Gate(tmp_path)

    def open_it():
        wait_until(lambda: gate.reached() and sleeps(os.getpid()), 60)
        gate.open()

    with shoal.Multiprocessing([partial(Gated, i, gate) for i in range(2)], num_workers=2) as vec:
        vec.reset(seed=0)
        thread = threading.Thread(target=open_it)
        thread.start()
        assert vec.step([998, 998])[0][:, 2].tolist() == [1, 1]
        thread.join()


def test_a_creator_that_dies_and_leaves_a_child(tmp_path):
    """The child holds the worker's line open; nothing waits for it."""

    def create():
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
        (tmp_path / "child").write_text(str(pid))
        os._exit(9)

    try:
        with pytest.raises(WorkerDied, match="exit code 9"):
            shoal.Multiprocessing(create, 1)
    finally:
        child = int((tmp_path / "child").read_text())
        os.kill(child, signal.SIGKILL)
        assert wait_until(lambda: not running(child), 60)


# -- forks of the parent -----------------------------------------------------------------------------------


def test_a_fork_of_the_parent_cannot_use_or_end_its_workers():
    with shoal.Multiprocessing([partial(SentinelEnv, i, LONG) for i in range(2)]) as vec:
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


# -- nothing is left behind --------------------------------------------------------------------------------


def test_05_nothing_is_left_of_several_vecs_closed_in_any_order(method):
    """No name in shared memory while they live, no descriptor afterwards."""

    def named():
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line}

    gc.collect()
    names = named()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - pathlib would hold one open itself
    vecs = [shoal.Multiprocessing(SentinelEnv, 2, num_workers=1, start_method=method) for _ in range(3)]
    for vec in vecs:
        vec.reset(seed=0)
    assert named() == names
    for vec in (vecs[1], vecs[0], vecs[2]):
        vec.step([0, 0])
        vec.close()
    vecs.clear()
    del vec
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


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "parent_steps": True}], ids=str)
def test_14_an_idle_pool_takes_no_time(options):
    with shoal.Multiprocessing([partial(Pid, i) for i in range(4)], **options) as vec:
        vec.reset(seed=0)
        pids = set(vec.call("pid")) - {os.getpid()}
        vec.step([0] * 4)
        assert wait_until(lambda: all(map(sleeps, pids)), 60)
        before = sum(map(cpu_seconds, pids))
        time.sleep(0.3)  # while they have nothing to do
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
