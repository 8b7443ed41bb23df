"""A crash inside a kernel says whose it was, and the process dies by the same signal."""

import signal
import subprocess
import sys

import pytest

import shoal

pytestmark = pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core")
pytest.importorskip("numba")

ENV = """
import faulthandler, os, signal, sys
import numba, numpy as np, shoal
from gymnasium.spaces import Box, Discrete

LATE = 20  # steps, so that the checks of the class do not see it


@numba.njit("int64(int64)")
def deeper(n):
    return n - deeper(n + 1) * deeper(n + 2) if n else 0


class Wrong(shoal.NativeEnv):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("count", np.int64), ("least", np.int64), ("minus", np.int64), ("a", np.float64, 3)])
    constants = {"way": 0}

    @staticmethod
    def reset(state, obs):
        state.least, state.minus = -(2**63), -1
        obs[:] = 0.0

    @staticmethod
    def step(state, config):
        state.count += 1
        late = state.count >= LATE
        if config.way == 0 and late:
            state.a[-(state.count << 36)] = 1.0  # nothing is there
        if config.way == 1 and late:
            state.count = np.remainder(state.least, state.minus)
        if config.way == 2 and late:
            state.count = deeper(state.count)
        return 0.0, False


def play(envs=4, way=0, **options):
    with shoal.make(Wrong, envs, env_kwargs={"way": way}, **options) as vec:
        if "batch_size" in options:
            vec.async_reset(seed=0)
            while True:
                vec.send(np.zeros(len(vec.recv().rewards), np.int64))
        vec.reset(seed=0)
        while True:
            vec.step(np.zeros(envs, np.int64))
"""
WHOSE = " in the compiled code of wrong.Wrong. "
ADVICE = "run it again with SHOAL_NATIVE_CHECK=1 in the environment, which names the line.\n"


@pytest.fixture(scope="module")
def crash(tmp_path_factory):
    """Run some lines that end in a crash: the signal, and what was said."""
    folder = tmp_path_factory.mktemp("crashes")
    (folder / "wrong.py").write_text(ENV)

    def run(*lines):
        no_dump = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
        done = subprocess.run(
            [sys.executable, "-c", "\n".join([no_dump, "from wrong import *", *lines])],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return -done.returncode, done.stderr

    return run


@pytest.mark.parametrize(
    "arguments",
    ["", "copy=False", "envs=20_000, num_workers=3", "envs=8, batch_size=4, num_workers=2"],
)
def test_it_says_whose_kernel_it_was(crash, arguments):
    died_of, said = crash(f"play({arguments})")
    assert died_of == signal.SIGSEGV
    assert said.count("shoal: SIGSEGV") == 1  # also if several threads crash at once
    assert said.splitlines()[-1].startswith(f"shoal: SIGSEGV{WHOSE}")
    assert said.endswith(ADVICE)


def test_divisions_that_processors_refuse(crash):
    died_of, said = crash("play(way=1)")
    assert died_of == signal.SIGFPE
    assert f"shoal: SIGFPE{WHOSE}" in said


@pytest.mark.parametrize("threads", [1, 2])
def test_a_recursion_without_end(crash, threads):
    died_of, said = crash(f"play(20_000, way=2, num_workers={threads}, check=True)")
    assert died_of == signal.SIGSEGV
    assert f"shoal: SIGSEGV{WHOSE}Its indices are checked, so that it was something else" in said


def test_a_recursion_in_a_thread_that_did_not_make_the_vec(crash):
    died_of, said = crash(
        "import threading",
        "vec = shoal.make(Wrong, 4, env_kwargs={'way': 2}, num_workers=1)",
        "vec.reset(seed=0)",
        "def steps():",
        "    for _ in range(2 * LATE):",
        "        vec.step(np.zeros(4, np.int64))",
        "thread = threading.Thread(target=steps)",
        "thread.start()",
        "thread.join()",
    )
    assert died_of == signal.SIGSEGV
    assert f"shoal: SIGSEGV{WHOSE}" in said


@pytest.mark.parametrize("before", [True, False])
def test_pythons_own_handler_has_its_turn(crash, before):
    lines = ["faulthandler.enable()", "vec = shoal.make(Wrong, 1)"]
    died_of, said = crash(*(lines if before else reversed(lines)), "play()")
    assert died_of == signal.SIGSEGV
    assert f"shoal: SIGSEGV{WHOSE}" in said
    assert "Fatal Python error: Segmentation fault" in said
    assert ", line" in said.split("Fatal Python error")[1]  # its traceback


@pytest.mark.parametrize("before", [True, False])
def test_pythons_own_handler_and_several_threads(crash, before):
    """Its traceback may be cut off: a second thread that crashes meanwhile ends the process."""
    lines = ["faulthandler.enable()", "vec = shoal.make(Wrong, 1)"]
    died_of, said = crash(*(lines if before else reversed(lines)), "play(20_000, num_workers=3)")
    assert died_of == signal.SIGSEGV
    assert said.count(f"shoal: SIGSEGV{WHOSE}") == 1


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"])
def test_other_crashes_are_none_of_its_business(crash, name):
    died_of, said = crash(
        "vec = shoal.make(Wrong, 1)",
        "vec.reset(seed=0)",
        "vec.step([0])",
        f"os.kill(os.getpid(), signal.{name})",
        "signal.pause()",
    )
    assert died_of == getattr(signal, name)
    assert WHOSE not in said


def test_a_handler_of_the_users_own_is_called(crash):
    code, said = crash(
        "signal.signal(signal.SIGFPE, lambda *_: os._exit(7))",
        "vec = shoal.make(Wrong, 1)",
        "os.kill(os.getpid(), signal.SIGFPE)",
        "signal.pause()",
    )
    assert code == -7
    assert WHOSE not in said


def test_nothing_is_installed_by_importing():
    text = "import shoal, shoal.envs.snake, ctypes; print(ctypes.CDLL(None).signal(11, None))"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "0\n"  # SIG_DFL was there
