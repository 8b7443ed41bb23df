"""`shoal bench`: what its loops count, whose turn it is, and what ends a turn."""

import signal
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count, pairwise

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from shoal import _core, register, registry
from shoal.cli import _contestants as contestants
from shoal.cli._loops import Loop, Timed
from shoal.cli._terminal import Interrupts
from shoal.cli._turns import NoAnswer, Outcome, end, in_order, time_limit, turns_for, why
from shoal.testing import SentinelEnv
from tests.envs import Turns

NATIVE = _core.NAME == "native"


@pytest.fixture(autouse=True)
def _names_are_forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


class Counted(SentinelEnv):
    steps = 0

    def step(self, action):
        Counted.steps += 1
        return super().step(action)


@pytest.mark.parametrize("contestant", ["bare", "serial", "gymnasium_sync"])
def test_only_steps_of_envs_are_counted(contestant):
    register("counted", Counted)
    task = contestants.set_task("counted", 3, None, {})
    timed = getattr(contestants, contestant)(task)
    for seconds in (0, 0, 0.001, 0.01):
        before = Counted.steps
        assert timed.slice(seconds).steps == Counted.steps - before > 0
    end(timed.close)


class Moves(Turns):
    steps = 0

    def step(self, actions):
        Moves.steps += 1  # of the two agents, one
        super().step(actions)


def test_steps_of_agents_are_counted():
    register("moves", Moves)
    task = contestants.set_task("moves", 2, None, {})
    timed = contestants.serial(task)
    before = Moves.steps
    assert timed.slice(0.01).steps == Moves.steps - before > 0
    end(timed.close)


class OldStyle:
    """As gym had them before 0.26."""

    observation_space = Discrete(4)
    action_space = Discrete(2)
    steps = 0

    def reset(self):
        self.count = 0
        return 0

    def step(self, action):
        assert self.count < 3, "stepped after its end"
        OldStyle.steps += 1
        self.count += 1
        return self.count, 0.0, self.count == 3, {}


def test_a_bare_loop_of_an_old_env():
    register("old-style", OldStyle)
    task = contestants.set_task("old-style", 3, None, {})
    with pytest.warns(UserWarning, match="takes no seed"):
        timed = contestants.bare(task)
    for seconds in (0, 0.01):
        before = OldStyle.steps
        assert timed.slice(seconds).steps == OldStyle.steps - before


def test_everybody_gets_the_same_actions():
    class Remembers(SentinelEnv):
        def __init__(self):
            super().__init__(max_length=1_000_000)
            self.actions = made.setdefault(len(made), [])

        def step(self, action):
            self.actions.append(int(action))
            return super().step(action)

    made = {}
    register("remembers", Remembers)
    task = contestants.set_task("remembers", 2, None, {})
    for timed in (contestants.serial(task), contestants.gymnasium_sync(task)):
        timed.loop.run(timed.batches)
        end(timed.close)
    assert made[1] == made[3] == [int(batch[0]) for batch in task.batches]
    assert made[2] == made[4] == [int(batch[1]) for batch in task.batches]
    bare = contestants.bare(task)
    assert np.array_equal(bare.batches, np.ravel(task.batches))


@pytest.mark.skipif(not NATIVE, reason="needs the compiled core")
def test_steps_of_compiled_envs_are_counted():
    task = contestants.set_task("shoal/ProbeAgents-v0", 3, None, {})
    assert list(task.contestants()) == ["shoal.Native"]
    for name in ("shoal/ProbeAgents-v0", "shoal/ProbeBandit-v0"):
        task = contestants.set_task(name, 3, 1, {})
        timed = contestants.native(task)
        before = timed.loop._stats()["transitions"]
        assert timed.slice(0.001).steps == timed.loop._stats()["transitions"] - before > 0
        end(timed.close)
        end(task.first.close)


def test_the_order_changes_from_turn_to_turn():
    names = list("abcd")
    orders = [in_order(names, turn) for turn in range(8)]
    assert all(sorted(order) == names for order in orders)
    assert all(one != other for one, other in pairwise(orders))
    assert Counter(order[0] for order in orders) == dict.fromkeys(names, 2)


class Steady(Loop):
    def __init__(self):
        super().__init__(close=partial(setattr, self, "closed", True))

    def run(self, batches):
        return len(batches)


class Failing(Steady):
    calls = 0

    def run(self, batches):
        self.calls += 1
        if self.calls > 40:
            raise RuntimeError("no\nmore")
        return len(batches)


def test_who_fails_is_left_out_and_the_others_go_on():
    failing, outcome, shown = Failing(), Outcome(), []
    contestants = {"steady": Timed(Steady(), "ab"), "failing": Timed(failing, "ab")}
    for _ in range(50):
        outcome.take_turn(contestants, 0.0, show=shown.append)
    assert Counter(shown) == {"steady": 50, "failing": 50}
    assert outcome.failures == {"failing": "RuntimeError: no more"}
    assert failing.closed
    assert outcome.rates("failing") == []
    assert len(outcome.rates("steady")) == 50
    assert set(outcome.ratios("steady", "steady")) == {1.0}
    assert outcome.ratios("steady", "failing") == []


def test_turns_last_as_long_as_the_time(monkeypatch):
    assert list(turns_for(0.0)) == [0]
    assert list(turns_for(0.0, at_least=3)) == [0, 1, 2]
    ticks = count()
    monkeypatch.setattr("shoal.cli._turns.perf_counter", lambda: float(next(ticks)))
    assert len(list(turns_for(5.0))) == 5


def test_what_hangs_is_told_of():
    alarm, handler = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    with pytest.raises(NoAnswer, match="no answer for 0 s"), time_limit(0.01):
        threading.Event().wait(60)
    # An alarm that was there before still is.
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(alarm[0])
    assert signal.getsignal(signal.SIGALRM) is handler


def test_reasons_take_few_words():
    assert why(EOFError()) == "a worker process has died"
    assert why(KeyError()) == "KeyError"
    assert why(ValueError("two\n  lines")) == "ValueError: two lines"


@pytest.fixture
def default_handler():
    """Of Ctrl-C, whatever a test runner has put in its place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_that_somebody_swallows_is_not_lost(default_handler):
    with Interrupts() as interrupts:
        interrupts.check()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_ctrl_c_that_is_to_be_ignored_is(default_handler):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
