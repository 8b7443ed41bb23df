"""Workers: the worker processes of one vec, how they are set up, and what happens when one is lost.

Guarantees
  - A worker that is lost (dead, late, failed, or interrupted in a message) is in `lost` until it is replaced.
  - When `kill` returns, the worker writes to no row any more.
  - Only the process that made the workers ends them. In a fork of it nothing happens to them.

`calls.py` says what workers are asked for and how their answers are read. `launcher.py` starts them and
reports their ends.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from shoal._core._native import ParentSignals
from shoal.adapters.single import Creator
from shoal.cores import Patience
from shoal.errors import (
    ArgumentTypeError,
    Closed,
    EnvError,
    OutOfResources,
    SpaceMismatch,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from shoal.processes import worker as worker_process
from shoal.processes.launcher_client import ONE_THREAD, open_channel
from shoal.processes.messages import (
    HEADER,
    Connection,
    Deadline,
    Gone,
    Late,
    closed_lines,
    dumps_by_value,
    first_to_speak,
)
from shoal.processes.remote_errors import unpack_error
from shoal.processes.share import Share, World
from shoal.processes.worker import FAILED, LINE_CLOSED, REQUEST
from shoal.rows.arena import SharedMemory
from shoal.stepping.env_faults import Guard, summary_of
from shoal.vector.spaces import UnitFacts

RESTART = 'use on_error="restart"'

GRACE = 1.0  # seconds for a worker to finish by itself what is no longer wanted
CLOSING = 10.0  # seconds to close its envs, if the vec has no timeout


class WorkerState(Enum):
    """The state of a worker. In all states but SERVING it counts as lost: it cannot be called."""

    STARTING = "starting"  # its envs are being made
    SERVING = "serving"  # it can be called
    WRITING = "writing"  # a message to it is on its way; it stays so if that was interrupted
    READING = "reading"  # a message from it is being read; it stays so if that was interrupted
    LATE = "late"  # it has not answered in time
    FAILED = "failed"  # an env raised in it, and it does nothing more
    KILLED = "killed"  # it was told to die; its end has not been reported yet
    DEAD = "dead"  # its end has been reported, or its connection is closed


class Workers:
    """The worker processes of a vec.

        STARTING --(assign, replace)--> SERVING <--(begin and end of a message)--> WRITING, READING
        SERVING --(no answer in time)--> LATE       SERVING --(an error that ends it)--> FAILED
        any state --(its end is reported)--> DEAD   any state --(kill)--> KILLED --> DEAD
        any state --(replace)--> STARTING --> SERVING, as a new process

    Only `_set_state` changes a state.

    Args:
        creators: The creators of each worker.
        numbers: The numbers of these creators, for messages.
        start_method: How workers start.
        timeout: Seconds for any one wait; None waits for ever.

    Attributes:
        facts: For each worker, the facts of the envs that it made.
        signals: The handshake, once `assign` has been called. It counts blocks through the whole vec.
        owners: For each block, its worker.
        blocks: For each worker, its blocks.
        lost: Workers that must be replaced before they can be called again: all that are not SERVING.
        reset_verb: What a user calls to start a lost worker anew.
        ended: Whether `end` has been called.
    """

    signals: ParentSignals

    def __init__(
        self,
        creators: Sequence[Sequence[Creator]],
        numbers: Sequence[Sequence[int]],
        start_method: str,
        timeout: float | None,
    ) -> None:
        self._owner = os.getpid()
        self.timeout = timeout
        self._forks = start_method == "fork"
        self._units = numbers
        self._ids = numbers  # of creators, later of envs
        self._pickled = [None if self._forks else _pickle_creators(part) for part in creators]
        self._specs = [] if self._forks else _registrations()
        self._open = partial(open_channel, start_method, partial(worker_process.main, creators=creators))
        self.num_workers = len(creators)
        self.owners: list[int] = []
        self.blocks: list[list[int]] = []
        self._states = [WorkerState.STARTING] * self.num_workers
        self.lost: set[int] = set(range(self.num_workers))
        self.reset_verb = "reset"
        self.ended = False
        self.connections: dict[int, Connection] = {}
        self._tokens: dict[int, int] = {}  # the workers whose end has not been reported, by token
        self._started = 0
        self._exit_codes: dict[int, int | str | None] = {}  # of workers whose end is known
        self._told: set[int] = set()  # workers whose loss an error has told
        self._shares: list[Share] = []
        self._memory: SharedMemory | None = None
        self.launcher, self._launcher_lives = self._open(), True
        try:
            deadline = Deadline(timeout)
            for worker in range(self.num_workers):
                self._start(worker, deadline)
            self.facts: list[list[UnitFacts]] = self._gather(range(self.num_workers), deadline)
        except BaseException:
            self.end()
            raise

    def _set_state(self, worker: int, state: WorkerState) -> None:
        """Change the state of a worker. Nothing but a new process follows on DEAD."""
        if self._states[worker] is WorkerState.DEAD and state is not WorkerState.STARTING:
            return
        # First `lost`, and last for SERVING: if Ctrl-C comes between, the worker counts as lost.
        if state is not WorkerState.SERVING:
            self.lost.add(worker)
        self._states[worker] = state
        if state is WorkerState.SERVING:
            self.lost.discard(worker)

    def state(self, worker: int) -> WorkerState:
        """Return the state of a worker."""
        return self._states[worker]

    # -- setting up and replacing ----------------------------------------------------------------------

    def _start(self, worker: int, deadline: Deadline) -> None:
        self._started += 1
        self._tokens[self._started] = worker
        try:
            self.connections[worker] = self.launcher.start(self._started)
        except OutOfResources:
            del self._tokens[self._started]  # there is no process that could die
            raise
        except (Gone, Late):
            raise WorkerError("the process that starts workers does not answer: make a new vec") from None
        if self.ended:  # by a signal handler, say, that has not seen this one
            self.end(at_once=True)
        self.refuse_if_ended()
        world = None if self._forks else _world(self._specs)
        self._tell(worker, (worker, self._units[worker], world, self._pickled[worker]), deadline)

    def assign(
        self, shares: list[Share], memory: SharedMemory, patience: Patience, cores: int, *, parent_steps: bool
    ) -> None:
        """Tell every worker its share of the memory; from then on they serve.

        Args:
            shares: The share of each worker.
            memory: The shared memory, which belongs to the workers from now on.
            patience: How this process waits before it sleeps.
            cores: The number of cores that can be used.
            parent_steps: Whether this process steps a share itself.
        """
        self._memory = memory
        owners = {part.number: share.worker for share in shares for part in share.blocks}
        self.owners = [owners[block] for block in range(len(owners))]
        self.blocks = [[part.number for part in share.blocks] for share in shares]
        self.signals = ParentSignals(
            memory.block, self.owners, *patience, self.launcher.fileno(), parent_steps, cores
        )
        self._shares = shares
        self._ids = [
            [env for part in share.blocks for env in range(part.first_env, part.last_env)] for share in shares
        ]
        deadline = Deadline(self.timeout)
        for worker, share in enumerate(shares):
            self._tell(worker, share, deadline, memory.descriptor)
        self._gather(range(self.num_workers), deadline)
        for worker in range(self.num_workers):
            self._tell(worker, None, deadline)
            self._set_state(worker, WorkerState.SERVING)
        self._watch_connections()

    def _watch_connections(self) -> None:
        """Let a wait notice if the connection to a worker is closed."""
        open_ones = [line for worker, line in self.connections.items() if worker not in self.lost]
        self.signals.watch_lines([line.fileno() for line in open_ones])

    def replace(self, worker: int, due: list[list[int | None]] | None = None) -> None:
        """Kill a worker and put a new one in its place, with new envs.

        Args:
            worker: The worker.
            due: By block, the seed of each env's first reset, unless that reset has one of its own.
        """
        self.refuse_if_ended()
        self.kill(worker)
        deadline = Deadline(self.timeout)
        self.connections[worker].hang_up()
        if not self._launcher_lives:
            self.launcher.close()
            self.launcher, self._launcher_lives = self._open(), True
            self.signals.watch(self.launcher.fileno())
        self.signals.renew(worker)
        self._exit_codes.pop(worker, None)
        self._last_message_of(worker)[: HEADER.size] = 0
        self._told.discard(worker)
        self._set_state(worker, WorkerState.STARTING)
        self._start(worker, deadline)
        (facts,) = self._gather([worker], deadline)
        for new, old in zip(facts, self.facts[worker], strict=True):
            if not new.is_like(old):
                raise SpaceMismatch(
                    f"the envs of worker {worker}, made anew, are not like those before: {new}"
                )
        assert self._memory is not None
        self._tell(worker, replace(self._shares[worker], due=due), deadline, self._memory.descriptor)
        self._gather([worker], deadline)
        self._tell(worker, None, deadline)
        self._set_state(worker, WorkerState.SERVING)
        self._watch_connections()

    def kill(self, worker: int, patience: float = CLOSING) -> None:
        """Kill a worker; when this returns, it writes to no row any more."""
        self._set_state(worker, WorkerState.KILLED)
        for token, each in list(self._tokens.items()):
            if each == worker:
                self.launcher.kill(token)
        self._await_death(worker, patience)  # without a report the launcher is gone, and all workers with it

    def _await_death(self, worker: int, patience: float) -> bool:
        """Wait for the report of a worker's end; return whether it came within `patience` seconds."""
        deadline = Deadline(patience)
        with suppress(Late):
            while worker in self._tokens.values():
                self._read_report(deadline)
        return worker not in self._tokens.values()

    def _tell(self, worker: int, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send what a worker needs to know while it is being set up."""
        try:
            self.connections[worker].send(message, deadline, *descriptors)
        except Gone:
            pass  # the wait for its answer will find out
        except Late:
            raise self.timeout_error(worker, "while it was starting") from None

    def _gather(self, workers: Sequence[int], deadline: Deadline) -> list[Any]:
        """Receive what each of these workers replies while it is being set up."""
        replies: dict[int, Any] = {}
        while missing := [worker for worker in workers if worker not in replies]:
            worker = missing[0]
            try:
                # The channel too: a worker's own children may hold its line open when it dies.
                lines = {worker: self.connections[worker] for worker in missing}
                first = first_to_speak({**lines, None: self.launcher}, deadline)
                self.notice_ends()
                dead = [worker for worker in missing if worker in self._exit_codes]
                if first is None and not dead:
                    continue
                worker = dead[0] if first is None else first
                outcome, reply = self._unpickled(worker, self._receive(worker, deadline))
            except Late:
                raise self.timeout_error(worker, "while it was starting") from None
            except Gone:
                raise self.death_error(worker) from None
            if outcome == FAILED:
                raise unpack_error(reply)
            replies[worker] = reply
        return [replies[worker] for worker in workers]

    # -- messages --------------------------------------------------------------------------------------

    def dumps(self, message: Any) -> bytes:
        """Pickle a message so that workers can read it."""
        return self.launcher.dumps(message)

    def post(self, block: int, request: bytes) -> None:
        """Call a block for a request. The wait for its answer finds out whether the worker got it."""
        worker = self.owners[block]
        self._set_state(worker, WorkerState.WRITING)
        self.signals.post([block], REQUEST)
        try:
            self.connections[worker].post(request, Deadline(self.timeout))
        except Gone:
            self._note_end(worker, None)  # until the launcher reports how it ended
        except Late:
            pass
        else:
            self._set_state(worker, WorkerState.SERVING)

    def begin_reading(self, worker: int) -> WorkerState:
        """Note that a message of a worker is about to be read; return the state that it had before."""
        before = self._states[worker]
        self._set_state(worker, WorkerState.READING)
        return before

    def read(self, worker: int, before: WorkerState, deadline: Deadline) -> Any:
        """Read a message of a worker that has answered. It is then in the state `before` again.

        Raises:
            Gone: If it has died.
            Late: If it takes too long, or if an earlier message was not read to its end.
            EnvError: If the message cannot be unpickled here.
        """
        if before is WorkerState.READING:  # interrupted: the rest of that message is still in the connection
            raise Late
        pickled = self._receive(worker, deadline)
        self._set_state(worker, before)
        return self._unpickled(worker, pickled)

    def fail(self, worker: int) -> None:
        """Note that a worker has raised an error after which it does nothing more."""
        self._set_state(worker, WorkerState.FAILED)

    def _receive(self, worker: int, deadline: Deadline) -> bytes:
        return self.connections[worker].receive(deadline, lambda: self._has_ended(worker))[0]

    def _unpickled(self, worker: int, pickled: bytes) -> Any:
        try:
            with Guard("an env", "__reduce__"):
                return pickle.loads(pickled)
        except Exception as error:
            raise EnvError(
                f"what a worker sent cannot be unpickled here: {summary_of(error)}", self._ids[worker]
            ) from error

    # -- lost workers ----------------------------------------------------------------------------------

    def _has_ended(self, worker: int) -> bool:
        self.notice_ends()
        return worker in self._exit_codes

    def _note_end(self, worker: int, code: int | str | None) -> None:
        """Note that a worker has ended; `code` is None as long as the launcher has not reported how."""
        if code is not None or worker not in self._exit_codes:
            self._exit_codes[worker] = code
        self._set_state(worker, WorkerState.DEAD)

    def notice_ends(self) -> None:
        """Note all ends of workers that the launcher has reported."""
        with suppress(Late):
            while self._tokens:
                self._read_report(Deadline(0.0))

    def notice_closed_connections(self) -> None:
        """Note workers that have ended, or cannot be reached, though no end has been reported."""
        there = {worker: line for worker, line in self.connections.items() if worker not in self.lost}
        for worker in closed_lines(there):
            self._note_end(worker, None)
        self._watch_connections()

    def _read_report(self, deadline: Deadline) -> None:
        """Read the launcher's next report of an end. If the launcher is gone, all workers have ended with it.

        Raises:
            Late: If there is none in time.
        """
        code: int | str | None
        try:
            token, code = self.launcher.death(deadline)
            tokens = [token] if token in self._tokens else []
        except Gone:
            tokens, code = list(self._tokens), None
            self._launcher_lives = False
            if self._shares:
                self.signals.watch(-1)  # there will be no more reports
        for token in tokens:
            worker = self._tokens[token]
            self._exit_codes[worker] = code
            self._set_state(worker, WorkerState.DEAD)
            del self._tokens[token]

    def died_untold(self) -> set[int]:
        """Return the workers that have died without an error that told it."""
        return (self.lost & set(self._exit_codes)) - self._told

    def loss(self, worker: int) -> Exception:
        """Make the error that says why a lost worker will not answer."""
        if worker in self._exit_codes:
            return self.death_error(worker)
        return self.timeout_error(worker, "since a call before")

    def death_error(self, worker: int) -> Exception:
        """Make the error that says how a worker died, or return the one that it could not send any more."""
        self._told.add(worker)
        # Its end may not have been reported yet. Or it lives, without a connection to this process.
        self.launcher.wake()
        lives = not self._await_death(worker, GRACE)
        self.kill(worker, GRACE)
        if self._shares and (last := self._unsent_error(worker)) is not None:
            return last
        code = self._exit_codes.get(worker)
        how = _how(code)
        # Otherwise the worker had died earlier, and Ctrl-C interrupted the message about it.
        if lives and code == -signal.SIGKILL:
            code, how = None, f"was ended: {LINE_CLOSED}"
        error = WorkerDied(
            f"worker {worker}, which ran {self.envs_of(worker)}, {how}.{self._whereabouts(worker)}"
            f"{self._advice(RESTART)}",
            self._ids[worker],
        )
        error.exit_code = code if isinstance(code, int) else None
        return error

    def _last_message_of(self, worker: int) -> NDArray[np.uint8]:
        assert self._memory is not None
        return self._shares[worker].last_message(self._memory.block)

    def _unsent_error(self, worker: int) -> Exception | None:
        """Return the error that a worker has left in shared memory because it could not send it."""
        words = self._last_message_of(worker).tobytes()
        (size,) = HEADER.unpack_from(words)
        if size == 0:
            return None
        try:
            with Guard("an env", "__reduce__"):
                error = unpack_error(pickle.loads(words[HEADER.size : HEADER.size + size]))
        except Exception:  # an env has written there
            return None
        if LINE_CLOSED not in str(error):
            with suppress(Exception):  # an exception may refuse notes
                error.add_note(f"{LINE_CLOSED}: worker {worker} has ended")
        return error

    def timeout_error(self, worker: int, when: str) -> WorkerTimeout:
        """Make the error that says that a worker has not answered; it is lost from now on."""
        if self._states[worker] in (WorkerState.STARTING, WorkerState.SERVING):
            self._set_state(worker, WorkerState.LATE)
        self._told.add(worker)
        return WorkerTimeout(
            f"worker {worker}, which ran {self.envs_of(worker)}, has not answered {when}."
            f"{self._whereabouts(worker)}{self._advice('allow more by timeout=')}",
            self._ids[worker],
        )

    @property
    def restarts(self) -> bool:
        """Whether lost workers are replaced without the caller's doing."""
        return bool(self._shares) and self._shares[0].keeps

    def _advice(self, other: str) -> str:
        """Say what to do, unless there is no vec yet or lost workers are replaced anyway."""
        if not self._shares or self.restarts:
            return ""
        return f" Call {self.reset_verb}() to start it anew, or {other}."

    def _whereabouts(self, worker: int) -> str:
        env = self.signals.last_env(worker) if self._shares else -1
        return "" if env < 0 else f" It was last in env {env}."

    def envs_of(self, worker: int) -> str:
        """Name the envs of a worker."""
        runs: list[list[int]] = []
        for env in self._ids[worker]:
            if runs and runs[-1][-1] == env - 1:
                runs[-1][1:] = [env]
            else:
                runs.append([env])
        names = ", ".join(" to ".join(map(str, run)) for run in runs)
        return f"{'env' if len(self._ids[worker]) == 1 else 'envs'} {names}"

    # -- the end ---------------------------------------------------------------------------------------

    def is_ours(self) -> bool:
        """Whether this is the process that made the workers, and not a fork of it."""
        return os.getpid() == self._owner

    def refuse_if_ended(self) -> None:
        """Let a verb that was under way when the vec was closed go no further.

        Raises:
            Closed: If `end` has been called.
        """
        if self.ended:
            raise Closed("the vec was closed while its envs were moving")

    def interrupt(self) -> None:
        """Make the verb under way end, in this thread or another one, which then calls `end`.

        Nothing is closed here: that verb may be using it.
        """
        self.ended = True
        signals = vars(self).get("signals")
        if signals is not None:
            signals.interrupt()
        for connection in list(self.connections.values()):
            connection.shut_down()

    def end(self, *, at_once: bool = False) -> None:
        """End every worker: by itself, if it can and if there is time. May be called again."""
        self.ended = True  # first: the verb that this interrupts must not mistake what it finds
        if self.is_ours():
            for connection in self.connections.values():
                connection.hang_up()  # workers that are still being set up close their envs then
            self.launcher.wake()
            deadline = Deadline(0.0 if at_once else GRACE)
            with suppress(Late):
                while any(self._may_end_by_itself(worker) for worker in self._tokens.values()):
                    self._read_report(deadline)
            for token in list(self._tokens):
                self.launcher.kill(token)
            deadline = Deadline(2 * GRACE)
            with suppress(Late):  # a launcher that is stopped kills them when it finds its connection closed
                while self._tokens:
                    self._read_report(deadline)
        for connection in self.connections.values():
            connection.close()
        self.launcher.close()
        self.release()

    def _may_end_by_itself(self, worker: int) -> bool:
        return self._states[worker] in (WorkerState.STARTING, WorkerState.SERVING)

    def release(self) -> None:
        """Drop all references to the shared memory."""
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        vars(self).pop("signals", None)


def _how(code: int | str | None) -> str:
    if code is None:
        return "died; the process that could say how has ended too"
    if isinstance(code, str):
        return f"could not be started: {code}. Use fewer workers, or allow more (ulimit -u, ulimit -n)"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def _pickle_creators(creators: Sequence[Creator]) -> bytes:
    try:
        return dumps_by_value(list(creators))
    except Exception as error:
        raise ArgumentTypeError(
            f"env: a creator cannot be pickled, so it cannot be sent to a worker: {error}. Make what it "
            'refers to inside the creator, or use start_method="fork".'
        ) from error


def _world(specs: list[bytes]) -> World:
    try:
        folder: str | None = str(Path.cwd())
    except FileNotFoundError:
        folder = None
    environment = {**ONE_THREAD, **os.environ}
    return World(list(sys.path), folder, environment, list(sys.argv), faulthandler.is_enabled(), specs)


def _registrations() -> list[bytes]:
    """Gymnasium's registry, a pickle for each id: what it registers by itself may have been replaced."""
    pickled = []
    for name, spec in list(gymnasium.registry.items()):
        plain = isinstance(spec.entry_point, str) and not spec.kwargs
        with suppress(Exception):  # if it is needed, its name will be missed in the worker
            pickled.append((pickle.dumps if plain else dumps_by_value)((name, spec)))
    return pickled
