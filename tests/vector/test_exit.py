"""The end of the process while daemon threads still use a vec."""

import pytest
from tests.vector.scripts import said_by

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")

# Forks of one process: to start Python, to import and to compile takes longer than all the rest.
SCRIPT = """
import os, signal, sys, threading, time
import gymnasium, numpy as np, shoal
from gymnasium.spaces import Box, Discrete, Text

class Env(gymnasium.Env):
    observation_space, action_space, how = Box(0, 1, (2,), np.float32), Discrete(2), "short"
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        if self.how == "sleeps":
            time.sleep(0.001)
        elif self.how == "raises":
            raise ValueError("now")
        return np.zeros(2, np.float32), 1.0, False, False, {"array": np.zeros(3), "text": "x"}

class Spins(Env):
    def step(self, action):
        for _ in range(10**12):
            reached.set()

class Texts(Env):
    action_space = Text(5)

class Lists(Env):  # written by the twin in Python
    def step(self, action):
        return [0.0, 1.0], 1.0, False, False, {}

def lstm():
    from shoal._core._native import lstm_forward
    steps, rows, width = 16, 256, 64
    arrays = [np.zeros(shape, np.float32) for shape in (
        (steps, rows, width), (2 * width + 1, 4 * width), (steps, rows, 4 * width),
        (steps, rows, 2 * width + 1), (steps, rows, width), (steps, rows, width), (2, rows, width))]
    starts = np.zeros((steps, rows), np.bool_)
    while True:
        lstm_forward(arrays[0], starts, *arrays[1:], 2)
        reached.set()

def steps(vec):
    vec.reset(seed=0)
    actions = vec.action_space.sample()
    while True:
        try:
            vec.step(actions)
        except ValueError:
            vec.reset()
        reached.set()

def sends(vec):
    vec.async_reset(seed=0)
    while True:
        vec.send(np.zeros(vec.batch_size, np.int64), vec.recv().env_ids)
        reached.set()

def serial(how, env=Env):
    own = type("Own", (env,), {"how": how})
    return lambda: steps(shoal.Serial(own, 3))

def native(number, **options):
    make = lambda: shoal.make("shoal/CartPole-v1", number, num_workers=2, **options)
    return lambda: (sends if "batch_size" in options else steps)(make())

works = {
    "short": serial("short"), "sleeps": serial("sleeps"), "raises": serial("raises"),
    "spins": serial("", Spins), "texts": serial("short", Texts), "lists": serial("short", Lists),
    "native": native(20_000), "in place": native(20_000, copy=False), "few": native(4, copy=False),
    "async": native(20_000, batch_size=10_000), "few async": native(4, batch_size=2), "lstm": lstm,
    "processes": lambda: steps(shoal.Multiprocessing(Env, 4, num_workers=2)),
    "parent steps": lambda: steps(shoal.Multiprocessing(Env, 4, num_workers=1, parent_steps=True)),
    "async processes": lambda: sends(shoal.Multiprocessing(Env, 4, num_workers=2, batch_size=2)),
}
names, times = sys.argv[1].split(","), int(sys.argv[2])
if "native" in names:
    shoal.make("shoal/CartPole-v1", 4).close()  # so that the forks find it compiled
if "processes" in names:
    sys.stderr = None  # the thread is told that its vec has been closed, and prints it
for name in names:
    for run in range(times):
        if os.fork() == 0:
            signal.alarm(60)  # a generous guard
            reached = threading.Event()
            threading.Thread(target=works[name], daemon=True).start()
            reached.wait()
            time.sleep(0.0005 * run)  # where in its work the thread is then is for chance
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.wait()[1])
        if code:
            print(f"{name}, run {run}: {code}")
"""

IN_PROCESS = ["short", "sleeps", "spins", "raises", "texts", "lists", "lstm"]
NATIVE = ["native", "in place", "few", "async", "few async"]
PROCESSES = ["processes", "parent steps", "async processes"]


@pytest.mark.parametrize(
    ("kinds", "times"),
    [
        (IN_PROCESS, 2),
        (NATIVE, 2),
        (PROCESSES, 2),
        *(pytest.param(kinds, 10, marks=pytest.mark.slow) for kinds in (IN_PROCESS, NATIVE, PROCESSES)),
    ],
)
def test_a_process_ends_well_while_a_daemon_thread_is_at_work(kinds, times):
    assert said_by(SCRIPT, ",".join(kinds), str(times)) == ""
