"""The pool: what the workers of a vec are asked for, and how their answers are heard.

Guarantees
  - Every call is answered by a worker, or by what became of it: an exception, its death, a timeout.
  - Whatever is interrupted (Ctrl-C may come between any two lines here), nothing is mixed up afterwards: a
    worker counts as lost while a message to or from it is on its way.
  - A worker that is lost takes no part until it is replaced. After a failure others may still be at work;
    `finish_calls` waits for them.

The worker's side is `_worker.py`; the processes themselves are `_crew.py`'s.
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
from shoal.processes.workers import CLOSING, GRACE, Crew
from shoal.stepping.env_faults import summary_of

ALL_PLAIN, ALL_ANSWERED, MESSAGES, NEWS, TIMED_OUT = range(5)  # what a wait may come to: signals.hpp

UNREADABLE = 3  # beside the outcomes of a worker
LARGE = 1 << 12  # bytes: requests up to this, one for each block, fit into any socket

Failures = dict[int, Exception]
"""What went wrong, by worker."""

Goal = Callable[[float], int]
"""A wait of the signals, for so many seconds."""


class Interruption:
    """Takes note if Ctrl-C or the like comes while workers are waited for: one may hang.

    Attributes:
        happened: Whether it did.
    """

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> None:
        """A wait begins."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A wait is over."""
        if kind is not None and not issubclass(kind, Exception):
            self.happened = True


class Pool:
    """Talks with a crew that has been told its shares.

    Args:
        crew: The workers.
        timeout: Seconds for any one wait; None for ever.
        objects: The object rows of each block, which messages fill.

    Attributes:
        signals: The handshake.
        heard: What workers said beside rows, by block, until somebody takes it.
        failures: What went wrong, until somebody takes it.
        interruption: To be entered around every wait.
    """

    def __init__(self, crew: Crew, timeout: float | None, objects: Sequence[NDArray[Any]]) -> None:
        self._crew, self.signals, self._timeout, self._objects = crew, crew.signals, timeout, objects
        self.heard: dict[int, Any] = {}
        self.failures: Failures = {}
        self.interruption = Interruption()

    def requests(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Requests, pickled before anybody is asked: this may raise."""
        return [self._crew.dumps((verb, *own)) for own in arguments]

    def ask(self, block: int, request: bytes) -> None:
        """Ask for something other than a step, of a block that is idle; `wait` hears what is replied."""
        worker = self._crew.owners[block]
        if len(request) > LARGE:  # while it sends something large itself, it would not read this
            due = self.signals.due(worker)
            self.wait(partial(self.signals.wait_for, due), for_all=True, whose=due)
        if self.refuses(worker):
            self.signals.skip([block])
        else:
            self._crew.post(block, request)

    def refuses(self, worker: int) -> bool:
        """Whether a worker is lost: then it is not called, and that is its failure."""
        if worker not in self._crew.lost:
            return False
        self._fail(worker, self._crew.loss(worker))
        return True

    def post_steps(self, blocks: Sequence[int]) -> None:
        """Call these for a step, but for those of lost workers."""
        if self._crew.lost:
            refused = {
                worker for worker in {self._crew.owners[block] for block in blocks} if self.refuses(worker)
            }
            self.signals.skip([block for block in blocks if self._crew.owners[block] in refused])
            blocks = [block for block in blocks if self._crew.owners[block] not in refused]
        self.signals.post(blocks, STEP)

    def ask_all(self, verb: str, arguments: Sequence[Any]) -> list[Any]:
        """Ask all workers, once they have answered what they were called for, and give their replies.

        Args:
            verb: What for.
            arguments: For each worker: for each of its blocks a tuple.

        Raises:
            Exception: The first that arose in any of them.
            WorkerDied: If one has died since the last call.
            ResetNeeded: If one is lost.
        """
        requests = self.requests(verb, [(own,) for own in arguments])
        self.finish_calls()
        self.refuse_if_lost()
        desks = [blocks[0] for blocks in self._crew.blocks]  # a worker is asked at its first block
        said = {block: self.heard.pop(block) for block in desks if block in self.heard}
        for block, request in zip(desks, requests, strict=True):
            self.ask(block, request)
        self.wait(partial(self.signals.wait_for, desks), for_all=True, whose=desks)
        replies = [self.heard.get(block) for block in desks]
        self.drop(desks)
        self.heard.update(said)
        if self.failures:
            raise first_of(self.take_failures())
        return replies

    def refuse_if_lost(self) -> None:
        """Some things make sense only if everybody is there.

        Raises:
            WorkerDied: If a worker has died since it last answered; this is told once.
            ResetNeeded: If a worker is lost.
        """
        if self._crew.lost:
            for worker in sorted(self._crew.died_untold()):
                raise self._crew.loss(worker)
            other = ", or go on: who is lost is replaced then" if self._crew.restarts else ""
            raise ResetNeeded(f"a worker is lost: call {self._crew.reset_verb}() to start it anew{other}")

    def wait(
        self,
        goal: Goal | None = None,
        *,
        for_all: bool,
        timeout: float | None = None,
        came: int | None = None,
        whose: Sequence[int] | None = None,
    ) -> None:
        """Wait for answers that are due. What workers say is in `heard`, what goes wrong in `failures`.

        Args:
            goal: What for; by default, for all.
            for_all: Else return as soon as there is a failure.
            timeout: Instead of the vec's.
            came: What a first wait has come to already.
            whose: The blocks that are late if the goal is not reached in time; by default all that are due.
        """
        with self.interruption:
            limit = self._timeout if timeout is None else timeout
            self._wait(goal or self.signals.wait, for_all, limit, came, whose)

    def _wait(
        self, goal: Goal, for_all: bool, limit: float | None, came: int | None, whose: Sequence[int] | None
    ) -> None:
        begun = self.signals.lived()
        while True:
            self._crew.refuse_if_ended()
            left = None if limit is None else max(0.0, limit - (self.signals.lived() - begun))
            self._take_note(came, Deadline(left))
            if came in (ALL_PLAIN, ALL_ANSWERED) or (self.failures and not for_all):
                return
            if came == TIMED_OUT and self._give_up_the_late(limit, whose):
                return
            came = goal(-1.0 if left is None else left)

    def _take_note(self, came: int | None, deadline: Deadline) -> None:
        """Read messages that have come, and note which workers will not answer any more."""
        self._crew.notice_deaths()
        if came == NEWS:
            self._crew.notice_closed_lines()
        self._hear(deadline)
        for worker in sorted(self._crew.lost):
            if due := self.signals.due(worker):
                self._fail(worker, self._crew.loss(worker))
                self.signals.take(due)

    def _give_up_the_late(self, limit: float | None, whose: Sequence[int] | None) -> bool:
        """After a timeout; False if the last answer has just come."""
        due = {worker: self.signals.due(worker) for worker in range(self._crew.num_workers)}
        late = [worker for worker, own in due.items() if own and (whose is None or set(own) & set(whose))]
        silent = set(self.signals.overdue(limit or 0.0))  # others have answered meanwhile
        for worker in [worker for worker in late if worker in silent] or late:
            self._fail(worker, self._crew.late(worker, f"within {limit:g} s"))
            self.signals.take(due[worker])
        return bool(late)

    def miss_overdue(self) -> None:
        """Give up those who have not answered in time, though others have."""
        if self._timeout is not None and self.signals.overdue(self._timeout):
            self._hear(Deadline(self._timeout))  # one that waits to be heard is not silent
            for worker in self.signals.overdue(self._timeout):
                self._fail(worker, self._crew.late(worker, f"within {self._timeout:g} s"))
                self.signals.take(self.signals.due(worker))

    def _fail(self, worker: int, error: Exception) -> None:
        """Take note of what went wrong with a worker; the first says most."""
        first = self.failures.setdefault(worker, error)
        if first is not error and not isinstance(error, WorkerError):
            with suppress(Exception):  # an exception may refuse notes
                first.add_note(f"and another env of its worker failed: {summary_of(error)}")

    def take_failures(self) -> Failures:
        """All that went wrong, which is dealt with now."""
        failures, self.failures = self.failures, {}
        return failures

    def _hear(self, deadline: Deadline) -> None:
        """Read what workers that have answered had to say."""
        for block in self.signals.speakers():
            worker = self._crew.owners[block]
            was_lost = worker in self._crew.lost
            self._crew.lost.add(worker)
            outcome = self.signals.hear(block)
            if outcome == FAILED or worker in self._crew.torn:
                self.signals.take([block])  # there are no rows, or nobody knows what they mean
            if worker in self._crew.torn:
                self._fail(worker, self._crew.late(worker, "since a call before"))
                continue
            try:
                said = self._crew.receive(worker, deadline)
            except Gone:
                self.signals.take([block])
                self._fail(worker, self._crew.obituary(worker))
                continue
            except Late:
                self.signals.take([block])
                self._fail(worker, self._crew.late(worker, "with its message"))
                continue
            except EnvError as error:
                self.signals.take([block])
                said, outcome = error, UNREADABLE
            if not was_lost:
                self._crew.lost.discard(worker)
            if outcome == UNREADABLE:
                self._fail(worker, said)
            elif outcome == FAILED:
                failure, ends = said
                self._fail(worker, unpack_error(failure))
                if ends:
                    self._crew.lost.add(worker)
            else:
                if isinstance(said, Told):
                    self._objects[block][said.rows] = said.objects
                    said = said.infos
                self.heard[block] = said

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget what these have answered and said."""
        self.signals.take(blocks)
        for block in blocks:
            self.heard.pop(block, None)

    def finish_calls(self) -> list[Exception]:
        """Wait for whoever is still at work.

        Returns:
            What went wrong in it.
        """
        # Whoever was waited for when Ctrl-C came may well hang.
        timeout = GRACE if self.interruption.happened else self._timeout
        self.wait(for_all=True, timeout=timeout)
        self.interruption.happened = False
        return list(self.take_failures().values())

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, *, at_once: bool = False) -> list[Exception]:
        """Close every env and end every worker, in whatever state they are. May be called again.

        Args:
            at_once: Kill them; their envs are not closed.

        Returns:
            What went wrong in the envs.
        """
        errors: list[Exception] = []
        if self._crew.is_ours() and not at_once and not self._crew.ended:
            errors = self._close_envs()
        self._crew.end(at_once=at_once)
        return errors

    def _close_envs(self) -> list[Exception]:
        # As long as workers answer now and then, their calls are worth waiting for.
        came: int | None = None
        while not self.interruption.happened and not self.signals.overdue(GRACE):
            self._take_note(came, Deadline(GRACE))
            if came in (ALL_PLAIN, ALL_ANSWERED):
                break
            came = self.signals.wait(GRACE / 4)
        self.wait(for_all=True, timeout=0.0 if self.signals.overdue(GRACE) else GRACE)
        self.drop(range(len(self._crew.owners)))
        self.take_failures()
        limit = CLOSING if self._timeout is None else self._timeout
        request = self._crew.dumps(("close",))
        for worker, blocks in enumerate(self._crew.blocks):
            if worker not in self._crew.lost:
                self.ask(blocks[0], request)
        self.wait(for_all=True, timeout=limit)
        errors = [unpack_error(failure) for said in self.heard.values() for failure in said]
        for worker, failure in self.take_failures().items():
            if isinstance(failure, WorkerTimeout):
                failure.args = (f"{self._crew.envs_of(worker)} could not be closed within {limit:g} s",)
            # A worker that exits with code 0 has closed its envs, even if its answer was not read.
            heard = self._crew.blocks[worker][0] in self.heard
            if not heard and not (isinstance(failure, WorkerDied) and failure.exit_code == 0):
                errors.append(failure)
        return errors


def first_of(failures: Failures) -> Exception:
    """The failure of the first worker, which mentions the others."""
    first, *others = (failures[worker] for worker in sorted(failures))
    for other in others:
        with suppress(Exception):  # an exception may refuse notes
            first.add_note(f"and another worker failed: {summary_of(other)}")
    return first
