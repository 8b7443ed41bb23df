"""Errors for exhausted system resources: processes, threads, descriptors, memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import OutOfResources

REMEDIES = {
    errno.EAGAIN: "Allow more processes and threads (ulimit -u, or the pids limit of the container)",
    errno.EMFILE: "Allow this process more open files (ulimit -n)",
    errno.ENFILE: "Close files: the whole system has reached its limit",
    errno.ENOMEM: "Free memory, or allow more of it (ulimit -v, or the memory limit of the container)",
    errno.ENOSPC: "Free memory",
    errno.EFBIG: "Allow larger files: the limit counts for shared memory too (ulimit -f)",
}

NO_THREAD = (os.strerror(errno.EAGAIN), "can't start new thread")  # the messages of the core and of Python


@contextmanager
def obtaining(what: str, instead: str) -> Iterator[None]:
    """Turn errors of exhausted resources inside this context into errors that say what to do.

    Args:
        what: The resource that is requested, for the message.
        instead: What to do if the limit cannot be raised, for the message.

    Raises:
        OutOfResources: If the system has none of the resource left.
    """
    cause: Exception
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        problem, remedy, cause = error.strerror, REMEDIES[error.errno], error
    except MemoryError as error:
        problem, remedy, cause = "no memory", REMEDIES[errno.ENOMEM], error
    except RuntimeError as error:
        if str(error) not in NO_THREAD:
            raise
        problem, remedy, cause = str(error), REMEDIES[errno.EAGAIN], error
    else:
        return
    raise OutOfResources(f"cannot get {what}: {problem}. {remedy}. {instead}.") from cause


def free_memory() -> int | None:
    """Return the number of bytes of memory that this process can still take; None if that is not known."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    group = Path("/sys/fs/cgroup")  # of a container
    with suppress(OSError, ValueError, StopIteration):
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (group / "memory.stat").read_text().splitlines()
        cached = int(next(line for line in lines if line.startswith("inactive_file")).split()[1])
        found.append(limit - used + cached)
    return max(0, min(found)) if found else None
