"""Every test leaves the process as it found it: no shared memory, child, thread or file descriptor more."""

import gc
import io
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest
from hypothesis import HealthCheck, settings

# Kernels that tests compile are kept with the builds; processes that tests start find them there too.
KERNELS = os.environ.setdefault("SHOAL_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "kernels"))

settings.register_profile(
    "default",
    deadline=None,
    # The leak check below has no state that examples could share.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("default")


def resources() -> dict[str, Counter[str]]:
    """What this process holds, by kind."""
    children: Counter[str] = Counter()
    add_children(str(os.getpid()), children)
    descriptors: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would hold one open itself
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115 - as above
        except OSError:
            continue
        if not target.startswith("/proc/"):
            descriptors[target] += 1
    beside = "PYTEST_XDIST_WORKER" in os.environ  # others test at the same time, and names are everybody's
    return {
        "shared memory": Counter(() if beside else (path.name for path in Path("/dev/shm").iterdir())),
        "children": children,
        "threads": Counter(str(thread) for thread in threading.enumerate()),
        "file descriptors": descriptors,
    }


def add_children(pid: str, children: Counter[str]) -> None:
    """Its children, and theirs: workers are children of the process that starts them."""
    with suppress(FileNotFoundError, ProcessLookupError):  # what has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    children[child] += 1
                    add_children(child, children)


@pytest.fixture(scope="session", autouse=True)
def _libraries_that_hold_on() -> None:
    """Load what keeps resources for good on its first use, so that no test is blamed for it."""
    import hypothesis.configuration  # noqa: F401
    import numpy as np
    import torch

    from shoal import _core

    torch.ones(1).add_(1)
    np.random.default_rng().random()
    if _core.NAME == "native":
        # The processes that start workers, of which each process keeps one.
        from shoal.processes.launcher_client import open_channel

        for method in ("forkserver", "spawn"):
            open_channel(method, lambda *_: None).close()


@pytest.fixture(scope="session")
def fonts() -> None:
    """Let matplotlib open its fonts, which it keeps, before a test that draws is blamed."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set(title="-")
    figure.savefig(io.BytesIO())


@pytest.fixture(autouse=True)
def _no_leaks(_libraries_that_hold_on: None):
    before = resources()
    # Let the collector look at what the test makes only: all that numba, torch and the tests before have made
    # would take it seconds.
    gc.freeze()
    try:
        yield
        # Without the garbage collector: what is closed or dropped must be gone at once. But an exception
        # that a test has caught refers to its frames, and a frame to it: only the collector can break that.
        left = left_since(before)
        if left and has_cycle_of_traceback():
            gc.collect()
            left = left_since(before)
    finally:
        gc.unfreeze()
    assert not left, f"the test left behind: {left}"


def has_cycle_of_traceback() -> bool:
    """Whether a traceback is among what only the garbage collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return any(isinstance(thing, TracebackType) for thing in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def left_since(before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    after = resources()
    return {kind: after[kind] - before[kind] for kind in after if after[kind] - before[kind]}


def wait_until(holds, seconds):
    """Whether it does within that time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
