"""The states of blocks change as the table says: in `Blocks` itself, and in pools that restart workers."""

import os
import signal
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import shoal
from shoal import _core
from shoal.errors import RestartWarning
from shoal.processes.blocks import Blocks
from tests.conftest import wait_until
from tests.processes.block_model import BLOCK_TABLE, CALLED, CUT_OFF, DONE, HELD, ORPHANED, BlockModel
from tests.vector.faulty import Pid, Silent

pytestmark = pytest.mark.core

COUNT = 5


class BlocksMachine(RuleBasedStateMachine):
    """All events of the table, in any order."""

    def __init__(self):
        super().__init__()
        self.blocks, self.model = Blocks(), BlockModel(COUNT)
        self.done, self.cut_off = [], []  # in order

    def some(self, data, *states):
        there = self.model.of(*states)
        return data.draw(st.lists(st.sampled_from(there), min_size=1, unique=True))

    def can(*states):
        return precondition(lambda self: self.model.of(*states))

    @can(HELD, ORPHANED)
    @rule(data=st.data())
    def call(self, data):
        blocks = self.some(data, HELD, ORPHANED)
        orphaned = [block for block in blocks if self.model.states[block] is ORPHANED]
        self.model.do("call", blocks)
        assert self.blocks.call(blocks) == set(orphaned)
        self.cut_off += orphaned

    @can(CALLED, CUT_OFF, HELD)
    @rule(data=st.data())
    def settle(self, data):
        blocks = self.some(data, CALLED, CUT_OFF, HELD)
        self.model.do("settle", blocks)
        self.blocks.settle(blocks)
        self.done += blocks
        self.cut_off = [block for block in self.cut_off if block not in blocks]

    @can(CALLED, DONE)
    @rule(data=st.data())
    def receive(self, data):
        blocks = self.some(data, CALLED, DONE)
        self.model.do("receive", blocks)
        self.blocks.receive(blocks)
        self.done = [block for block in self.done if block not in blocks]

    @can(HELD, ORPHANED, CALLED, DONE)
    @rule(data=st.data())
    def orphan(self, data):
        blocks = self.some(data, HELD, ORPHANED, CALLED, DONE)
        self.model.do("orphan", blocks)
        self.blocks.orphan(iter(blocks))

    @rule(called=st.sets(st.integers(0, COUNT - 1)))
    def restart(self, called):
        self.model.do("restart", called)
        self.blocks.restart(called)
        self.done, self.cut_off = [], []

    @invariant()
    def agrees(self):
        assert {block: self.blocks.state(block) for block in range(COUNT)} == self.model.states
        assert self.blocks.called == set(self.model.of(CALLED))
        assert (self.blocks.done, self.blocks.cut_off) == (self.done, self.cut_off)


BlocksMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestBlocks = BlocksMachine.TestCase


# -- real pools ----------------------------------------------------------------------------------------------


class Watch:
    """Compares the states of the blocks of one pool with the model, after every event.

    Args:
        monkeypatch: What puts the watch in the place of the methods of `Blocks`.

    Attributes:
        model: The model. It refuses what is not in the table.
        wrong: What must not be. It is not raised at once: a pool takes any error for that of a worker.
    """

    def __init__(self, monkeypatch):
        self.model, self.wrong = BlockModel(COUNT), []
        for event in BLOCK_TABLE:
            monkeypatch.setattr(Blocks, event, self.watched(event, getattr(Blocks, event)))

    def watched(self, event, method):
        def do(all_blocks, blocks):
            blocks = list(blocks)
            result = method(all_blocks, blocks)
            try:
                self.model.do(event, blocks)
                states = {block: all_blocks.state(block) for block in self.model.states}
                assert states == self.model.states, f"after {event}({blocks})"
            except AssertionError as error:
                self.wrong.append(str(error))
            return result

        return do


def pool(env, count=2, **options):
    """One worker with a block for each env."""
    creators = [partial(env, i) for i in range(count)]
    return shoal.Multiprocessing(
        creators, **{"num_workers": 1, "batch_size": 1, "on_error": "restart", **options}
    )


def send(vec, batch, action=0):
    vec.send([action], env_ids=batch.env_ids)


def notice_loss(vec):
    workers = vec._engine._workers
    assert wait_until(lambda: workers.notice_ends() or workers.lost, 60)


def kill_worker(vec):
    os.kill(vec.call("pid")[0], signal.SIGKILL)
    notice_loss(vec)


def restarts():
    return pytest.warns(RestartWarning, match="worker 0 is restarted")


def synchronous():
    with pool(Pid, batch_size=None) as vec:
        vec.reset(seed=0)
        vec.step([0, 0])
        kill_worker(vec)
        with restarts():
            vec.step([0, 0])
        vec.step([0, 0])


def a_worker_is_lost_while_its_rows_are_in_hand():
    with pool(Pid, count=3) as vec:
        vec.async_reset(seed=0)
        first, second, _ = vec.recv(), vec.recv(), vec.recv()
        kill_worker(vec)
        with restarts():
            send(vec, first)
        first = vec.recv()
        kill_worker(vec)
        with restarts():
            send(vec, first)
        send(vec, second)
        vec.async_reset(seed=0)  # while one block is orphaned, and two are cut off


def a_worker_is_lost_after_it_has_answered(order):
    with pool(Silent, order=order) as vec:
        vec.async_reset(seed=0)
        first, second = sorted([vec.recv(), vec.recv()], key=lambda batch: batch.env_ids[0])
        send(vec, first)
        send(vec, second, 999)
        notice_loss(vec)
        with restarts():
            received = [vec.recv(), vec.recv()]
        received.sort(key=lambda batch: batch.env_ids[0])
        assert received[0].obs[0, 2] == 1  # its answer counts
        assert "restarted" not in received[0].infos
        assert received[1].infos["restarted"].all()


def some_blocks_are_done_and_others_not_received():
    with pool(Pid, order="ready") as vec:
        vec.async_reset(seed=0)
        assert wait_until(lambda: len(vec._engine._signals.arrived()) == 2, 60)
        first = vec.recv()  # the other block is done
        saved = vec.snapshot()
        vec.restore(saved)
        kill_worker(vec)
        with restarts():
            send(vec, first)
        assert vec.recv().env_ids.tolist() != first.env_ids.tolist()
        saved = vec.snapshot()
        vec.restore(saved)
        vec.async_reset(seed=0)
        vec.async_reset(seed=0)  # while both are called
        assert wait_until(lambda: len(vec._engine._signals.arrived()) == 2, 60)
        vec.recv()
        vec.async_reset(seed=0)  # while one is done


STORIES = {
    "synchronous": (
        synchronous,
        {
            ("restart", HELD),
            ("call", HELD),
            ("receive", CALLED),
            ("orphan", HELD),
            ("call", ORPHANED),
            ("settle", CUT_OFF),
            ("receive", DONE),
        },
    ),
    "lost in hand": (
        a_worker_is_lost_while_its_rows_are_in_hand,
        {("orphan", ORPHANED), ("restart", ORPHANED), ("restart", CUT_OFF)},
    ),
    "lost after its answer, fifo": (
        partial(a_worker_is_lost_after_it_has_answered, "fifo"),
        {("orphan", CALLED), ("settle", CALLED)},
    ),
    "lost after its answer, ready": (
        partial(a_worker_is_lost_after_it_has_answered, "ready"),
        {("orphan", CALLED), ("settle", CALLED)},
    ),
    "done": (
        some_blocks_are_done_and_others_not_received,
        {("settle", HELD), ("orphan", DONE), ("restart", CALLED), ("restart", DONE)},
    ),
}


@pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")
@pytest.mark.parametrize("name", STORIES)
def test_every_event_of_a_pool_is_in_the_table(name, monkeypatch):
    watch = Watch(monkeypatch)
    story, events = STORIES[name]
    story()
    assert watch.wrong == []
    assert events <= watch.model.seen


def test_every_row_of_the_table_has_a_story():
    rows = {(event, state) for event, changes in BLOCK_TABLE.items() for state in changes}
    assert set.union(*(events for _, events in STORIES.values())) == rows
