"""The leak check of conftest.py finds what it is there to find."""

from pathlib import Path

pytest_plugins = ["pytester"]

LEAKY = """
import os, subprocess, sys, threading
from multiprocessing import shared_memory

kept = []

def test_file_descriptor():
    kept.append(open(os.devnull))

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_shared_memory():
    memory = shared_memory.SharedMemory(create=True, size=64)
    kept.append(memory)

def test_clean():
    with open(os.devnull):
        pass

def test_tidy_up():
    for thing in kept:
        if isinstance(thing, subprocess.Popen):
            thing.communicate(b"\\n")
        else:
            thing.close()
    kept[-1].unlink()
"""


def test_every_kind_of_leak_fails_its_test(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # which would not look at what is everybody's
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(LEAKY)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=6, errors=4)  # the check runs after the test itself has passed
    for kind in ("file descriptors", "threads", "children", "shared memory"):
        result.stdout.fnmatch_lines([f"*left behind*{kind}*"])
