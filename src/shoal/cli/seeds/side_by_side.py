"""Runs of several seeds side by side, each a process on its own cores.

    waiting -(cores are free)-> running -> done | failed | stopped

Guarantees: at most one run uses a core. A process that is left when the block of `SideBySide` ends is
killed. If this process is killed, the kernel kills the others (`process`).
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from shoal.cores import affinity, usable_cores
from shoal.learn.runs.files import file_errors_in_words
from shoal.learn.runs.metrics import UPDATES, read_lines
from shoal.learn.runs.run import CONFIG

TAIL = 1 << 14  # bytes: some dozens of lines of metrics
LOG = "log.txt"
COMMAND = (sys.executable, "-m", "shoal.cli.seeds.process")


class Status(Enum):
    """State of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class Progress(NamedTuple):
    """The latest figures of a run."""

    steps: int
    total_steps: int
    steps_per_second: float
    mean_return: float


class _Metrics(NamedTuple):
    """The end of a file of metrics."""

    version: tuple[int, ...]
    """Changes with the file."""
    lines: list[dict[str, Any]]
    progress: Progress | None


@dataclass
class SeedRun:
    """The run of one seed.

    Attributes:
        seed: The seed.
        folder: The folder of the run.
        args: What follows ``shoal``.
        status: State of the run.
        code: The exit code of its process; negative if a signal ended it.
    """

    seed: int
    folder: Path
    args: Sequence[str]
    status: Status = Status.WAITING
    code: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _cores: set[int] = field(default_factory=set)
    _steps_before: int = 0
    _log_begin: int = 0
    _metrics: _Metrics | None = None

    def start(self, cores: set[int]) -> None:
        """Start the process on these cores. Its output is appended to the log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._steps_before = self._steps()
        python, *module = COMMAND
        # With -m, Python imports from the current folder first. A process does so only if this one does.
        safe = () if {"", str(Path.cwd())} & set(sys.path) else ("-P",)
        command = [python, *safe, *module, str(os.getpid()), *self.args]
        with os.fdopen(_open_log(self.folder / LOG), "ab") as log, _on_cores(cores):
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C in the terminal reaches this process only, which passes it on once.
                process_group=0,
            )
        self._cores, self.status = cores, Status.RUNNING

    def poll(self, *, stopping: bool) -> bool:
        """Return whether the process has ended, and update the status."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        self.code = code
        if code == 0:
            self.status = Status.DONE
        elif code == 130 or (stopping and code < 0):
            self.status = Status.STOPPED
        else:
            self.status = Status.FAILED
        return True

    def release(self) -> set[int]:
        """Return the cores of a run that has ended."""
        cores, self._cores = self._cores, set()
        return cores

    def stop(self) -> None:
        """Ask the process to end after its update, and to save."""
        if self._process is not None:
            # Not SIGINT: it is ignored by the background processes of a shell script until they handle it.
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its workers at once."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def has_begun(self) -> bool:
        """Whether the metrics have changed since the process started."""
        return self._steps() != self._steps_before

    def _steps(self) -> int:
        lines = self._read_metrics().lines
        return lines[-1]["steps"] if lines else 0

    def progress(self) -> Progress | None:
        """Read the latest figures; None before the first update."""
        return self._read_metrics().progress

    def _read_metrics(self) -> _Metrics:
        """Read the end of the metrics, if it has changed."""
        try:
            stat = (self.folder / UPDATES).stat()
            version = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            return _Metrics((), [], None)
        if self._metrics is None or self._metrics.version != version:
            lines = read_lines(self.folder / UPDATES, TAIL)[0]
            self._metrics = _Metrics(version, lines, _progress(self.folder, lines))
        return self._metrics

    def log_lines(self, count: int) -> list[str]:
        """Return the last lines that the process has printed."""
        try:
            with (self.folder / LOG).open("rb") as log:
                log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - TAIL))
                return log.read().decode(errors="replace").splitlines()[-count:]
        except OSError:
            return []


def _open_log(path: Path) -> int:
    """Open a log to append to, but not through a link that a stranger may have put there."""
    with file_errors_in_words(path):
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _progress(folder: Path, lines: Sequence[dict[str, Any]]) -> Progress | None:
    try:
        total = int(json.loads((folder / CONFIG).read_bytes())["config"]["total_steps"])
        first, last = lines[0], lines[-1]
        # Over all lines that were read, because the speed of a single update is noisy.
        seconds = last["seconds"] - first["seconds"]
        speed = (last["steps"] - first["steps"]) / seconds if seconds > 0 else last["steps_per_second"]
        returns = last["mean_return"]
        return Progress(last["steps"], total, float(speed), math.nan if returns is None else float(returns))
    except (OSError, ValueError, LookupError, TypeError):  # not written yet, or damaged
        return None


class SideBySide:
    """Starts runs as cores become free, and ends what is left at the end of its block.

    Args:
        runs: The runs, in the order in which they start.

    Attributes:
        groups: The groups of cores, one for each run at a time.
        stopping: Whether the runs were asked to stop. Then no run starts any more.
    """

    def __init__(self, runs: Sequence[SeedRun]) -> None:
        self._runs = runs
        self.groups = core_groups(len(runs))
        self._free = list(self.groups)
        self.stopping = False

    def __enter__(self) -> Self:
        """Return itself; `advance` starts the runs."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill the processes that are left."""
        self.kill()

    @property
    def is_over(self) -> bool:
        """Whether no run is running, and none will start."""
        return not any(self._with(Status.RUNNING)) and (self.stopping or not any(self._with(Status.WAITING)))

    def _with(self, status: Status) -> Iterator[SeedRun]:
        return (run for run in self._runs if run.status is status)

    def advance(self) -> list[SeedRun]:
        """Look which processes have ended, and start others in their place; return the runs that changed."""
        changed = []
        for run in self._with(Status.RUNNING):
            if run.poll(stopping=self.stopping):
                self._free.append(run.release())
                changed.append(run)
        for run in () if self.stopping else list(self._with(Status.WAITING))[: len(self._free)]:
            run.start(self._free.pop())
            changed.append(run)
        return changed

    def stop(self) -> None:
        """Ask all processes to end after their updates, and start no others."""
        self.stopping = True
        for run in self._with(Status.RUNNING):
            run.stop()

    def kill(self) -> None:
        """End all processes at once, and start no others."""
        self.stopping = True
        for run in self._with(Status.RUNNING):
            run.kill()


def core_groups(runs: int) -> list[set[int]]:
    """Split the usable cores into one group for each run, or for as many runs as there are cores.

    Returns:
        The groups, all of one size. If processes cannot be bound to cores, one group of all cores, so that
        runs do not share cores.
    """
    cores, count = affinity(), usable_cores()
    try:
        os.sched_setaffinity(0, cores)
    except (AttributeError, OSError):
        return [set(cores)]
    if count < len(cores):
        # A CPU quota. At random, because others on this machine may choose some of its cores too.
        cores = sorted(random.sample(cores, count))
    size = count // min(runs, count)  # equal groups: results must not depend on which one becomes free
    return [set(cores[first : first + size]) for first in range(0, size * min(runs, count), size)]


@contextmanager
def _on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Bind processes that are started inside the block to these cores.

    A process inherits the cores of the thread that starts it. Bound later, it would have loaded libraries
    that choose their threads by the number of cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)
