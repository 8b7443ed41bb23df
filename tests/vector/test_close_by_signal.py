"""Signal handlers that close a vec, whatever it is doing."""

import random
import signal
import sys
from functools import partial

import numpy as np
import pytest
from tests.conftest import resources, wait_until
from tests.vector.faulty import TakesTime

import shoal
from shoal import _core
from shoal.errors import Closed


def cartpoles(**options):
    return shoal.make("shoal/CartPole-v1", 20_000, num_workers=2, **options)


VECS = {"serial": partial(shoal.Serial, TakesTime, 4)}
if _core.NAME == "native":
    processes = partial(shoal.Multiprocessing, TakesTime, 4, num_workers=2)
    VECS |= {
        "processes": processes,
        "parent steps": partial(shoal.Multiprocessing, TakesTime, 4, num_workers=1, parent_steps=True),
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
@pytest.mark.parametrize("numbers", [range(3), pytest.param(range(3, 30), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", VECS)
def test_the_verb_raises_closed_and_nothing_is_left(kind, numbers, alarm):
    before = resources()["children"]
    for number in numbers:
        choices = random.Random(number)
        vec = VECS[kind]()
        alarm(10 ** choices.uniform(-5, -1.3), vec.close)
        with pytest.raises(Closed, match=r"closed while its envs were moving|the vec has been closed"):
            use(vec, choices)
        assert vec.closed
        assert wait_until(lambda: not resources()["children"] - before, 60)


@pytest.mark.parametrize("kind", VECS)
def test_what_the_handler_raises_comes_out(kind, alarm):
    class Enough(Exception):
        pass

    def end():
        vec.close()
        raise Enough("by the handler")

    def use_until_it_ends():
        alarm(0.02, end)
        use(vec, random.Random(0))

    vec = VECS[kind]()
    with pytest.raises(Enough, match="by the handler"):
        use_until_it_ends()
    with pytest.raises(Closed, match="the vec has been closed"):
        vec.recv()


def closes_at(kind, line):
    """Use a vec, and close it at a line of ours, counted as they run; return whether there are so many."""
    from shoal.native import engine as threads_module
    from shoal.processes import calls as calls_module
    from shoal.processes import engine as processes_module
    from shoal.processes import messages as messages_module
    from shoal.processes import worker_errors as errors_module
    from shoal.processes import workers as workers_module
    from shoal.vector import batches
    from shoal.vector import vec as vec_module

    modules = (
        batches,
        workers_module,
        errors_module,
        messages_module,
        calls_module,
        processes_module,
        threads_module,
        vec_module,
    )
    files = {module.__file__ for module in modules}
    vec, seen = VECS[kind](), 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            seen += 1
            if seen == line:
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
    except Closed:
        return True
    finally:
        sys.settrace(None)
        vec.close()
    return False


# A signal may come between any two lines. Here a trace function closes the vec, further on each time.
KINDS = [kind for kind in VECS if kind in ("processes", "restarts", "async processes")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_close_between_two_lines(kind):
    line = 1
    while closes_at(kind, line):
        line += 1 + line // 2
    assert line > 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 17))
@pytest.mark.parametrize("kind", KINDS)
def test_a_close_between_any_two_lines(kind, first):
    line = first
    while closes_at(kind, line):
        line += 16
    assert line > 50
