"""Several threads on one vec: one verb at a time, and every other call raises."""

import os
import random
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import _core
from shoal.errors import AlreadyPending, CallError, Closed

pytestmark = pytest.mark.core

GUARD = 60.0  # seconds after which a test counts as hung


class Strict(gymnasium.Env):
    """Cannot bear to be stepped past its end, after close(), or by two threads at once."""

    observation_space = Box(0, 9, (1,))
    action_space = Discrete(2)

    def __init__(self):
        self.left, self.inside, self.closed = 0, False, False

    def reset(self, *, seed=None, options=None):
        self.enter()
        self.left = 3
        return self.leave()

    def step(self, action):
        self.enter()
        assert self.left > 0, "stepped past its end"
        self.left -= 1
        obs, info = self.leave()
        return obs, 1.0, self.left == 0, False, info

    def enter(self):
        assert not self.inside, "entered twice"
        assert not self.closed, "used after close()"
        self.inside = True

    def leave(self):
        for _ in range(20):
            pass  # the end of each turn of a loop is where another thread may come in
        self.inside = False
        return np.zeros(1, np.float32), {"left": self.left}

    def render(self):
        return None

    def close(self):
        self.closed = True


def cartpoles(**options):
    return shoal.make("shoal/CartPole-v1", 64, num_workers=2, **options)


SYNC = {"serial": partial(shoal.Serial, Strict, 4)}
ASYNC = {}
if _core.NAME == "native":
    SYNC |= {
        "processes": partial(shoal.Multiprocessing, Strict, 4, num_workers=2),
        "parent steps": partial(shoal.Multiprocessing, Strict, 4, num_workers=1, parent_steps=True),
        "native": cartpoles,
        "native, in place": partial(cartpoles, copy=False),
    }
    ASYNC |= {
        "async processes": partial(shoal.Multiprocessing, Strict, 4, num_workers=2, batch_size=2),
        "async native": partial(cartpoles, batch_size=32),
    }


def verbs_of(vec, saved):
    """Everything that can be called, each without arguments."""
    rows = vec.batch_size
    verbs = {
        "async_reset": lambda: vec.async_reset(seed=1),
        "send": lambda: vec.send(np.zeros(rows, np.int64)),
        "recv": vec.recv,
        "call": lambda: vec.call("np_random_seed"),
        "render": vec.render,
        "snapshot": vec.snapshot,
        "restore": lambda: vec.restore(saved),
    }
    if vec.batch_size == vec.num_envs:
        verbs |= {"reset": vec.reset, "step": lambda: vec.step(np.zeros(rows, np.int64))}
    attribute = "x" if isinstance(vec, shoal.Native) else "label"
    verbs["set_attr"] = lambda: vec.set_attr(attribute, 0.0)
    return verbs


@pytest.fixture
def quick_switches():
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def begin(vec):
    if vec.batch_size == vec.num_envs:
        vec.reset(seed=0)
        return
    vec.async_reset(seed=0)
    for _ in range(vec.num_envs // vec.batch_size):
        batch = vec.recv()
        vec.send(np.zeros(vec.batch_size, np.int64), batch.env_ids)


def run_threads(*functions):
    """Run them side by side; what they raised."""
    raised = []

    def run(function):
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return raised


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("closes", [False, True], ids=["", "closed meanwhile"])
@pytest.mark.parametrize("backend", [*SYNC, *ASYNC])
def test_any_verbs_of_several_threads(backend, closes):
    vec = {**SYNC, **ASYNC}[backend]()
    begin(vec)
    verbs = verbs_of(vec, vec.snapshot())
    told = Counter()

    def work(number):
        choices = random.Random(number)
        for turn in range(100):
            if closes and number == 0 and turn == 50:
                vec.close()
            try:
                verbs[choices.choice(list(verbs))]()
            except CallError as error:
                told[type(error)] += 1
            except shoal.errors.ArgumentError as error:
                assert "batches were received and not sent" in str(error)  # noqa: PT017
                assert backend in ASYNC

    assert run_threads(*(partial(work, number) for number in range(4))) == []
    if closes:
        assert told[Closed] >= 50
        with pytest.raises(Closed, match="the vec has been closed"):
            vec.recv()
    else:
        assert told[Closed] == 0
        begin(vec)
    vec.close()


@pytest.mark.parametrize("backend", [*SYNC, *ASYNC])
def test_every_verb_is_refused_while_actions_are_read(backend):
    """The vec asks the caller's object for its actions in the middle of a verb: then another thread comes."""
    vec = {**SYNC, **ASYNC}[backend]()
    begin(vec)
    if backend in ASYNC:
        vec.recv()
    others = verbs_of(vec, vec.snapshot())
    answers = {}

    class Actions:
        def __array__(self, dtype=None, copy=None):
            for name, verb in others.items():
                answers[name] = run_threads(verb)
            return np.zeros(vec.batch_size, np.int64)

    vec.send(Actions())
    assert list(answers) == list(others)
    for name, raised in answers.items():
        assert [type(error) for error in raised] == [AlreadyPending], (name, raised)
    vec.close()


class Blocks(Strict):
    """Says when it is in its second step, and stays there until it is told to go on."""

    def __init__(self, says, hears):
        super().__init__()
        self.says, self.hears = says, hears

    def step(self, action):
        if self.left == 2:
            meet(self.says, "w")
            meet(self.hears, "r")
        return super().step(action)


@pytest.fixture
def lines(tmp_path):
    """Two names under which processes can meet."""
    names = str(tmp_path / "says"), str(tmp_path / "hears")
    for name in names:
        os.mkfifo(name)
    return names


def meet(name, mode):
    """Wait until somebody has opened the same name for the opposite."""
    with Path(name).open(mode) as line:
        if mode == "r":
            line.read()


def blocking(backend, lines):
    """A vec whose first env waits in its second step, and the call that gets there."""
    creators = [partial(Blocks, *lines), Strict, Strict, Strict]
    if backend == "serial":
        vec = shoal.Serial(creators)
    elif backend == "async processes":
        vec = shoal.Multiprocessing(creators, num_workers=2, batch_size=2)
    else:
        vec = shoal.Multiprocessing(
            creators, num_workers=1 + (backend == "processes"), parent_steps=backend == "parent steps"
        )
    if backend == "async processes":
        begin(vec)  # one step of each
        first = vec.recv()
        assert first.env_ids.tolist() == [0, 1]
        vec.send([0, 0], first.env_ids)
        second = vec.recv()
        vec.send([0, 0], second.env_ids)
        return vec, vec.recv
    vec.reset(seed=0)
    vec.step([0] * 4)
    return vec, lambda: vec.step([0] * 4)


@pytest.mark.parametrize("backend", [name for name in [*SYNC, *ASYNC] if "native" not in name])
def test_every_verb_is_refused_while_an_env_is_inside(backend, lines):
    vec, moves = blocking(backend, lines)
    mover = threading.Thread(target=moves)
    mover.start()
    meet(lines[0], "r")
    for verb in verbs_of(vec, {"kind": {}}).values():
        with pytest.raises(AlreadyPending, match=r"the envs are moving.* by another thread"):
            verb()
    meet(lines[1], "w")
    mover.join(GUARD)
    assert not mover.is_alive()
    begin(vec) if backend in ASYNC else vec.step([0] * 4)
    vec.close()


@pytest.mark.parametrize("backend", [name for name in [*SYNC, *ASYNC] if "native" not in name])
def test_close_while_an_env_is_inside(backend, lines):
    vec, moves = blocking(backend, lines)
    closed = threading.Event()

    def closes():
        meet(lines[0], "r")
        vec.close()
        closed.set()
        if backend in ("serial", "parent steps"):  # elsewhere the env is gone
            meet(lines[1], "w")

    (raised,) = run_threads(moves, closes)
    assert isinstance(raised, Closed), raised
    assert "closed while its envs were moving" in str(raised)
    assert closed.is_set()
