"""Start, stop and end the processes of a contestant, from the side of the harness.

Guarantees: each process of a contestant leads its own process group, which contains its workers. The group is
stopped (SIGSTOP) between its slices, so that workers that spin while idle cannot take a core from others.
After `close` none of these processes exists, not even as a zombie.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import IO, Any

from guard import Guard

from shoal.cli._loops import Slice
from shoal.cli._turns import Unfit

START_TIMEOUT = 60.0
SLICE_TIMEOUT = 20.0
WARM_UP = 0.006  # seconds from SIGCONT to the start of the clock: caches fill, workers resume

# One thread for each contestant: they differ in how they use processes, not BLAS.
SAME_FOR_ALL = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "CUDA_VISIBLE_DEVICES": "",
}

HERE = Path(__file__).parent


class ContestantFailed(Unfit):
    """A contestant raised, died or did not answer. The message is one line without paths of this machine."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace(str(HERE.parent), ".").replace(str(Path.home()), "~"))


def adopt_orphans() -> None:
    """Make this process the parent of workers whose own parent has ended, so that it can reap them."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


class Member:
    """One process of a contestant."""

    def __init__(self, python: Path, config: dict[str, Any], guard: Guard) -> None:
        self.guard = guard
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        script = str(HERE / "contestant.py")
        arguments = json.dumps({**config, "requests": requests, "answers": answers})
        try:
            self.process = subprocess.Popen(
                [str(python), script, arguments],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(requests, answers),
                env={**os.environ, **SAME_FOR_ALL},
                start_new_session=True,
            )
        finally:
            os.close(requests)
            os.close(answers)
        guard.watch(self.process.pid)
        self.death = os.pidfd_open(self.process.pid)
        self.unread = b""

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ask(self, **fields: Any) -> None:
        with suppress(BrokenPipeError):  # the process has died; `answer` reports it
            os.write(self.requests, json.dumps(fields).encode() + b"\n")

    def answer(self, timeout: float, doing: str) -> dict[str, Any]:
        deadline = monotonic() + timeout
        while b"\n" not in self.unread:
            left = max(0.0, deadline - monotonic())
            # Watch the process too: its workers may keep the pipe open after its death.
            ready, _, _ = select.select([self.answers, self.death], [], [], left)
            if self.answers in ready:
                received = os.read(self.answers, 65536)
                self.unread += received
                if received:
                    continue
            if ready:
                raise ContestantFailed(f"died while {doing}: {self._last_words()}")
            raise ContestantFailed(f"no answer within {timeout:g} s while {doing}")
        line, _, self.unread = self.unread.partition(b"\n")
        fields = json.loads(line)
        if "error" in fields:
            raise ContestantFailed(fields["error"])
        return fields

    def end(self) -> None:
        self.signal(signal.SIGKILL)  # reaches stopped processes too
        self.process.wait()
        with suppress(ChildProcessError):
            while True:  # its workers, which are children of this process now
                os.waitpid(-self.process.pid, 0)
        self.guard.forget(self.process.pid)
        for descriptor in (self.requests, self.answers, self.death):
            os.close(descriptor)
        self.log.close()

    def _last_words(self) -> str:
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {code}"


class Runner:
    """Run a contestant in one or more processes."""

    def __init__(self, python: Path, config: dict[str, Any], processes: int, guard: Guard) -> None:
        self.members: list[Member] = []
        try:
            for _ in range(processes):
                self.members.append(Member(python, config, guard))
            answers = [member.answer(START_TIMEOUT, "starting") for member in self.members]
        except BaseException:
            self.close()
            raise
        self.facts = answers[0]
        self._signal(signal.SIGSTOP)

    def slice(self, seconds: float) -> Slice:
        """Run a timed slice in all processes at once."""
        self._signal(signal.SIGCONT)
        start = perf_counter() + WARM_UP
        for member in self.members:
            member.ask(start=start, seconds=seconds)
        answers = [member.answer(SLICE_TIMEOUT, "running a slice") for member in self.members]
        self._signal(signal.SIGSTOP)
        return Slice.of(*((answer["steps"], answer["seconds"]) for answer in answers))

    def close(self) -> None:
        """End all processes. A second call does nothing."""
        while self.members:
            self.members.pop().end()

    def _signal(self, number: int) -> None:
        for member in self.members:
            member.signal(number)
