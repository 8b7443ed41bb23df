"""WorkerErrors: the errors that explain why a worker of a vec does not answer.

`workers.py` finds out that a worker is lost. This file only describes it, in words for the user.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from shoal._core._native import ParentSignals
from shoal.errors import EnvError, WorkerDied, WorkerTimeout
from shoal.processes.messages import HEADER
from shoal.processes.remote_errors import unpack_error
from shoal.processes.share import Share
from shoal.processes.worker import CONNECTION_CLOSED
from shoal.stepping.env_faults import Guard, summary_of

RESTART = 'use on_error="restart"'

ExitCode = int | str | None
"""The exit code of a worker: negative if a signal killed it; a text if it could not be started; None if it is
not known."""


class WorkerErrors:
    """Make the errors that explain why a worker does not answer.

    Args:
        creator_numbers: For each worker, the numbers of its creators. They stand for the envs until `assign`.

    Attributes:
        reported: The lost workers for which an error has been made.
    """

    def __init__(self, creator_numbers: Sequence[Sequence[int]]) -> None:
        self.reported: set[int] = set()
        self._env_ids = creator_numbers
        self._reset_verb: str | None = None
        self._signals: ParentSignals | None = None
        self._unsent: list[NDArray[np.uint8]] = []

    def assign(
        self, shares: Sequence[Share], memory: NDArray[np.uint8], signals: ParentSignals, reset_verb: str
    ) -> None:
        """Use the shares of the workers and the shared memory for all errors from now on.

        Args:
            shares: The share of each worker.
            memory: The shared memory.
            signals: The handshake.
            reset_verb: The method that a user calls to start a lost worker anew.
        """
        self._env_ids = [
            [env for block in share.blocks for env in range(block.first_env, block.last_env)]
            for share in shares
        ]
        self._unsent, self._signals = [share.unsent_message(memory) for share in shares], signals
        self._reset_verb = None if shares[0].keeps else reset_verb

    def release(self) -> None:
        """Drop all references to the shared memory."""
        self._unsent, self._signals = [], None

    def forget(self, worker: int) -> None:
        """Forget a worker that is about to be replaced."""
        self._unsent[worker][: HEADER.size] = 0
        self.reported.discard(worker)

    def death_error(self, worker: int, code: ExitCode, *, disconnected: bool) -> Exception:
        """Make the error for a worker that has ended, or return the error that the worker could not send.

        Args:
            worker: The worker.
            code: The exit code of the worker.
            disconnected: Whether the worker was killed because its connection was closed.
        """
        self.reported.add(worker)
        if (unsent := self._unsent_error(worker)) is not None:
            return unsent
        end = f"was ended: {CONNECTION_CLOSED}" if disconnected else _describe_exit(code)
        error = WorkerDied(
            f"{self._subject(worker)} {end}.{self._last_env(worker)}{self._advice(RESTART)}",
            self._env_ids[worker],
        )
        error.exit_code = code if isinstance(code, int) and not disconnected else None
        return error

    def timeout_error(self, worker: int, when: str) -> WorkerTimeout:
        """Make the error for a worker that has not answered; `when` ends the sentence."""
        self.reported.add(worker)
        return WorkerTimeout(
            f"{self._subject(worker)} has not answered {when}."
            f"{self._last_env(worker)}{self._advice('allow more by timeout=')}",
            self._env_ids[worker],
        )

    def unpickling_error(self, worker: int, error: Exception) -> EnvError:
        """Make the error for a message of a worker that cannot be unpickled."""
        return EnvError(
            f"what a worker sent cannot be unpickled here: {summary_of(error)}", self._env_ids[worker]
        )

    def envs_of(self, worker: int) -> str:
        """Describe the envs of a worker: "envs 0 to 3, 8 to 11"."""
        ranges: list[list[int]] = []
        for env in self._env_ids[worker]:
            if ranges and ranges[-1][-1] == env - 1:
                ranges[-1][1:] = [env]
            else:
                ranges.append([env])
        names = ", ".join(" to ".join(map(str, each)) for each in ranges)
        return f"{'env' if len(self._env_ids[worker]) == 1 else 'envs'} {names}"

    def _subject(self, worker: int) -> str:
        return f"worker {worker}, which ran {self.envs_of(worker)},"

    def _last_env(self, worker: int) -> str:
        """Name the env that a worker was in, unless the worker was idle."""
        if self._signals is None or not self._signals.due(worker):
            return ""
        env = self._signals.last_env(worker)
        return "" if env < 0 else f" It was last in env {env}."

    def _advice(self, other: str) -> str:
        """Tell the user what to do, unless there is no vec yet or lost workers are replaced anyway."""
        if self._reset_verb is None:
            return ""
        return f" Call {self._reset_verb}() to start it anew, or {other}."

    def _unsent_error(self, worker: int) -> Exception | None:
        """Return the error that a worker has left in shared memory because it could not send it."""
        if not self._unsent:
            return None
        message = self._unsent[worker].tobytes()
        (size,) = HEADER.unpack_from(message)
        if size == 0:
            return None
        try:
            with Guard("an env", "__reduce__"):
                error = unpack_error(pickle.loads(message[HEADER.size : HEADER.size + size]))
        except Exception:  # an env has written there
            return None
        if CONNECTION_CLOSED not in str(error):
            with suppress(Exception):  # an exception may refuse notes
                error.add_note(f"{CONNECTION_CLOSED}: worker {worker} has ended")
        return error


def _describe_exit(code: ExitCode) -> str:
    if code is None:
        return "died; its exit code is not known, because the process that starts workers has ended too"
    if isinstance(code, str):
        return f"could not be started: {code}. Use fewer workers, or allow more (ulimit -u, ulimit -n)"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"
