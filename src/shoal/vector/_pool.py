"""The pool: the worker processes of one vec as the parent sees them, and the protocol with them.

Guarantees
  - Every call is answered by a worker, or by what became of it: an exception, its death, a timeout.
  - Whatever is interrupted (Ctrl-C may come between any two lines here), nothing is mixed up afterwards: a
    worker counts as lost while a message to or from it is on its way.
  - A worker that is lost takes no part until it is replaced. After a failure others may still be at work;
    `settle` waits for them and replaces the lost.
  - Only the process that made a pool talks to its workers; in a fork of it nothing happens to them.

The worker's side is `_worker.py`; who starts and buries workers is `_launcher.py`.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from shoal._core._native import ParentSignals
from shoal.buffers import SharedMemory
from shoal.emulation import Creator
from shoal.errors import (
    ArgumentTypeError,
    Closed,
    EnvError,
    ResetNeeded,
    SpaceMismatch,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from shoal.vector import _worker
from shoal.vector._cores import Patience
from shoal.vector._launching import ONE_THREAD, open_channel
from shoal.vector._mail import Deadline, Gone, Late, Mail, dumps_by_value, first_to_speak
from shoal.vector._remote_errors import summary_of, unpack_error
from shoal.vector._share import Share, World
from shoal.vector._worker import FAILED, REQUEST, STEP
from shoal.vector.spaces import UnitFacts

ALL_PLAIN, ALL_ANSWERED, MESSAGES, NEWS, TIMED_OUT = range(5)  # what a wait may come to: signals.hpp

RESTART = 'use on_error="restart"'

UNREADABLE = 3  # beside the outcomes of a worker
LARGE = 1 << 12  # bytes: requests up to this, one for each block, fit into any socket

GRACE = 1.0  # seconds for a worker to finish by itself what is no longer wanted
CLOSING = 10.0  # seconds to close its envs, if the vec has no timeout

Failures = dict[int, BaseException]
"""What went wrong, by worker."""

Goal = Callable[[float], int]
"""A wait of the signals, for so many seconds."""


class Pool:
    """The workers of a vec, built and waiting to be told their share.

    Args:
        creators: Of each worker.
        numbers: Of its creators, for messages.
        start_method: How workers start.
        timeout: Seconds for any one wait; None for ever.

    Attributes:
        facts: Of each worker's units.
        signals: The handshake, once `assign` has been called. It counts blocks through the whole pool.
        blocks: Of each worker, likewise.
        heard: What workers said beside rows, by block, until somebody takes it.
        lost: Workers that must be replaced before they can be called again.
        failures: What went wrong, until somebody takes it.
        interrupted: Whether a wait was, so that a worker may hang.
        reset_verb: What a user calls to start a lost worker anew.
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
        self._timeout = timeout
        self._forks = start_method == "fork"
        self._units = numbers
        self._ids = numbers  # of creators, later of envs
        self._pickled = [None if self._forks else _pickle_creators(part) for part in creators]
        self._specs = [] if self._forks else _registrations()
        self._open = partial(open_channel, start_method, partial(_worker.main, creators=creators))
        self.num_workers = len(creators)
        self.blocks: list[list[int]] = []
        self.heard: dict[int, Any] = {}
        self.failures: Failures = {}
        self.lost: set[int] = set()
        self.interrupted = False
        self.reset_verb = "reset"
        self._torn: set[int] = set()  # whose message was being read: if it still is, that was interrupted
        self._closed = False
        self._mails: dict[int, Mail] = {}
        self._tokens: dict[int, int] = {}  # of those whose death has not been told: their worker
        self._started = 0
        self._exit_codes: dict[int, int | str | None] = {}  # of the dead
        self._shares: list[Share] = []
        self._memory: SharedMemory | None = None
        self._channel, self._launcher_lives = self._open(), True
        try:
            deadline = Deadline(timeout)
            for worker in range(self.num_workers):
                self._start(worker, deadline)
            self.facts: list[list[UnitFacts]] = self._gather(range(self.num_workers), deadline)
        except BaseException:
            self.close()
            raise

    # -- starting and replacing ------------------------------------------------------------------------

    def _start(self, worker: int, deadline: Deadline) -> None:
        self._started += 1
        self._tokens[self._started] = worker
        try:
            self._mails[worker] = self._channel.start(self._started)
        except (Gone, Late):
            raise WorkerError("the process that starts workers does not answer: make a new vec") from None
        world = None if self._forks else _world(self._specs)
        self._tell(worker, (worker, self._units[worker], world, self._pickled[worker]), deadline)

    def assign(
        self, shares: list[Share], memory: SharedMemory, patience: Patience, cores: int, *, parent_steps: bool
    ) -> None:
        """Tell every worker its share of the memory; from then on they serve.

        Args:
            shares: One for each.
            memory: The memory, which is the pool's from now on.
            patience: How long this process waits in which way.
            cores: How many can be used.
            parent_steps: Whether this process steps a share itself.
        """
        self._memory = memory
        owners = {part.number: share.worker for share in shares for part in share.parts}
        self._owners = [owners[block] for block in range(len(owners))]
        self.blocks = [[part.number for part in share.parts] for share in shares]
        self.signals = ParentSignals(
            memory.block, self._owners, *patience, self._channel.fileno(), parent_steps, cores
        )
        self._shares = shares
        self._ids = [
            [env for part in share.parts for env in range(part.first_env, part.last_env)] for share in shares
        ]
        deadline = Deadline(self._timeout)
        for worker, share in enumerate(shares):
            self._tell(worker, share, deadline, memory.descriptor)
        self._gather(range(self.num_workers), deadline)

    def replace(self, worker: int, due: list[list[int | None]] | None = None) -> None:
        """Kill a worker and put a new one in its place, with new envs.

        Args:
            worker: Which.
            due: The seeds of its envs' first resets, unless told otherwise then, by block.
        """
        self.kill(worker)
        deadline = Deadline(self._timeout)
        self._mails[worker].hang_up()
        if not self._launcher_lives:
            self._channel.close()
            self._channel, self._launcher_lives = self._open(), True
            self.signals.watch(self._channel.fileno())
        self.signals.renew(worker)
        self._exit_codes.pop(worker, None)
        self._torn.discard(worker)
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
        self.lost.discard(worker)

    def kill(self, worker: int, patience: float = CLOSING) -> None:
        """Kill a worker; when this returns, it writes to no row any more."""
        self.lost.add(worker)
        for token, each in list(self._tokens.items()):
            if each == worker:
                self._channel.kill(token)
        deadline = Deadline(patience)
        with suppress(Late):  # then nobody listens: what could be done has been done
            while worker in self._tokens.values():
                self._read_death(deadline)

    def _tell(self, worker: int, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send what a worker needs to know while it is being set up."""
        mail = self._mails[worker]
        try:
            mail.send(message, deadline, *descriptors)
        except Gone:
            pass  # whoever waits for its answer will find out
        except Late:
            raise self._late(worker, "while it was starting") from None

    def _gather(self, workers: Sequence[int], deadline: Deadline) -> list[Any]:
        """What each of these workers replies while it is being set up."""
        replies: dict[int, Any] = {}
        while missing := [worker for worker in workers if worker not in replies]:
            worker = missing[0]
            try:
                # The channel too: a worker's own children may hold its line open when it dies.
                lines = {worker: self._mails[worker] for worker in missing}
                first = first_to_speak({**lines, None: self._channel}, deadline)
                self.notice_deaths()
                dead = [worker for worker in missing if worker in self._exit_codes]
                if first is None and not dead:
                    continue
                worker = dead[0] if first is None else first
                outcome, reply = self._receive(worker, deadline)
            except Late:
                raise self._late(worker, "while it was starting") from None
            except Gone:
                raise self._obituary(worker) from None
            if outcome == FAILED:
                raise unpack_error(reply)
            replies[worker] = reply
        return [replies[worker] for worker in workers]

    # -- asking and waiting ----------------------------------------------------------------------------

    def requests(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Requests, pickled before anybody is asked: this may raise."""
        return [self._channel.dumps((verb, *own)) for own in arguments]

    def ask(self, block: int, request: bytes) -> None:
        """Ask for something other than a step, of a block that is idle; `wait` hears what is replied."""
        worker = self._owners[block]
        if len(request) > LARGE:  # while it sends something large itself, it would not read this
            due = self.signals.due(worker)
            self.wait(partial(self.signals.wait_for, due), for_all=True, whose=due)
        if self.refuses(worker):
            return
        self.lost.add(worker)
        self.signals.post([block], REQUEST)
        try:
            self._mails[worker].post(request, Deadline(self._timeout))
        except Gone:
            self._exit_codes.setdefault(worker, None)  # until its death is told
        except Late:
            pass  # lost, and told so when its answer is waited for
        else:
            self.lost.discard(worker)

    def owner_of(self, block: int) -> int:
        """The worker of a block."""
        return self._owners[block]

    def refuses(self, worker: int) -> bool:
        """Whether a worker is lost: then it is not called, and that is its failure."""
        if worker not in self.lost:
            return False
        self._fail(worker, self.loss(worker))
        return True

    def post_steps(self, blocks: Sequence[int]) -> None:
        """Call these for a step, but for those of lost workers."""
        if self.lost:
            refused = {worker for worker in {self._owners[block] for block in blocks} if self.refuses(worker)}
            self.signals.skip([block for block in blocks if self._owners[block] in refused])
            blocks = [block for block in blocks if self._owners[block] not in refused]
        self.signals.post(blocks, STEP)

    def ask_all(self, verb: str, arguments: Sequence[Any]) -> list[Any]:
        """Ask all workers, once they have answered what they were called for, and give their replies.

        Args:
            verb: What for.
            arguments: For each worker: for each of its blocks a tuple.

        Raises:
            Exception: The first that arose in any of them.
            ResetNeeded: If one is lost.
        """
        requests = self.requests(verb, [(own,) for own in arguments])
        self._finish_calls()
        self.refuse_if_lost()
        desks = [blocks[0] for blocks in self.blocks]  # a worker is asked at its first block
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
            ResetNeeded: If somebody is not.
        """
        if self.lost:
            raise ResetNeeded(f"a worker is lost: call {self.reset_verb}() to start it anew")

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
        try:
            limit = self._timeout if timeout is None else timeout
            self._wait(goal or self.signals.wait, for_all, limit, came, whose)
        except Exception:
            raise
        except BaseException:
            self.interrupted = True
            raise

    def _wait(
        self, goal: Goal, for_all: bool, limit: float | None, came: int | None, whose: Sequence[int] | None
    ) -> None:
        deadline = Deadline(limit)
        while True:
            if self._closed:
                raise Closed("the vec was closed while its envs were moving")
            self.notice_deaths()
            self._hear(deadline)
            for worker in sorted(self.lost):
                if due := self.signals.due(worker):
                    self._fail(worker, self.loss(worker))
                    self.signals.take(due)
            if came in (ALL_PLAIN, ALL_ANSWERED) or (self.failures and not for_all):
                return
            if came == TIMED_OUT and self._give_up_the_late(limit, whose):
                return
            left = deadline.left()
            came = goal(-1.0 if left is None else left)

    def _give_up_the_late(self, limit: float | None, whose: Sequence[int] | None) -> bool:
        """After a timeout; False if the last answer has just come."""
        due = {worker: self.signals.due(worker) for worker in range(self.num_workers)}
        late = [worker for worker, own in due.items() if own and (whose is None or set(own) & set(whose))]
        silent = set(self.signals.overdue(limit or 0.0))  # others have answered meanwhile
        for worker in [worker for worker in late if worker in silent] or late:
            self._fail(worker, self._late(worker, f"within {limit:g} s"))
            self.signals.take(due[worker])
        return bool(late)

    def miss_overdue(self) -> None:
        """Give up those who have not answered in time, though others have."""
        if self._timeout is not None and self.signals.overdue(self._timeout):
            self._hear(Deadline(self._timeout))  # one that waits to be heard is not silent
            for worker in self.signals.overdue(self._timeout):
                self._fail(worker, self._late(worker, f"within {self._timeout:g} s"))
                self.signals.take(self.signals.due(worker))

    def _fail(self, worker: int, error: BaseException) -> None:
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
            worker = self._owners[block]
            was_lost = worker in self.lost
            self.lost.add(worker)
            outcome = self.signals.hear(block)
            if outcome == FAILED or worker in self._torn:
                self.signals.take([block])  # there are no rows, or nobody knows what they mean
            if worker in self._torn:
                self._fail(worker, self._late(worker, "since a call before"))
                continue
            self._torn.add(worker)
            try:
                said = self._receive(worker, deadline)
            except Gone:
                self.signals.take([block])
                self._fail(worker, self._obituary(worker))
                continue
            except Late:
                self.signals.take([block])
                self._fail(worker, self._late(worker, "with its message"))
                continue
            except EnvError as error:
                self.signals.take([block])
                said, outcome = error, UNREADABLE
            self._torn.discard(worker)
            if not was_lost:
                self.lost.discard(worker)
            if outcome == UNREADABLE:
                self._fail(worker, said)
            elif outcome == FAILED:
                self._fail(worker, unpack_error(said))
            else:
                self.heard[block] = said

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget what these have answered and said."""
        self.signals.take(blocks)
        for block in blocks:
            self.heard.pop(block, None)

    def settle(self, due: Callable[[int], list[list[int | None]]] | None = None) -> list[BaseException]:
        """Wait for whoever is still at work, drop what they say, and replace those who are lost.

        Args:
            due: The seeds for the envs of one that is replaced.

        Returns:
            What went wrong in what was dropped.
        """
        self.notice_deaths()
        failures = self._finish_calls()
        self.drop(range(len(self._owners)))
        for worker in sorted(self.lost):
            self.replace(worker, None if due is None else due(worker))
        return failures

    def _finish_calls(self) -> list[BaseException]:
        # Whoever was waited for when Ctrl-C came may well hang.
        timeout = GRACE if self.interrupted else self._timeout
        self.wait(for_all=True, timeout=timeout)
        self.interrupted = False
        return list(self.take_failures().values())

    # -- what becomes of workers -----------------------------------------------------------------------

    def _receive(self, worker: int, deadline: Deadline) -> Any:
        pickled, _ = self._mails[worker].receive(deadline, lambda: self._is_dead(worker))
        try:
            return pickle.loads(pickled)
        except Exception as error:
            raise EnvError(
                f"what a worker sent cannot be unpickled here: {summary_of(error)}", self._ids[worker]
            ) from error

    def _is_dead(self, worker: int) -> bool:
        self.notice_deaths()
        return worker in self._exit_codes

    def notice_deaths(self) -> None:
        """Take note of everybody whose death has been told."""
        with suppress(Late):
            while self._tokens:
                self._read_death(Deadline(0.0))

    def _read_death(self, deadline: Deadline) -> None:
        """Take note of the next death. If the launcher is gone, all have died with it.

        Raises:
            Late: If there is none in time.
        """
        try:
            token, code = self._channel.death(deadline)
            tokens = [token] if token in self._tokens else []
        except Gone:
            tokens, code = list(self._tokens), None
            self._launcher_lives = False
            if self._shares:
                self.signals.watch(-1)  # there will be no more news from there
        for token in tokens:
            self.lost.add(self._tokens[token])
            self._exit_codes[self._tokens[token]] = code
            del self._tokens[token]

    def loss(self, worker: int) -> WorkerError:
        """The error that says why a worker will not answer."""
        if worker in self._exit_codes:
            return self._obituary(worker)
        return self._late(worker, "since a call before")

    def _obituary(self, worker: int) -> WorkerDied:
        """The error that says how a worker died."""
        self.kill(worker, GRACE)  # it is dead, but its death may not have been told, or not been heard
        code = self._exit_codes.get(worker)
        error = WorkerDied(
            f"worker {worker}, which ran {self._envs_of(worker)}, {_how(code)}.{self._whereabouts(worker)}"
            f"{self._advice(RESTART)}",
            self._ids[worker],
        )
        error.exit_code = code if isinstance(code, int) else None
        return error

    def _late(self, worker: int, when: str) -> WorkerTimeout:
        self.lost.add(worker)
        return WorkerTimeout(
            f"worker {worker}, which ran {self._envs_of(worker)}, has not answered {when}."
            f"{self._whereabouts(worker)}{self._advice('allow more by timeout=')}",
            self._ids[worker],
        )

    def _advice(self, other: str) -> str:
        """What to do, unless there is no vec yet or it does so by itself."""
        if not self._shares or self._shares[0].keeps:
            return ""
        return f" Call {self.reset_verb}() to start it anew, or {other}."

    def _whereabouts(self, worker: int) -> str:
        env = self.signals.last_env(worker) if self._shares else -1
        return "" if env < 0 else f" It was last in env {env}."

    def _envs_of(self, worker: int) -> str:
        runs: list[list[int]] = []
        for env in self._ids[worker]:
            if runs and runs[-1][-1] == env - 1:
                runs[-1][1:] = [env]
            else:
                runs.append([env])
        names = ", ".join(" to ".join(map(str, run)) for run in runs)
        return f"{'env' if len(self._ids[worker]) == 1 else 'envs'} {names}"

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, *, at_once: bool = False) -> list[Exception]:
        """Close every env and end every worker, in whatever state they are. May be called again.

        Args:
            at_once: Kill them; their envs are not closed.

        Returns:
            What went wrong in the envs.
        """
        errors: list[Exception] = []
        if os.getpid() == self._owner:
            if self._shares and not at_once and not self._closed:
                errors = self._close_envs()
            self._closed = True
            for mail in self._mails.values():
                mail.hang_up()  # those that are still being set up close their envs then
            deadline = Deadline(0.0 if at_once else GRACE)
            with suppress(Late):
                while set(self._tokens.values()) - (self.lost if self._shares else set()):
                    self._read_death(deadline)
            for worker in set(self._tokens.values()):
                self.kill(worker)
        for mail in self._mails.values():
            mail.close()
        self._channel.close()
        if self._memory is not None:
            self._memory.close()
        return errors

    def _close_envs(self) -> list[Exception]:
        # As long as somebody answers now and then, there is something to wait for.
        while not self.interrupted and not self.signals.overdue(GRACE):
            if self.signals.wait(GRACE / 4) != TIMED_OUT:
                break
        self.wait(for_all=True, timeout=0.0 if self.signals.overdue(GRACE) else GRACE)
        self.drop(range(len(self._owners)))
        self.take_failures()
        limit = CLOSING if self._timeout is None else self._timeout
        request = self._channel.dumps(("close",))
        for worker, blocks in enumerate(self.blocks):
            if worker not in self.lost:
                self.ask(blocks[0], request)
        self.wait(for_all=True, timeout=limit)
        errors = [unpack_error(failure) for said in self.heard.values() for failure in said]
        for worker, failure in self.take_failures().items():
            if isinstance(failure, WorkerTimeout):
                failure.args = (f"{self._envs_of(worker)} could not be closed within {limit:g} s",)
            # One that has closed its envs may leave, also if it was not heard when it said so.
            heard = self.blocks[worker][0] in self.heard
            if not heard and not (isinstance(failure, WorkerDied) and failure.exit_code == 0):
                errors.append(failure)
        return [error for error in errors if isinstance(error, Exception)]


def first_of(failures: Failures) -> BaseException:
    """The failure of the first worker, which mentions the others."""
    first, *others = (failures[worker] for worker in sorted(failures))
    for other in others:
        with suppress(Exception):  # an exception may refuse notes
            first.add_note(f"and another worker failed: {summary_of(other)}")
    return first


def _how(code: int | str | None) -> str:
    if code is None:
        return "died; nobody is left to say how"
    if isinstance(code, str):
        return f"could not be started: {code}"
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
