"""Signal handlers that close a vec, whatever it is doing."""

import random
import signal
import sys
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.conftest import resources, wait_until

import shoal
from shoal import _core
from shoal.errors import Closed


class Env(gymnasium.Env):
    """Takes its time, ends now and then, and says something now and then."""

    observation_space, action_space = Box(0, 9, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(0.0002)
        return np.zeros(1, np.float32), 0.0, self.steps == 7, False, {"a": 1} if self.steps % 3 == 0 else {}


def cartpoles(**options):
    return shoal.make("shoal/CartPole-v1", 20_000, num_workers=2, **options)


VECS = {"serial": partial(shoal.Serial, Env, 4)}
if _core.NAME == "native":
    processes = partial(shoal.Multiprocessing, Env, 4, num_workers=2)
    VECS |= {
        "processes": processes,
        "parent steps": partial(shoal.Multiprocessing, Env, 4, num_workers=1, parent_steps=True),
        "restarts": partial(processes, on_error="restart"),
        "async processes": partial(processes, batch_size=2),
        "ready": partial(processes, batch_size=2, order="ready"),
        "native": cartpoles,
        "in place": partial(cartpoles, copy=False),
        "async native": partial(cartpoles, batch_size=10_000),
    }


def use(vec, choices):
    """Call one verb after another for ever."""
    actions = np.zeros(vec.batch_size, np.int64)
    vec.async_reset(seed=0)
    while True:
        vec.send(actions, vec.recv().env_ids)
        verb = choices.choice(["recv", "recv", "recv", "step", "call", "snapshot", "async_reset"])
        if verb == "call":
            vec.recv()
            vec.call("np_random_seed")
        elif verb == "snapshot":
            vec.recv()
            vec.snapshot()
        elif verb == "step" and vec.batch_size == vec.num_envs:
            vec.recv()
            vec.step(actions)
        if verb != "recv":
            vec.async_reset()


@pytest.fixture
def alarm():
    """Call something in a signal handler, after some seconds."""
    called = []

    def after(seconds, function):
        called.append(function)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, lambda *_: called[-1]())
    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    called.clear()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", VECS)
def test_the_verb_raises_closed_and_nothing_is_left(kind, alarm):
    before = resources()["children"]
    for number in range(12):
        choices = random.Random(number)
        vec = VECS[kind]()
        alarm(10 ** choices.uniform(-5, -1.3), vec.close)
        with pytest.raises(Closed, match=r"closed while its envs were moving|the vec has been closed"):
            use(vec, choices)
        assert vec.closed
        assert wait_until(lambda: not resources()["children"] - before, 5)


@pytest.mark.parametrize("kind", VECS)
def test_what_the_handler_raises_comes_out(kind, alarm):
    class Enough(Exception):
        pass

    def end():
        vec.close()
        raise Enough("by the handler")

    vec = VECS[kind]()
    alarm(0.02, end)
    with pytest.raises(Enough, match="by the handler"):
        use(vec, random.Random(0))
    with pytest.raises(Closed, match="the vec has been closed"):
        vec.recv()


# A signal may come between any two lines. Here a trace function closes the vec, further on each time.
@pytest.mark.parametrize(
    "kind", [kind for kind in VECS if kind in ("processes", "restarts", "async processes")]
)
def test_a_close_between_any_two_lines(kind):
    from shoal.vector import _async, _async_pool, _crew, _mail, _pool, base, multiprocessing

    modules = (_async, _async_pool, _crew, _mail, _pool, base, multiprocessing)
    files = {module.__file__ for module in modules}

    def lines_until(limit):
        """Use a vec and close it at that line; whether there is such a line."""
        vec, seen = VECS[kind](), 0

        def trace(frame, event, _):
            nonlocal seen
            if event == "line" and frame.f_code.co_filename in files:
                seen += 1
                if seen == limit:
                    sys.settrace(None)
                    vec.close()
            return trace

        sys.settrace(trace)
        try:
            for _ in range(2):
                vec.async_reset(seed=0)
                vec.send(np.zeros(vec.batch_size, np.int64), vec.recv().env_ids)
                vec.recv()
                vec.call("np_random_seed")
            return False
        finally:
            sys.settrace(None)
            vec.close()

    line, there = 1, True
    while there:
        try:
            there = lines_until(line)
        except Closed:
            line += 1 + line // 5
    assert line > 50
