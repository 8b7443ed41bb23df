"""Calls: what the workers of a vec are asked for, and how their answers are read.

Guarantees
  - Every call is answered by a worker, or by what happened to it: an exception, its death, a timeout.
  - Ctrl-C may come between any two lines here. Nothing is mixed up afterwards: a worker counts as lost
    while a message to or from it is on its way.
  - A lost worker takes no part until it is replaced. After a failure other workers may still be at work;
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
from shoal.processes.messages import Deadline, Gone, Late
from shoal.processes.objects import Told
from shoal.processes.remote_errors import unpack_error
from shoal.processes.worker import FAILED, STEP
from shoal.processes.workers import CLOSING, GRACE, Workers, WorkerState
from shoal.stepping.env_faults import summary_of

ALL_PLAIN, ALL_ANSWERED, MESSAGES, NEWS, TIMED_OUT = range(5)  # how a wait can end: signals.hpp

LARGE = 1 << 12  # bytes: requests up to this size, one for each block, fit into any socket

Failures = dict[int, Exception]
"""The error of each worker that has failed."""

Goal = Callable[[float], int]
"""A wait of the signals, for at most so many seconds."""


class Interruption:
    """Notes if Ctrl-C or the like comes while this process waits for workers: one of them may hang.

    Attributes:
        happened: Whether it came.
    """

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> None:
        """A wait begins."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A wait is over."""
        if kind is not None and not issubclass(kind, Exception):
            self.happened = True


class Calls:
    """Calls workers that have been told their shares.

    Args:
        workers: The workers.
        objects: For each block, its rows of observations without bytes, which messages fill.

    Attributes:
        infos: The infos that blocks have sent, until they are taken.
        failures: The error of each worker that has failed, until they are taken.
        interruption: The context in which to wait.
        timeout: Seconds for any one wait; None waits for ever.
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
        """Pickle requests, before any worker is called: this may raise."""
        return [self._workers.dumps((verb, *own)) for own in arguments]

    def ask(self, block: int, request: bytes) -> None:
        """Call a block that is idle for something other than a step; `wait` reads the reply."""
        worker = self._workers.owners[block]
        if len(request) > LARGE:  # while the worker sends something large itself, it would not read this
            due = self._signals.due(worker)
            self.wait(partial(self._signals.wait_for, due), for_all=True, whose=due)
        if self.refuses(worker):
            self._signals.skip([block])
        else:
            self._workers.post(block, request)

    def refuses(self, worker: int) -> bool:
        """Return whether a worker is lost; if so, note that as its failure. It must not be called."""
        if worker not in self._workers.lost:
            return False
        self._fail(worker, self._workers.loss(worker))
        return True

    def post_steps(self, blocks: Sequence[int]) -> None:
        """Call these blocks for a step, but for those of lost workers."""
        if self._workers.lost:
            refused = {
                worker for worker in {self._workers.owners[block] for block in blocks} if self.refuses(worker)
            }
            self._signals.skip([block for block in blocks if self._workers.owners[block] in refused])
            blocks = [block for block in blocks if self._workers.owners[block] not in refused]
        self._signals.post(blocks, STEP)

    def ask_all(self, verb: str, arguments: Sequence[Any]) -> list[Any]:
        """Ask all workers, once they have answered all calls, and return their replies.

        Args:
            verb: The request.
            arguments: For each worker, for each of its blocks, a tuple.

        Raises:
            Exception: The first error of any worker.
            WorkerDied: If one has died since the last call.
            ResetNeeded: If one is lost.
        """
        requests = self.requests(verb, [(own,) for own in arguments])
        self.finish()
        self.refuse_if_lost()
        called = [blocks[0] for blocks in self._workers.blocks]  # a worker is called by its first block
        kept = {block: self.infos.pop(block) for block in called if block in self.infos}
        for block, request in zip(called, requests, strict=True):
            self.ask(block, request)
        self.wait(partial(self._signals.wait_for, called), for_all=True, whose=called)
        replies = [self.infos.get(block) for block in called]
        self.drop(called)
        self.infos.update(kept)
        if self.failures:
            raise first_of(self.take_failures())
        return replies

    def refuse_if_lost(self) -> None:
        """Raise if a worker is lost.

        Raises:
            WorkerDied: If a worker has died since it last answered; this error comes once.
            ResetNeeded: If a worker is lost.
        """
        if self._workers.lost:
            for worker in sorted(self._workers.died_untold()):
                raise self._workers.loss(worker)
            other = ", or go on: lost workers are replaced then" if self._workers.restarts else ""
            raise ResetNeeded(f"a worker is lost: call {self._workers.reset_verb}() to start it anew{other}")

    def wait(
        self,
        goal: Goal | None = None,
        *,
        for_all: bool,
        timeout: float | None = None,
        came: int | None = None,
        whose: Sequence[int] | None = None,
    ) -> None:
        """Wait for answers. Infos are then in `infos`, and errors in `failures`.

        Args:
            goal: The wait of the signals; by default, for all calls.
            for_all: Whether to go on waiting after a failure.
            timeout: Seconds, instead of the vec's.
            came: How a first wait of the signals has ended.
            whose: The blocks that are late if the goal is not reached in time; by default all that are
                called.
        """
        with self.interruption:
            limit = self.timeout if timeout is None else timeout
            self._wait(goal or self._signals.wait, for_all, limit, came, whose)

    def _wait(
        self, goal: Goal, for_all: bool, limit: float | None, came: int | None, whose: Sequence[int] | None
    ) -> None:
        begun = self._signals.running_seconds()
        while True:
            self._workers.refuse_if_ended()
            left = None if limit is None else max(0.0, limit - (self._signals.running_seconds() - begun))
            self._take_note(came, Deadline(left))
            if came in (ALL_PLAIN, ALL_ANSWERED) or (self.failures and not for_all):
                return
            if came == TIMED_OUT and self._give_up_the_late(limit, whose):
                return
            came = goal(-1.0 if left is None else left)

    def _take_note(self, came: int | None, deadline: Deadline) -> None:
        """Read the messages that have come, and note which workers will not answer any more."""
        self._workers.notice_ends()
        if came == NEWS:
            self._workers.notice_closed_connections()
        self._read_messages(deadline)
        for worker in sorted(self._workers.lost):
            if due := self._signals.due(worker):
                self._fail(worker, self._workers.loss(worker))
                self._signals.take(due)

    def _give_up_the_late(self, limit: float | None, whose: Sequence[int] | None) -> bool:
        """Note the workers that are late, after a timeout; return False if the last answer has just come."""
        due = {worker: self._signals.due(worker) for worker in range(self._workers.num_workers)}
        late = [worker for worker, own in due.items() if own and (whose is None or set(own) & set(whose))]
        silent = set(self._signals.overdue(limit or 0.0))  # others have answered meanwhile
        for worker in [worker for worker in late if worker in silent] or late:
            self._fail(worker, self._workers.timeout_error(worker, f"within {limit:g} s"))
            self._signals.take(due[worker])
        return bool(late)

    def give_up_overdue(self) -> None:
        """Note the workers that have not answered in time, though others have."""
        if self.timeout is not None and self._signals.overdue(self.timeout):
            self._read_messages(Deadline(self.timeout))  # a worker may wait for its message to be read
            for worker in self._signals.overdue(self.timeout):
                self._fail(worker, self._workers.timeout_error(worker, f"within {self.timeout:g} s"))
                self._signals.take(self._signals.due(worker))

    def _fail(self, worker: int, error: Exception) -> None:
        """Note the error of a worker. The first one is kept: it says most."""
        first = self.failures.setdefault(worker, error)
        if first is not error and not isinstance(error, WorkerError):
            with suppress(Exception):  # an exception may refuse notes
                first.add_note(f"and another env of its worker failed: {summary_of(error)}")

    def take_failures(self) -> Failures:
        """Return all failures, and forget them."""
        failures, self.failures = self.failures, {}
        return failures

    def _read_messages(self, deadline: Deadline) -> None:
        """Read the messages of blocks that have answered with one."""
        for block in self._signals.unread():
            worker = self._workers.owners[block]
            # Before the signals forget that there is a message: if Ctrl-C comes between, the worker is lost.
            before = self._workers.begin_reading(worker)
            outcome = self._signals.mark_read(block)
            try:
                message = self._workers.read(worker, before, deadline)
            except Gone:
                self._drop_answer(block, self._workers.death_error(worker))
            except Late:
                when = "since a call before" if before is WorkerState.READING else "with its message"
                self._drop_answer(block, self._workers.timeout_error(worker, when))
            except EnvError as error:
                self._drop_answer(block, error)
            else:
                self._take_message(block, outcome, message)

    def _drop_answer(self, block: int, error: Exception) -> None:
        """Forget an answer whose message cannot be read: its rows cannot be understood without it."""
        self._signals.take([block])
        self._fail(self._workers.owners[block], error)

    def _take_message(self, block: int, outcome: int, message: Any) -> None:
        if outcome == FAILED:
            failure, ends = message
            self._drop_answer(block, unpack_error(failure))
            if ends:
                self._workers.fail(self._workers.owners[block])
            return
        if isinstance(message, Told):
            self._objects[block][message.rows] = message.objects
            message = message.infos
        self.infos[block] = message

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget the answers and infos of these blocks."""
        self._signals.take(blocks)
        for block in blocks:
            self.infos.pop(block, None)

    def finish(self) -> list[Exception]:
        """Wait for all calls that are under way; return the errors that came of them."""
        # A worker that this process waited for when Ctrl-C came may well hang.
        timeout = GRACE if self.interruption.happened else self.timeout
        self.wait(for_all=True, timeout=timeout)
        self.interruption.happened = False
        return list(self.take_failures().values())

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, *, at_once: bool = False) -> list[Exception]:
        """Close every env and end every worker, in any state. May be called again.

        Args:
            at_once: Whether to kill the workers; their envs are not closed then.

        Returns:
            The errors of the envs.
        """
        errors: list[Exception] = []
        if self._workers.is_ours() and not at_once and not self._workers.ended:
            errors = self._close_envs()
        self._workers.end(at_once=at_once)
        return errors

    def _close_envs(self) -> list[Exception]:
        # As long as workers answer now and then, their calls are worth waiting for.
        came: int | None = None
        while not self.interruption.happened and not self._signals.overdue(GRACE):
            self._take_note(came, Deadline(GRACE))
            if came in (ALL_PLAIN, ALL_ANSWERED):
                break
            came = self._signals.wait(GRACE / 4)
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
                failure.args = (f"{self._workers.envs_of(worker)} could not be closed within {limit:g} s",)
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
