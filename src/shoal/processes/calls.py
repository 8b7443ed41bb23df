"""Calls: call the workers of a vec, wait for their answers and read their messages.

Guarantees
  - Every call ends with an answer of the worker, or with an error: an exception of an env, the death of the
    worker, or a timeout.
  - Ctrl-C may come between any two lines of this code. Answers and calls still match afterwards: a worker
    counts as lost while a message is being sent to it or read from it.
  - A lost worker is not called until it is replaced. After a failure other workers may still be stepping;
    `finish` waits for them.

The worker's side is `worker.py`; the processes themselves are in `workers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from numpy.typing import NDArray

from shoal.errors import EnvError, ResetNeeded, WorkerDied, WorkerError, WorkerTimeout
from shoal.processes.messages import ConnectionClosed, Deadline, DeadlinePassed
from shoal.processes.objects import InfosAndObjects
from shoal.processes.remote_errors import unpack_error
from shoal.processes.worker import FAILED, STEP
from shoal.processes.workers import CLOSING, GRACE, Workers, WorkerState
from shoal.stepping.env_faults import summary_of

ALL_PLAIN, ALL_ANSWERED, MESSAGES, CHECK_WORKERS, TIMED_OUT = range(5)  # how a wait ends: signals.hpp

LARGE = 1 << 12  # bytes; a request up to this size fits into the buffer of any socket that can be written to

Failures = dict[int, Exception]
"""The error of each worker that has failed."""

Goal = Callable[[float], int]
"""A wait of the handshake. The argument is the limit in seconds; the result says how the wait ended."""


class Interruption:
    """A context for waits. It records whether Ctrl-C ended one, because a worker may hang then.

    Attributes:
        happened: Whether a wait was ended by Ctrl-C, or by another exception that is no `Exception`.
    """

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> None:
        """Begin a wait."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End a wait, and record whether it was interrupted."""
        if kind is not None and not issubclass(kind, Exception):
            self.happened = True


class Calls:
    """Call the workers of a vec, and collect their answers.

    Args:
        workers: The workers, after `Workers.assign`.
        objects: For each block, the object rows of its observations, which messages fill.

    Attributes:
        infos: The infos that blocks have sent and that have not been taken.
        failures: The errors of workers that have failed, if they have not been taken.
        interruption: The context for every wait.
        timeout: The seconds that any one wait may take; None for no limit.
    """

    def __init__(self, workers: Workers, objects: Sequence[NDArray[Any]]) -> None:
        self._workers, self._signals, self._objects = workers, workers.signals, objects
        self.infos: dict[int, Any] = {}
        self.failures: Failures = {}
        self.interruption, self.timeout = Interruption(), workers.timeout

    def release(self) -> None:
        """Drop all references to the shared memory."""
        vars(self).pop("_signals", None)

    def requests(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Pickle requests. Do this before any worker is called, because it may raise."""
        return [self._workers.dumps((verb, *own)) for own in arguments]

    def ask(self, block: int, request: bytes) -> None:
        """Call an idle block with a request other than a plain step. `wait` reads the reply."""
        worker = self._workers.owners[block]
        # A worker that is sending a large message reads no request before that message is read here. If the
        # request may not fit into the buffer of the socket, read the messages of all earlier calls first.
        if len(request) > LARGE or not self._workers.has_room(worker):
            due = self._signals.due(worker)
            self.wait(partial(self._signals.wait_for, due), for_all=True, wanted=due)
        if self._fail_if_lost(worker):
            self._signals.skip([block])
        else:
            self._workers.post(block, request)

    def _fail_if_lost(self, worker: int) -> bool:
        """Return whether a worker is lost, so that it must not be called. If so, record its failure."""
        if worker not in self._workers.lost:
            return False
        self._fail(worker, self._workers.lost_error(worker))
        return True

    def post_steps(self, blocks: Sequence[int]) -> None:
        """Call these blocks for a step, except those of lost workers."""
        if self._workers.lost:
            owners = {self._workers.owners[block] for block in blocks}
            lost = {worker for worker in owners if self._fail_if_lost(worker)}
            self._signals.skip([block for block in blocks if self._workers.owners[block] in lost])
            blocks = [block for block in blocks if self._workers.owners[block] not in lost]
        self._signals.post(blocks, STEP)

    def ask_all(self, verb: str, arguments: Sequence[Any]) -> list[Any]:
        """Send a request to all workers after they have answered all calls; return their replies.

        Args:
            verb: The method of each block.
            arguments: For each worker, a list with a tuple of arguments for each of its blocks.

        Raises:
            Exception: The first error of any worker.
            WorkerDied: If a worker has died since the last call.
            ResetNeeded: If a worker is lost.
        """
        requests = self.requests(verb, [(own,) for own in arguments])
        self.finish()
        self.refuse_if_lost()
        called = [blocks[0] for blocks in self._workers.blocks]  # the first block stands for its worker
        kept = {block: self.infos.pop(block) for block in called if block in self.infos}
        for block, request in zip(called, requests, strict=True):
            self.ask(block, request)
        self.wait(partial(self._signals.wait_for, called), for_all=True, wanted=called)
        replies = [self.infos.get(block) for block in called]
        self.drop(called)
        self.infos.update(kept)
        if self.failures:
            raise first_of(self.take_failures())
        return replies

    def refuse_if_lost(self) -> None:
        """Raise if a worker is lost.

        Raises:
            WorkerDied: If a worker has died since its last answer. This error is raised once.
            ResetNeeded: If a worker is lost.
        """
        if self._workers.lost:
            for worker in sorted(self._workers.unreported_deaths()):
                raise self._workers.lost_error(worker)
            other = ", or go on: lost workers are replaced then" if self._workers.restarts else ""
            raise ResetNeeded(f"a worker is lost: call {self._workers.reset_verb}() to start it anew{other}")

    def wait(
        self,
        goal: Goal | None = None,
        *,
        for_all: bool,
        timeout: float | None = None,
        result: int | None = None,
        wanted: Sequence[int] | None = None,
    ) -> None:
        """Wait for answers. Infos are then in `infos`, and errors in `failures`.

        Args:
            goal: The wait of the handshake; None waits for all calls.
            for_all: Whether to go on waiting after a failure.
            timeout: The limit in seconds; None for the timeout of the vec.
            result: The result of an earlier wait for the same goal.
            wanted: The blocks whose workers are given up after a timeout; None for all called blocks.
        """
        with self.interruption:
            limit = self.timeout if timeout is None else timeout
            self._wait(goal or self._signals.wait, for_all, limit, result, wanted)

    def _wait(
        self,
        goal: Goal,
        for_all: bool,
        limit: float | None,
        result: int | None,
        wanted: Sequence[int] | None,
    ) -> None:
        begun = self._signals.running_seconds()
        while True:
            self._workers.refuse_if_ended()
            left = None if limit is None else max(0.0, limit - (self._signals.running_seconds() - begun))
            self._read_news(result, Deadline(left))
            if result in (ALL_PLAIN, ALL_ANSWERED) or (self.failures and not for_all):
                return
            if result == TIMED_OUT and self._give_up_late(limit, wanted):
                return
            result = goal(-1.0 if left is None else left)

    def _read_news(self, result: int | None, deadline: Deadline) -> None:
        """Read the messages that have come, and record the failures of lost workers.

        Args:
            result: The result of the last wait; None if there was none.
            deadline: The end of the reading.
        """
        self._workers.notice_ends()
        if result == CHECK_WORKERS:
            self._workers.notice_closed_connections()
        self._read_messages(deadline)
        for worker in sorted(self._workers.lost):
            if due := self._signals.due(worker):
                self._fail(worker, self._workers.lost_error(worker))
                self._signals.take(due)

    def _give_up_late(self, limit: float | None, wanted: Sequence[int] | None) -> bool:
        """Record the failures of late workers after a timeout; return False if all answers have just come."""
        due = {worker: self._signals.due(worker) for worker in range(self._workers.num_workers)}
        late = [worker for worker, own in due.items() if own and (wanted is None or set(own) & set(wanted))]
        silent = set(self._signals.overdue(limit or 0.0))  # others have answered in the meantime
        for worker in [worker for worker in late if worker in silent] or late:
            self._fail(worker, self._workers.timeout_error(worker, f"within {limit:g} s"))
            self._signals.take(due[worker])
        return bool(late)

    def give_up_overdue(self) -> None:
        """Record the failures of workers that have not answered in time, even if enough others have."""
        if self.timeout is not None and self._signals.overdue(self.timeout):
            self._read_messages(Deadline(self.timeout))  # a worker may wait for its message to be read
            for worker in self._signals.overdue(self.timeout):
                self._fail(worker, self._workers.timeout_error(worker, f"within {self.timeout:g} s"))
                self._signals.take(self._signals.due(worker))

    def _fail(self, worker: int, error: Exception) -> None:
        """Record the error of a worker. Keep the first one, which is closest to the cause."""
        first = self.failures.setdefault(worker, error)
        if first is not error and not isinstance(error, WorkerError):
            with suppress(Exception):  # an exception may refuse notes
                first.add_note(f"and another env of its worker failed: {summary_of(error)}")

    def take_failures(self) -> Failures:
        """Return all failures, and clear them."""
        failures, self.failures = self.failures, {}
        return failures

    def _read_messages(self, deadline: Deadline) -> None:
        """Read the messages of blocks that have answered with one."""
        for block in self._signals.unread():
            worker = self._workers.owners[block]
            # First: if Ctrl-C comes before the message is read, the worker counts as lost.
            before = self._workers.begin_reading(worker)
            outcome = self._signals.mark_read(block)
            try:
                message = self._workers.read(worker, before, deadline)
            except ConnectionClosed:
                self._drop_answer(block, self._workers.death_error(worker))
            except DeadlinePassed:
                when = "since a call before" if before is WorkerState.READING else "with its message"
                self._drop_answer(block, self._workers.timeout_error(worker, when))
            except EnvError as error:
                self._drop_answer(block, error)
            else:
                self._take_message(block, outcome, message)

    def _drop_answer(self, block: int, error: Exception) -> None:
        """Record an error in place of an answer: its rows are not valid without its message."""
        self._signals.take([block])
        self._fail(self._workers.owners[block], error)

    def _take_message(self, block: int, outcome: int, message: Any) -> None:
        if outcome == FAILED:
            failure, stops = message
            self._drop_answer(block, unpack_error(failure))
            if stops:
                self._workers.fail(self._workers.owners[block])
            return
        if isinstance(message, InfosAndObjects):
            self._objects[block][message.rows] = message.objects
            message = message.infos
        self.infos[block] = message

    def drop(self, blocks: Sequence[int]) -> None:
        """Drop the answers and infos of these blocks."""
        self._signals.take(blocks)
        for block in blocks:
            self.infos.pop(block, None)

    def finish(self) -> list[Exception]:
        """Wait for all calls that are under way; return their errors."""
        # After Ctrl-C, the worker that this process waited for may hang.
        timeout = GRACE if self.interruption.happened else self.timeout
        self.wait(for_all=True, timeout=timeout)
        self.interruption.happened = False
        return list(self.take_failures().values())

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, *, at_once: bool = False) -> list[Exception]:
        """Close every env and end every worker, whatever their states. May be called again.

        Args:
            at_once: Whether to kill the workers; their envs are not closed then.

        Returns:
            The errors of the envs.
        """
        errors: list[Exception] = []
        if self._workers.made_here() and not at_once and not self._workers.ended:
            errors = self._close_envs()
        self._workers.end(at_once=at_once)
        return errors

    def _close_envs(self) -> list[Exception]:
        # Wait for the calls under way, as long as each worker answers at least every GRACE seconds.
        result: int | None = None
        while not self.interruption.happened and not self._signals.overdue(GRACE):
            self._read_news(result, Deadline(GRACE))
            if result in (ALL_PLAIN, ALL_ANSWERED):
                break
            result = self._signals.wait(GRACE / 4)
        self.wait(for_all=True, timeout=0.0 if self._signals.overdue(GRACE) else GRACE)
        self.drop(range(len(self._workers.owners)))
        self.take_failures()
        limit = CLOSING if self.timeout is None else self.timeout
        request = self._workers.dumps(("close",))
        for worker, blocks in enumerate(self._workers.blocks):
            if worker not in self._workers.lost:
                self.ask(blocks[0], request)
        self.wait(for_all=True, timeout=limit)
        errors = [unpack_error(failure) for reply in self.infos.values() for failure in reply]
        for worker, failure in self.take_failures().items():
            if isinstance(failure, WorkerTimeout):
                failure.args = (
                    f"{self._workers.errors.envs_of(worker)} could not be closed within {limit:g} s",
                )
            # A worker that exits with code 0 has closed its envs, even if its answer was not read.
            answered = self._workers.blocks[worker][0] in self.infos
            if not answered and not (isinstance(failure, WorkerDied) and failure.exit_code == 0):
                errors.append(failure)
        return errors


def first_of(failures: Failures) -> Exception:
    """Return the error of the first worker that failed, with notes about the others."""
    first, *others = (failures[worker] for worker in sorted(failures))
    for other in others:
        with suppress(Exception):  # an exception may refuse notes
            first.add_note(f"and another worker failed: {summary_of(other)}")
    return first
