"""The end of a vec with workers, in any state, and that its envs are closed (numbers: those of our list)."""

import gc
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import gymnasium.spaces as sp
import pytest
from tests.conftest import wait_until
from tests.vector.faulty import LONG, Closing, Unbound, pids, still_works

import shoal
from shoal import _core
from shoal.errors import Closed, WorkerDied
from shoal.processes import calls as calls_module
from shoal.processes import messages as messages_module
from shoal.processes import workers as workers_module
from shoal.testing import CrashEnv, SampleEnv, SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


# -- 5: close, in any state --------------------------------------------------------------------------------


def fails(vec, how):
    vec.reset(seed=0)
    vec.set_attr("life", 0)
    vec.set_attr("at", 1)
    vec.set_attr("how", how)
    vec.send([0] * 4)


def raised(vec):
    fails(vec, "raise")
    with pytest.raises(ValueError, match="failed as told"):
        vec.recv()


def died(vec):
    fails(vec, "kill")
    with pytest.raises(WorkerDied, match="SIGKILL"):
        vec.recv()


def attribute_missing(vec):
    with pytest.raises(AttributeError, match="typo"):
        vec.get_attr("typo")


STATES = {
    "new": lambda vec: None,
    "reset": lambda vec: vec.reset(seed=0),
    "reset under way": lambda vec: vec.async_reset(seed=0),
    "step under way": lambda vec: (vec.reset(seed=0), vec.send([0] * 4)),
    "finished": lambda vec: (vec.reset(seed=0), vec.step([0] * 4)),
    "attribute missing": attribute_missing,
    "raised": raised,
    "died": died,
    "raised unnoticed": partial(fails, how="raise"),
    "died unnoticed": partial(fails, how="kill"),
}


def new():
    return shoal.Multiprocessing(
        [partial(CrashEnv, i, LONG, max_length=LONG) for i in range(4)], num_workers=2
    )


def test_05_reset_in_any_state():
    with new() as vec:
        for state, reach in STATES.items():
            reach(vec)
            with pytest.warns(UserWarning, match="dropped") if "unnoticed" in state else nullcontext():
                vec.reset(seed=5)
            vec.set_attr("at", LONG)
            still_works(vec)


@pytest.mark.parametrize("state", STATES)
def test_05_close_in_any_state(state):
    vec = new()
    STATES[state](vec)
    vec.close()
    vec.close()
    with pytest.raises(Closed, match="has been closed"):
        vec.step([0] * 4)


@pytest.mark.parametrize("state", ["new", "reset under way", "step under way", "raised", "died unnoticed"])
def test_05_a_vec_forgotten_in_any_state(state):
    vec = new()
    STATES[state](vec)
    del vec


def test_05_connections_outlive_a_forgotten_vec():
    """In a cycle, they are not collected before it: it still needs them, to end its workers."""
    vec = pids()
    vec.itself = vec
    sockets = [connection._socket for connection in vec._engine._workers.connections.values()]
    workers = vec.call("pid")
    gc.collect()
    assert all(each in messages_module._in_use for each in sockets)
    del vec
    gc.collect()
    assert not any(each in messages_module._in_use for each in sockets)
    assert wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 60)


# -- 13: envs are closed -----------------------------------------------------------------------------------


def closed_in(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("parent_steps", [False, True])
def test_13_every_env_is_closed_once(tmp_path, parent_steps, any_time):
    creators = [partial(Closing, i, tmp_path) for i in range(5)]
    vec = shoal.Multiprocessing(creators, num_workers=2, parent_steps=parent_steps)
    vec.reset(seed=0)
    vec.send([0] * 5)
    vec.close()
    vec.close()
    assert closed_in(tmp_path) == dict.fromkeys("01234", "closed\n")


@pytest.fixture
def any_time(monkeypatch):
    """Workers have as long as they need to end by themselves, on a busy machine too."""
    for module in (workers_module, calls_module):
        monkeypatch.setattr(module, "GRACE", 60.0)


def test_13_envs_are_closed_if_the_vec_comes_to_nothing(tmp_path, any_time):
    def fail():
        raise OSError("no licence left")

    with pytest.raises(OSError, match="no licence left"):
        shoal.Multiprocessing([partial(Closing, 0, tmp_path), fail], num_workers=2)
    odd = partial(SampleEnv, sp.Discrete(2), sp.Discrete(1000))
    with pytest.raises(RuntimeError, match="another observation space"):
        shoal.Multiprocessing([partial(Closing, 1, tmp_path), odd], num_workers=2)
    with pytest.raises(TypeError, match="seed: expected an integer"):
        shoal.Multiprocessing([partial(Closing, i, tmp_path) for i in (2, 3)], num_workers=2, seed="one")
    assert closed_in(tmp_path) == dict.fromkeys("0123", "closed\n")


def test_13_envs_are_closed_if_one_cannot_settle_in(tmp_path, any_time):
    files = [tmp_path / str(i) for i in range(4)]
    with pytest.raises(ValueError, match="no rows, please"):
        shoal.Multiprocessing([partial(Unbound, file, file.name == "3") for file in files], num_workers=4)
    assert sorted(tmp_path.iterdir()) == files


def test_13_an_env_that_will_not_close_is_told_of():
    class Stubborn(SentinelEnv):
        def close(self):
            raise OSError("will not close")

    vec = shoal.Multiprocessing([SentinelEnv, Stubborn, SentinelEnv], num_workers=2)
    with pytest.raises(OSError, match="will not close"):
        vec.close()
    vec.close()
