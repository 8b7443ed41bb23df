"""A crash inside a kernel says whose it was, and the process dies by the same signal."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

# One process of pytest's, so that one server runs all crashes.
pytestmark = [
    pytest.mark.xdist_group("crashes"),
    pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core"),
]
pytest.importorskip("numba")

WHOSE = " in the compiled code of tests.native.envs.Wrong. "
ADVICE = "run it again with SHOAL_NATIVE_CHECK=1 in the environment, which names the line.\n"

# Reads lines of code, and lets a child run them. A fork saves each of them the import of Numba, which takes
# longer than all else; nothing of a vec is there before it.
SERVER = """
import faulthandler, json, os, resource, signal, sys
import numpy as np, shoal
from tests.native.envs import LATE, RECURS, Late, Wrong

def play(envs=4, cls=Wrong, way=0, **options):
    with shoal.make(cls, envs, env_kwargs={"way": way}, **options) as vec:
        if "batch_size" in options:
            vec.async_reset(seed=0)
            while True:
                vec.send(np.zeros(len(vec.recv().rewards), np.int64))
        vec.reset(seed=0)
        while True:
            vec.step(np.zeros(envs, np.int64))

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for request in sys.stdin:
    lines, said = json.loads(request)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        exec(lines, globals())
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def crash(tmp_path_factory):
    """Run some lines that end in a crash: the signal, and what was said."""
    folder = tmp_path_factory.mktemp("crashes")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(*lines):
            said = folder / "said"
            said.unlink(missing_ok=True)
            print(json.dumps(["\n".join(lines), str(said)]), file=server.stdin, flush=True)
            return -int(server.stdout.readline()), said.read_text()

        yield run


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
    died_of, said = crash(f"play(20_000, way=2, num_workers={threads})")
    assert died_of == signal.SIGSEGV
    assert f"shoal: SIGSEGV{WHOSE}" in said


def test_a_crash_of_a_checked_kernel(crash):
    died_of, said = crash("play(cls=Late, way=RECURS, check=True)")
    assert died_of == signal.SIGSEGV
    whose = " in the compiled code of tests.native.envs.Late. "
    assert f"shoal: SIGSEGV{whose}Its indices are checked, so the cause is another one" in said


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
