"""Ctrl-C, and close() by a thread or a signal handler, in the middle of a verb or between any two lines."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from tests.conftest import wait_until
from tests.processes.faulty_envs import RaisesUnseen
from tests.vector.faulty import Gate, Gated, Signalling, envs, pool, sleeps, still_works

import shoal
from shoal import _core
from shoal.errors import Closed, ResetNeeded
from shoal.processes import calls as calls_module
from shoal.processes import launcher_client as launcher_module
from shoal.processes import messages as messages_module
from shoal.processes import worker_errors as errors_module
from shoal.processes import workers as workers_module
from shoal.testing import SentinelEnv

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

VERBS = {
    "step": lambda vec: vec.step([0] * 4),
    "call": lambda vec: vec.call("call"),
    "reset": lambda vec: vec.reset(),
}


@contextmanager
def on_signal(handler):
    """Call this when an env sends SIGUSR1."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt():
    raise KeyboardInterrupt("now")


def set_grace(monkeypatch, seconds):
    """Set the time that workers have to finish what was interrupted."""
    for module in (workers_module, calls_module):
        monkeypatch.setattr(module, "GRACE", seconds)


def interrupt_in(vec, verb):
    """Let env 1 interrupt a verb while the vec waits for it."""
    vec.set_attr("verb", [None, verb, None, None])
    with on_signal(interrupt), pytest.raises(KeyboardInterrupt, match="now"):
        VERBS[verb](vec)


@pytest.mark.parametrize("verb", VERBS)
def test_06_ctrl_c_in_the_middle_of_anything(verb, tmp_path, monkeypatch):
    set_grace(monkeypatch, 60.0)  # any time to go on
    gate = Gate(tmp_path)
    creators = [partial(Signalling, i, os.getpid(), gate) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2) as vec:
        vec.reset(seed=0)
        workers = vec.call("pid")
        interrupt_in(vec, verb)
        gate.open()
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            vec.step([0] * 4)
        still_works(vec)
        assert vec.call("pid") == workers  # they have finished what was interrupted


@pytest.mark.parametrize("order", [None, "fifo", "ready"])
def test_an_error_that_ctrl_c_kept_from_the_caller_is_dropped_with_a_warning(order, tmp_path, monkeypatch):
    set_grace(monkeypatch, 60.0)  # any time to go on
    gate = Gate(tmp_path)
    creators = [partial(RaisesUnseen, i, os.getpid(), gate, "step" if i else None) for i in range(2)]
    options = {} if order is None else {"mode": "async", "batch_size": 2, "order": order}
    with shoal.Multiprocessing(creators, num_workers=2, **options) as vec:
        vec.async_reset(seed=0)
        vec.recv()

        def step():
            vec.send([0, 0])
            vec.recv()

        with on_signal(interrupt), pytest.raises(KeyboardInterrupt, match="now"):
            step()
        gate.open()
        with pytest.warns(UserWarning, match=r"dropped by (async_)?reset\(\): ValueError: unseen"):
            vec.async_reset(seed=0)
        vec.recv()


def test_06_ctrl_c_out_of_an_env_that_hangs_and_on(monkeypatch):
    set_grace(monkeypatch, 0.05)  # it hangs for certain
    creators = [partial(Signalling, i, os.getpid()) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2) as vec:
        for verb in VERBS:
            vec.reset(seed=0)
            hanging = vec.call("pid")[1]
            interrupt_in(vec, verb)
            still_works(vec)
            assert hanging not in vec.call("pid")  # its worker was replaced


def test_05_a_vec_closed_by_another_thread_in_the_middle_of_a_step(tmp_path, monkeypatch):
    set_grace(monkeypatch, 0.05)  # the env hangs for certain
    gate = Gate(tmp_path)
    vec = pool((1, partial(Gated, 1, gate)))
    vec.reset(seed=0)

    def close():
        wait_until(lambda: gate.reached() and sleeps(os.getpid()), 60)
        vec.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(Closed, match="closed while its envs were moving"):
        vec.step([0, 998, 0, 0])
    closer.join()


def test_05_close_ends_a_wait_by_itself(tmp_path, monkeypatch):
    """Not only because the lines to the workers end, which a wait looks at only now and then."""
    monkeypatch.setattr(messages_module.Connection, "shut_down", lambda self: None)
    set_grace(monkeypatch, 0.05)  # the env hangs for certain
    gate = Gate(tmp_path)
    vec = pool((1, partial(Gated, 1, gate)))
    vec.reset(seed=0)
    with ThreadPoolExecutor(1) as thread:
        step = thread.submit(vec.step, [0, 998, 0, 0])
        assert wait_until(gate.reached, 60)
        vec.close()
        try:
            assert wait_until(step.done, 60)
        finally:
            gate.open()
        with pytest.raises(Closed, match="closed while its envs were moving"):
            step.result()


def test_05_a_vec_closed_by_a_signal_handler_in_the_middle_of_a_step(monkeypatch):
    set_grace(monkeypatch, 0.05)  # the env hangs for certain
    vec = pool((1, partial(Signalling, 1, os.getpid(), verb="step")))
    vec.reset(seed=0)
    with on_signal(vec.close), pytest.raises(Closed, match="closed while its envs were moving"):
        vec.step([0] * 4)


def test_a_signal_handler_closes_a_vec_and_makes_another(monkeypatch):
    set_grace(monkeypatch, 0.05)  # the env hangs for certain
    made = []

    def replace():
        vec.close()
        made.append(shoal.Multiprocessing(SentinelEnv, 2, num_workers=2))

    vec = pool((1, partial(Signalling, 1, os.getpid(), verb="step")))
    vec.reset(seed=0)
    with on_signal(replace), pytest.raises(Closed, match="closed"):
        vec.step([0] * 4)
    monkeypatch.undo()
    with made[0] as other:
        assert len(other.reset(seed=0)[0]) == 2


# -- between any two lines ---------------------------------------------------------------------------------

FILES = {
    module.__file__
    for module in (calls_module, workers_module, errors_module, messages_module, launcher_module)
}
LINES = {
    "step": lambda vec: vec.step([0] * 4),
    "call": lambda vec: vec.call("env_id"),
    "reset": lambda vec: vec.reset(seed=1),
    "close": lambda vec: vec.close(),
}


def interrupt_at(line, vec, verb):
    """Interrupt a verb at a line of the pool's files, counted as they run; return whether it has so many."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt("now")
        return trace

    sys.settrace(trace)
    try:
        LINES[verb](vec)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    if verb == "close":
        vec.close()
    else:
        still_works(vec)
        assert vec.get_attr("env_id") == (0, 1, 2, 3)
    return count >= line


def in_a_thread(function, *arguments):
    """Being interrupted in a with statement can leave marks on a thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


@pytest.mark.parametrize("verb", ["step", "call", "reset"])
def test_06_ctrl_c_between_two_lines(verb):
    """At every 7th line, one after the other in the life of one vec."""
    line = 1
    with shoal.Multiprocessing(envs(), num_workers=2) as vec:
        vec.reset(seed=0)
        while in_a_thread(interrupt_at, line, vec, verb):
            line += 7
    assert line > 30


def interrupt_new(line, verb):
    with shoal.Multiprocessing(envs(), num_workers=2) as vec:
        vec.reset(seed=0)
        return interrupt_at(line, vec, verb)


def test_06_ctrl_c_between_two_lines_of_close():
    line = 2
    while in_a_thread(interrupt_new, line, "close"):
        line += 23
    assert line > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 8))
@pytest.mark.parametrize("verb", LINES)
def test_06_ctrl_c_between_any_two_lines(verb, first):
    """At every line, each time of a new vec."""
    line = first
    while in_a_thread(interrupt_new, line, verb):
        line += 7
