"""Workers: the worker processes of one vec: start, set up, kill and replace them, and exchange messages.

Guarantees
  - A lost worker (dead, late, failed, or interrupted in a message) is in `lost` until it is replaced.
  - When `kill` returns, the worker writes to no row any more.
  - Only the process that made the workers ends them. A fork of that process leaves them alone.

`calls.py` calls the workers and reads their answers. `launcher.py` starts their processes and reports their
ends. `worker_errors.py` makes the errors that explain why a worker is lost.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from shoal._core._native import ParentSignals
from shoal.adapters.single import Creator
from shoal.cores import Patience
from shoal.errors import ArgumentTypeError, Closed, OutOfResources, SpaceMismatch, WorkerError, WorkerTimeout
from shoal.processes import worker as worker_process
from shoal.processes.launcher_client import open_channel
from shoal.processes.messages import (
    Connection,
    ConnectionClosed,
    Deadline,
    DeadlinePassed,
    closed_sockets,
    dumps_by_value,
    first_readable,
    is_writable,
)
from shoal.processes.parent_settings import ParentSettings, pickled_registry
from shoal.processes.remote_errors import unpack_error
from shoal.processes.share import Share
from shoal.processes.worker import FAILED, REQUEST
from shoal.processes.worker_errors import ExitCode, WorkerErrors
from shoal.rows.arena import SharedMemory
from shoal.stepping.env_faults import Guard
from shoal.vector.spaces import UnitFacts

GRACE = 1.0  # seconds for a worker to end by itself before it is killed
CLOSING = 10.0  # seconds for a worker to close its envs, if the vec has no timeout


class WorkerState(Enum):
    """The state of a worker. A worker that is not SERVING counts as lost: it cannot be called."""

    STARTING = "starting"  # its envs are being made
    SERVING = "serving"  # it can be called
    WRITING = "writing"  # a message is being sent to it; it keeps this state if the sending is interrupted
    READING = "reading"  # a message from it is being read; it keeps this state if the reading is interrupted
    LATE = "late"  # it has not answered in time
    FAILED = "failed"  # one of its envs raised, and it takes no more calls
    KILLED = "killed"  # it was killed; its end has not been reported yet
    DEAD = "dead"  # its end has been reported, or its connection is closed


class Workers:
    """The worker processes of a vec.

        STARTING -> SERVING, LATE, KILLED, DEAD
        SERVING  -> WRITING, READING, LATE, FAILED, KILLED, DEAD
        WRITING  -> SERVING, READING, FAILED, KILLED, DEAD
        READING  -> the state before it (SERVING, WRITING, LATE), KILLED, DEAD
        LATE     -> READING, FAILED, KILLED, DEAD
        FAILED   -> KILLED, DEAD
        KILLED   -> DEAD
        DEAD     -> STARTING, as a new process

    Only `_set_state` changes a state.

    Args:
        creators: The creators of each worker.
        creator_numbers: For each worker, the numbers of its creators, for error messages.
        start_method: "forkserver", "fork" or "spawn".
        timeout: The seconds that any one wait may take; None for no limit.

    Attributes:
        timeout: The seconds that any one wait may take; None for no limit.
        num_workers: The number of workers.
        facts: For each worker, the facts of the envs that it made.
        signals: The handshake, after `assign`. Its blocks have their numbers in the vec.
        owners: For each block, its worker.
        blocks: For each worker, its blocks.
        lost: The workers that are not SERVING. They must be replaced before they can be called again.
        errors: The errors that explain why a worker is lost.
        connections: The connection to each worker.
        launcher: The channel to the launcher.
        reset_verb: The method that a user calls to start a lost worker anew.
        ended: Whether `end` has been called.
    """

    signals: ParentSignals

    def __init__(
        self,
        creators: Sequence[Sequence[Creator]],
        creator_numbers: Sequence[Sequence[int]],
        start_method: str,
        timeout: float | None,
    ) -> None:
        self._owner = os.getpid()
        self.timeout = timeout
        self._forks = start_method == "fork"
        self._creator_numbers = creator_numbers
        self.errors = WorkerErrors(creator_numbers)
        self._pickled = [None if self._forks else _pickle_creators(part) for part in creators]
        self._registry = [] if self._forks else pickled_registry()
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
        self._exit_codes: dict[int, ExitCode] = {}  # of workers whose end is known
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
        """Change the state of a worker. Only a new process can leave DEAD."""
        if self._states[worker] is WorkerState.DEAD and state is not WorkerState.STARTING:
            return
        # The worker is added to `lost` first and removed last. If Ctrl-C comes between, it counts as lost.
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
            del self._tokens[self._started]  # no process was started
            raise
        except (ConnectionClosed, DeadlinePassed):
            raise WorkerError("the process that starts workers does not answer: make a new vec") from None
        if self.ended:  # by a signal handler, for example, that has not seen this worker
            self.end(at_once=True)
        self.refuse_if_ended()
        settings = None if self._forks else ParentSettings.of_this_process(self._registry)
        self._send(worker, (worker, self._creator_numbers[worker], settings, self._pickled[worker]), deadline)

    def assign(
        self, shares: list[Share], memory: SharedMemory, patience: Patience, cores: int, *, parent_steps: bool
    ) -> None:
        """Send every worker its share of the vec. After that, all workers are SERVING.

        Args:
            shares: The share of each worker.
            memory: The shared memory, which this object owns from now on.
            patience: How this process polls for answers before it sleeps.
            cores: The number of cores that can be used.
            parent_steps: Whether this process steps some envs itself.
        """
        self._memory = memory
        owners = {part.number: share.worker for share in shares for part in share.blocks}
        self.owners = [owners[block] for block in range(len(owners))]
        self.blocks = [[part.number for part in share.blocks] for share in shares]
        self.signals = ParentSignals(
            memory.block, self.owners, *patience, self.launcher.fileno(), parent_steps, cores
        )
        self._shares = shares
        self.errors.assign(shares, memory.block, self.signals, self.reset_verb)
        deadline = Deadline(self.timeout)
        for worker, share in enumerate(shares):
            self._send(worker, share, deadline, memory.descriptor)
        self._gather(range(self.num_workers), deadline)
        for worker in range(self.num_workers):
            self._send(worker, None, deadline)
            self._set_state(worker, WorkerState.SERVING)
        self._watch_connections()

    def _watch_connections(self) -> None:
        """Make waits of the handshake end if the connection to a worker is closed."""
        serving = [each for worker, each in self.connections.items() if worker not in self.lost]
        self.signals.watch_connections([connection.fileno() for connection in serving])

    def replace(self, worker: int, first_seeds: list[list[int | None]] | None = None) -> None:
        """Kill a worker and start a new one in its place, with new envs.

        Args:
            worker: The worker.
            first_seeds: For each block, the seed of each env's first reset, unless that reset has its own
                seed.
        """
        self.refuse_if_ended()
        self.kill(worker)
        # A launcher that has not reported the end in time does so later. That report is not about the new
        # process.
        self._tokens = {token: each for token, each in self._tokens.items() if each != worker}
        self._note_end(worker, None)
        deadline = Deadline(self.timeout)
        self.connections[worker].disconnect()
        if not self._launcher_lives:
            self.launcher.close()
            self.launcher, self._launcher_lives = self._open(), True
            self.signals.watch(self.launcher.fileno())
        self.signals.renew(worker)
        self._exit_codes.pop(worker, None)
        self.errors.forget(worker)
        self._set_state(worker, WorkerState.STARTING)
        self._start(worker, deadline)
        (facts,) = self._gather([worker], deadline)
        for new, old in zip(facts, self.facts[worker], strict=True):
            if not new.is_like(old):
                raise SpaceMismatch(
                    f"the envs of worker {worker}, made anew, are not like those before: {new}"
                )
        assert self._memory is not None
        share = replace(self._shares[worker], first_seeds=first_seeds)
        self._send(worker, share, deadline, self._memory.descriptor)
        self._gather([worker], deadline)
        self._send(worker, None, deadline)
        self._set_state(worker, WorkerState.SERVING)
        self._watch_connections()

    def kill(self, worker: int, patience: float = CLOSING) -> None:
        """Kill a worker and wait up to `patience` seconds for its end. It then writes to no row any more."""
        self._set_state(worker, WorkerState.KILLED)
        for token, each in list(self._tokens.items()):
            if each == worker:
                self.launcher.kill(token)
        self._await_death(worker, patience)  # no report: the launcher has ended, and all workers too

    def _await_death(self, worker: int, patience: float) -> bool:
        """Wait for the report of a worker's end; return whether it came within `patience` seconds."""
        deadline = Deadline(patience)
        with suppress(DeadlinePassed):
            while worker in self._tokens.values():
                self._read_report(deadline)
        return worker not in self._tokens.values()

    def _send(self, worker: int, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send a message to a worker that is being set up."""
        try:
            self.connections[worker].send(message, deadline, *descriptors)
        except ConnectionClosed:
            pass  # the wait for its reply finds out
        except DeadlinePassed:
            raise self.timeout_error(worker, "while it was starting") from None

    def _gather(self, workers: Sequence[int], deadline: Deadline) -> list[Any]:
        """Receive one reply from each of these workers, which are being set up."""
        replies: dict[int, Any] = {}
        while missing := [worker for worker in workers if worker not in replies]:
            worker = missing[0]
            try:
                # Watch the launcher too: children of a dead worker may hold its connection open.
                connections = {worker: self.connections[worker] for worker in missing}
                first = first_readable({**connections, None: self.launcher}, deadline)
                self.notice_ends()
                dead = [worker for worker in missing if worker in self._exit_codes]
                if first is None and not dead:
                    continue
                worker = dead[0] if first is None else first
                outcome, reply = self._unpickled(worker, self._receive(worker, deadline))
            except DeadlinePassed:
                raise self.timeout_error(worker, "while it was starting") from None
            except ConnectionClosed:
                raise self.death_error(worker) from None
            if outcome == FAILED:
                raise unpack_error(reply)
            replies[worker] = reply
        return [replies[worker] for worker in workers]

    # -- messages --------------------------------------------------------------------------------------

    def dumps(self, message: Any) -> bytes:
        """Pickle a message in a way that workers can unpickle."""
        return self.launcher.dumps(message)

    def post(self, block: int, request: bytes) -> None:
        """Call a block with a request. If the request cannot be sent, the wait for the answer finds out."""
        worker = self.owners[block]
        self._set_state(worker, WorkerState.WRITING)
        self.signals.post([block], REQUEST)
        try:
            self.connections[worker].post(request, Deadline(self.timeout))
        except ConnectionClosed:
            self._note_end(worker, None)  # until the launcher reports the exit code
        except DeadlinePassed:
            pass
        else:
            self._set_state(worker, WorkerState.SERVING)

    def has_room(self, worker: int) -> bool:
        """Return whether a small request to a worker would be sent at once."""
        return is_writable(self.connections[worker])

    def begin_reading(self, worker: int) -> WorkerState:
        """Set the state of a worker to READING, before its message is read; return the state before."""
        before = self._states[worker]
        self._set_state(worker, WorkerState.READING)
        return before

    def read(self, worker: int, before: WorkerState, deadline: Deadline) -> Any:
        """Read a message of a worker that has answered, and set its state back to `before`.

        Raises:
            ConnectionClosed: If the worker has died.
            DeadlinePassed: If the message does not come in time, or if an earlier message was not read to its
                end.
            EnvError: If the message cannot be unpickled here.
        """
        if before is WorkerState.READING:  # interrupted: the rest of that message is still in the connection
            raise DeadlinePassed
        pickled = self._receive(worker, deadline)
        self._set_state(worker, before)
        return self._unpickled(worker, pickled)

    def fail(self, worker: int) -> None:
        """Note that a worker has raised an error and takes no more calls."""
        self._set_state(worker, WorkerState.FAILED)

    def _receive(self, worker: int, deadline: Deadline) -> bytes:
        return self.connections[worker].receive(deadline, lambda: self._has_ended(worker))[0]

    def _unpickled(self, worker: int, pickled: bytes) -> Any:
        try:
            with Guard("an env", "__reduce__"):
                return pickle.loads(pickled)
        except Exception as error:
            raise self.errors.unpickling_error(worker, error) from error

    # -- lost workers ----------------------------------------------------------------------------------

    def _has_ended(self, worker: int) -> bool:
        self.notice_ends()
        return worker in self._exit_codes

    def _note_end(self, worker: int, code: ExitCode) -> None:
        """Note that a worker has ended; `code` is None until the launcher has reported its exit code."""
        if code is not None or worker not in self._exit_codes:
            self._exit_codes[worker] = code
        self._set_state(worker, WorkerState.DEAD)

    def notice_ends(self) -> None:
        """Read all reports of the launcher about workers that have ended."""
        with suppress(DeadlinePassed):
            while self._tokens:
                self._read_report(Deadline(0.0))

    def notice_closed_connections(self) -> None:
        """Note workers whose connection is closed, even if the launcher has not reported their end."""
        serving = {worker: each for worker, each in self.connections.items() if worker not in self.lost}
        for worker in closed_sockets(serving):
            self._note_end(worker, None)
        self._watch_connections()

    def _read_report(self, deadline: Deadline) -> None:
        """Read the launcher's next report of an end. If the launcher has ended, all workers have ended too.

        Raises:
            DeadlinePassed: If there is no report before the deadline.
        """
        code: ExitCode
        try:
            token, code = self.launcher.next_end(deadline)
            tokens = [token] if token in self._tokens else []
        except ConnectionClosed:
            tokens, code = list(self._tokens), None
            self._launcher_lives = False
            if self._shares:
                self.signals.watch(-1)  # there will be no more reports
        for token in tokens:
            worker = self._tokens[token]
            self._exit_codes[worker] = code
            self._set_state(worker, WorkerState.DEAD)
            del self._tokens[token]

    def unreported_deaths(self) -> set[int]:
        """Return the workers that have died and for which no error has been made yet."""
        return (self.lost & set(self._exit_codes)) - self.errors.reported

    def lost_error(self, worker: int) -> Exception:
        """Make the error that explains why a lost worker does not answer."""
        if worker in self._exit_codes:
            return self.death_error(worker)
        return self.timeout_error(worker, "since a call before")

    def death_error(self, worker: int) -> Exception:
        """Make sure that a worker has ended, and make the error that explains how."""
        # Its end may not have been reported yet. Or it lives, without a connection to this process.
        self.launcher.wake()
        lives = not self._await_death(worker, GRACE)
        self.kill(worker, GRACE)
        code = self._exit_codes.get(worker)
        # With another exit code, the worker died earlier, and Ctrl-C interrupted the report.
        return self.errors.death_error(worker, code, disconnected=lives and code == -signal.SIGKILL)

    def timeout_error(self, worker: int, when: str) -> WorkerTimeout:
        """Note that a worker has not answered in time, and make the error for it. The worker is lost now."""
        if self._states[worker] in (WorkerState.STARTING, WorkerState.SERVING):
            self._set_state(worker, WorkerState.LATE)
        return self.errors.timeout_error(worker, when)

    @property
    def restarts(self) -> bool:
        """Whether lost workers are replaced without a call of the user."""
        return bool(self._shares) and self._shares[0].keeps

    # -- the end ---------------------------------------------------------------------------------------

    def made_here(self) -> bool:
        """Return whether this process made the workers; a fork of that process did not."""
        return os.getpid() == self._owner

    def refuse_if_ended(self) -> None:
        """Raise if the vec was closed, so that a verb that is under way stops.

        Raises:
            Closed: If `end` has been called.
        """
        if self.ended:
            raise Closed("the vec was closed while its envs were moving")

    def interrupt(self) -> None:
        """Make the verb end that is under way, in this or another thread. That thread then calls `end`.

        The sockets and the memory stay open, because the verb may be using them.
        """
        self.ended = True
        signals = vars(self).get("signals")
        if signals is not None:
            signals.interrupt()
        for connection in list(self.connections.values()):
            connection.shut_down()

    def end(self, *, at_once: bool = False) -> None:
        """End every worker, and close all connections. May be called again.

        Args:
            at_once: Whether to kill the workers without waiting for them to end by themselves.
        """
        self.ended = True  # first: an interrupted verb must see that the vec was closed, not a lost worker
        if self.made_here():
            for connection in self.connections.values():
                connection.disconnect()  # workers that are still being set up then close their envs
            self.launcher.wake()
            deadline = Deadline(0.0 if at_once else GRACE)
            with suppress(DeadlinePassed):
                while any(self._may_end_by_itself(worker) for worker in self._tokens.values()):
                    self._read_report(deadline)
            for token in list(self._tokens):
                self.launcher.kill(token)
            deadline = Deadline(2 * GRACE)
            with suppress(DeadlinePassed):  # a stopped launcher kills them once it sees its channel closed
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
        self.errors.release()
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        vars(self).pop("signals", None)


def _pickle_creators(creators: Sequence[Creator]) -> bytes:
    try:
        return dumps_by_value(list(creators))
    except Exception as error:
        raise ArgumentTypeError(
            f"env: a creator cannot be pickled, so it cannot be sent to a worker: {error}. Make what it "
            'refers to inside the creator, or use start_method="fork".'
        ) from error
