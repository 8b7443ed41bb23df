"""Processes forked while a vec is there: they make, use and close vecs of their own."""

import pytest
from tests.vector.scripts import said_by

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

def child(vec):
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
    global kept
    kept = cartpoles()()  # and left as it is
    use(kept)

def parent(name, busy, closes):
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
        child(vec)
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
    return code

for case in sys.argv[1:]:
    name, busy, closes = case.split("-")
    code = parent(name, busy == "busy", closes == "closes")
    if code:
        sys.exit(f"{case}: {code}")
"""


@pytest.mark.parametrize(
    "cases",
    [
        ["native-busy-closes", "async native-idle-leaves"],
        ["processes-idle-leaves", "async processes-busy-closes"],
        pytest.param(
            ["native-idle-leaves", "async native-busy-closes"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["processes-busy-closes", "async processes-idle-leaves"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=" ".join,
)
def test_a_forked_child_has_vecs_of_its_own(cases):
    said_by(SCRIPT, *cases)
