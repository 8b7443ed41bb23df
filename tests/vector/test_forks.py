"""Processes forked while a vec is there: they make, use and close vecs of their own."""

import subprocess
import sys
import textwrap

import pytest

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")

SCRIPT = """
import os, signal, sys, threading
import gymnasium, numpy as np, shoal

def cartpoles(**options):
    return lambda: shoal.make("shoal/CartPole-v1", 20_000, num_workers=2, **options)

def processes(**options):
    return lambda: shoal.Multiprocessing(lambda: gymnasium.make("CartPole-v1"), 4, num_workers=2, **options)

makers = {
    "native": cartpoles(), "in place": cartpoles(copy=False), "async native": cartpoles(batch_size=10_000),
    "processes": processes(), "async processes": processes(batch_size=2),
}

def use(vec):
    if vec.batch_size < vec.num_envs:
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.send(np.zeros(vec.batch_size, np.int64), vec.recv().env_ids)
    else:
        vec.reset(seed=0)
        for _ in range(4):
            vec.step(np.zeros(vec.num_envs, np.int64))

def child():
    signal.alarm(100)  # a generous guard
    try:
        use(vec)
    except shoal.errors.WorkerError as error:
        assert "make a new one here" in str(error), error
    else:
        raise AssertionError("the parent's vec was used")
    for make in makers.values():
        with make() as own:
            use(own)
    kept = cartpoles()()  # and left as it is
    use(kept)

name, busy, closes = sys.argv[1], sys.argv[2] == "busy", sys.argv[3] == "closes"
vec = makers[name]()
use(vec)
ended, begun = threading.Event(), threading.Event()

def work():
    while not ended.is_set():
        use(vec)
        begun.set()

thread = threading.Thread(target=work)
if busy:
    thread.start()
    begun.wait()
pid = os.fork()
if pid == 0:
    child()
    if closes:
        vec.close()
        del vec
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
ended.set()
if busy:
    thread.join()
use(vec)
vec.close()
sys.exit(code)
"""


@pytest.mark.parametrize(("busy", "closes"), [("busy", "closes"), ("idle", "leaves")])
@pytest.mark.parametrize("kind", ["native", "async native", "processes", "async processes"])
def test_a_forked_child_has_vecs_of_its_own(tmp_path, kind, busy, closes):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    arguments = [sys.executable, str(script), kind, busy, closes]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
