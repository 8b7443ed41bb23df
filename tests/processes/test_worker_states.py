"""A worker's state changes only as the table says, and every change of the table can happen."""

import os
import signal
from functools import partial

import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.errors import RestartWarning, SpaceMismatch, WorkerDied, WorkerTimeout
from shoal.processes import calls as calls_module
from shoal.processes import workers as workers_module
from shoal.processes.workers import WorkerState
from tests.conftest import wait_until
from tests.processes.faulty_envs import Odd, Remade
from tests.vector.faulty import FailsAtReset, Gate, Gated, limited, pids, running

pytestmark = [
    pytest.mark.core,
    pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core"),
]

STARTING, SERVING, WRITING, READING = (
    WorkerState.STARTING,
    WorkerState.SERVING,
    WorkerState.WRITING,
    WorkerState.READING,
)
LATE, FAILED, KILLED, DEAD = WorkerState.LATE, WorkerState.FAILED, WorkerState.KILLED, WorkerState.DEAD

WORKER_TABLE = {
    STARTING: {SERVING, LATE, KILLED, DEAD},
    SERVING: {WRITING, READING, LATE, FAILED, KILLED, DEAD},
    # A message of a worker that is WRITING or LATE may still be read. Then its state is what it was before.
    WRITING: {SERVING, READING, FAILED, KILLED, DEAD},
    READING: {SERVING, WRITING, LATE, KILLED, DEAD},
    LATE: {READING, FAILED, KILLED, DEAD},
    FAILED: {KILLED, DEAD},
    KILLED: {DEAD},
    DEAD: {STARTING},  # a new process
}


class Recorder:
    """Records each change of a worker's state.

    Args:
        monkeypatch: What puts the recorder in the place of `Workers._set_state`.

    Attributes:
        changes: The changes so far: the state before, and the state after.
        wrong: What must not be: a state changed elsewhere, or a `lost` that does not follow from the states.
        before: For a change, what to do just before it, once.
        after: For a change, what to do just after it, once.
    """

    def __init__(self, monkeypatch):
        self.changes, self.wrong, self.before, self.after = [], [], {}, {}
        self._known = {}
        set_state = workers_module.Workers._set_state

        def record(workers, worker, state):
            old = workers.state(worker)
            self.check(workers, worker, old)
            self.before.pop((old, state), lambda: None)()
            set_state(workers, worker, state)
            new = workers.state(worker)
            self._known[id(workers), worker] = new
            self.check(workers, worker, new)
            if new is not old:
                self.changes.append((old, new))
            self.after.pop((old, state), lambda: None)()

        monkeypatch.setattr(workers_module.Workers, "_set_state", record)

    def check(self, workers, worker, state):
        if state is not self._known.get((id(workers), worker), STARTING):
            self.wrong.append(f"{state} was not set by _set_state")
        if (worker in workers.lost) is not (state is not SERVING):
            self.wrong.append(f"{worker} is {state}, and lost are {workers.lost}")


@pytest.fixture
def recorder(monkeypatch):
    for module in (workers_module, calls_module):
        monkeypatch.setattr(module, "GRACE", 60.0)  # no report of an end is late
    return Recorder(monkeypatch)


def pool(creator, **options):
    return shoal.Multiprocessing([creator], num_workers=1, **options)


def interrupt():
    raise KeyboardInterrupt("now")


def kill(vec):
    """Return what kills the worker of a vec, and returns when its process has ended."""
    (pid,) = vec.call("pid")

    def do():
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not running(pid), 60)

    return do


def answered(vec):
    """Wait until the answer of a worker has come with a message."""
    assert wait_until(vec._engine._signals.unread, 60)


def notice_loss(vec):
    workers = vec._engine._workers
    assert wait_until(lambda: workers.notice_ends() or workers.lost, 60)


# -- what can happen to workers ------------------------------------------------------------------------------


def nothing(recorder, folder):
    with pids() as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)
        vec.reset(options={"reset_mask": np.arange(4) < 2})


def asynchronous(recorder, folder):
    with pids(batch_size=2, order="ready", on_error="restart") as vec:
        vec.async_reset(seed=0)
        for _ in range(8):
            batch = vec.recv()
            vec.send([0, 0], env_ids=batch.env_ids)
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        notice_loss(vec)
        batch = vec.recv()  # complete before that: vec.call waits for all envs
        with pytest.warns(RestartWarning, match="was killed by signal 9"):
            vec.send([0, 0], env_ids=batch.env_ids)
        vec.recv()


def an_env_raises(recorder, folder):
    gate = Gate(folder)
    gate.open()
    with pool(partial(Gated, 0, gate, "raise"), on_error="restart", mode="async") as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.send([999])
        with pytest.warns(RestartWarning, match="failed as told"):
            vec.recv()
        vec.send([0])
        vec.recv()
        vec.send([999])
        answered(vec)  # and the vec is closed before the worker is replaced


def an_env_hangs(recorder, folder):
    with pool(partial(Gated, 0, Gate(folder))) as vec:
        for _ in range(2):
            vec.reset(seed=0)
            vec.send([998])
            with limited(vec, 0.05), pytest.raises(WorkerTimeout, match="has not answered"):
                vec.recv()


def an_answer_comes_as_its_worker_is_given_up(recorder, folder):
    hangs, fails = Gate(folder, "hangs"), Gate(folder, "fails")
    creators = [partial(Gated, 0, hangs), partial(Gated, 1, fails, "raise")]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart", autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)

        def answer():
            fails.open()
            answered(vec)
            vec._engine._calls.timeout = None  # new workers may take any time

        recorder.before[SERVING, LATE] = answer
        vec.send([998, 999])
        with limited(vec, 0.05), pytest.warns(RestartWarning, match="has not answered"):
            vec.recv()
        assert vec.stats()["restarts"] == 2


def a_message_cannot_be_unpickled(recorder, folder):
    with pool(partial(Odd, 0, None), on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.warns(RestartWarning, match="cannot be unpickled"):
            vec.step([997])


def a_new_worker_cannot_start(recorder, folder):
    file = folder / "what"
    file.write_text("")
    with pool(partial(Remade, file)) as vec:
        vec.reset(seed=0)
        kill(vec)()
        notice_loss(vec)
        for what, error in (("other", SpaceMismatch), ("die", WorkerDied)):
            file.write_text(what)
            with pytest.raises(error, match=r"not like those before|killed by signal 9"):
                vec.reset(seed=0)
        file.write_text("hang")
        vec._engine._workers.timeout = 0.05
        with pytest.raises(WorkerTimeout, match="while it was starting"):
            vec.reset(seed=0)
        vec._engine._workers.timeout = None
        file.write_text("")
        vec.reset(seed=0)


def ctrl_c_in_a_message_to_a_worker(recorder, folder):
    with pool(partial(FailsAtReset, 0), on_error="restart") as vec:
        vec.reset(seed=1000)
        for seed in (2000, 7):  # a reset that goes well, and one that fails
            recorder.before[WRITING, SERVING] = interrupt
            with pytest.raises(KeyboardInterrupt, match="now"):
                vec.reset(seed=seed)
            answered(vec)
            vec.reset(seed=3000)


def ctrl_c_in_a_message_of_a_worker(recorder, folder):
    with pool(partial(Odd, 0, None)) as vec:
        vec.reset(seed=0)
        recorder.after[SERVING, READING] = interrupt
        with pytest.raises(KeyboardInterrupt, match="now"):
            vec.call("large")
        vec.reset(seed=0)


def a_worker_dies_in_a_message(recorder, folder):
    with pool(partial(Odd, 0, None)) as vec:
        for change in ((SERVING, WRITING), (SERVING, READING)):
            vec.reset(seed=0)
            recorder.after[change] = kill(vec)
            with pytest.raises(WorkerDied, match="was killed by signal 9"):
                vec.call("large")


STORIES = {
    nothing: [
        (STARTING, SERVING),
        (SERVING, WRITING),
        (WRITING, SERVING),
        (SERVING, READING),
        (READING, SERVING),
        (SERVING, DEAD),
    ],
    asynchronous: [(SERVING, DEAD), (DEAD, STARTING)],
    an_env_raises: [(SERVING, FAILED), (FAILED, KILLED), (KILLED, DEAD), (FAILED, DEAD)],
    an_env_hangs: [(SERVING, LATE), (LATE, KILLED), (LATE, DEAD)],
    an_answer_comes_as_its_worker_is_given_up: [(LATE, READING), (READING, LATE), (LATE, FAILED)],
    a_message_cannot_be_unpickled: [(SERVING, KILLED)],
    a_new_worker_cannot_start: [(STARTING, KILLED), (STARTING, DEAD), (STARTING, LATE)],
    ctrl_c_in_a_message_to_a_worker: [
        (WRITING, READING),
        (READING, WRITING),
        (WRITING, KILLED),
        (WRITING, FAILED),
    ],
    ctrl_c_in_a_message_of_a_worker: [(READING, KILLED)],
    a_worker_dies_in_a_message: [(WRITING, DEAD), (READING, DEAD)],
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_change_is_in_the_table(story, recorder, tmp_path):
    story(recorder, tmp_path)
    assert not recorder.wrong
    assert [change for change in recorder.changes if change[1] not in WORKER_TABLE[change[0]]] == []
    assert set(STORIES[story]) <= set(recorder.changes)


def test_every_row_of_the_table_has_a_story():
    shown = {change for changes in STORIES.values() for change in changes}
    assert shown == {(before, after) for before, all_after in WORKER_TABLE.items() for after in all_after}
