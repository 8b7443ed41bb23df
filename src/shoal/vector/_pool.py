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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
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
from shoal.vector._worker import FAILED, REQUEST
from shoal.vector.spaces import UnitFacts

ALL_PLAIN, ALL_ANSWERED, SOME_FAILED, NEWS, TIMED_OUT = range(5)  # what a wait may come to: signals.hpp

RESTART = 'use on_error="restart"'

GRACE = 1.0  # seconds for a worker to finish by itself what is no longer wanted
CLOSING = 10.0  # seconds to close its envs, if the vec has no timeout

Failures = dict[int, BaseException]


class Pool:
    """The workers of a vec, built and waiting to be told their share.

    Args:
        parts: The creators of each worker.
        first_unit: The number of the first creator, for messages.
        start_method: How workers start.
        timeout: Seconds for any one wait; None for ever.

    Attributes:
        facts: Of each worker's units.
        signals: The handshake, once `assign` has been called.
        lost: Workers that must be replaced before they can be called again.
        interrupted: Whether a wait was, so that a worker may hang.
    """

    signals: ParentSignals

    def __init__(
        self, parts: Sequence[Sequence[Creator]], first_unit: int, start_method: str, timeout: float | None
    ) -> None:
        self._owner = os.getpid()
        self._timeout = timeout
        self._forks = start_method == "fork"
        ends = list(accumulate(map(len, parts), initial=first_unit))
        self._ids = [range(first, last) for first, last in pairwise(ends)]  # of creators, later of envs
        self._units = [ids.start for ids in self._ids]
        self._pickled = [None if self._forks else _pickle_creators(part) for part in parts]
        self._specs = [] if self._forks else _registrations()
        self._open = partial(open_channel, start_method, partial(_worker.main, creators=parts))
        self.num_workers = len(parts)
        self.lost: set[int] = set()
        self.interrupted = False
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
            for worker in range(len(parts)):
                self._start(worker, deadline)
            self.facts: list[list[UnitFacts]] = self._gather(range(len(parts)), deadline)
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
        self.signals = ParentSignals(
            memory.block, self.num_workers, *patience, self._channel.fileno(), parent_steps, cores
        )
        self._shares = shares
        self._ids = [range(share.first_env, share.first_env + share.num_envs) for share in shares]
        deadline = Deadline(self._timeout)
        for worker, share in enumerate(shares):
            self._tell(worker, share, deadline, memory.descriptor)
        self._gather(range(self.num_workers), deadline)

    def replace(self, worker: int, due: list[int | None] | None = None) -> None:
        """Kill a worker and put a new one in its place, with new envs.

        Args:
            worker: Which.
            due: The seeds of its envs' first resets, unless told otherwise then.
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
                self._read_deaths()
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
        """Requests for all workers, pickled before anybody is asked: this may raise."""
        return [self._channel.dumps((verb, *own)) for own in arguments]

    def ask(self, worker: int, request: bytes) -> None:
        """Ask a worker that is idle for something other than a step; `wait` gives what it replies."""
        self.lost.add(worker)
        self.signals.post_to(worker, REQUEST)
        try:
            self._mails[worker].post(request, Deadline(self._timeout))
        except Gone:
            self._exit_codes.setdefault(worker, None)  # until its death is told
        except Late:
            pass  # lost, and told so when its answer is waited for
        else:
            self.lost.discard(worker)

    def ask_all(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask all workers, and give their replies.

        Raises:
            Exception: The first that arose in any of them.
            ResetNeeded: If one is lost.
        """
        requests = self.requests(verb, arguments)
        self._finish_calls()
        self.refuse_if_lost()
        for worker, request in enumerate(requests):
            self.ask(worker, request)
        messages, failures = self.wait(for_all=True)
        if failures:
            raise first_of(failures)
        return [messages[worker] for worker in range(self.num_workers)]

    def refuse_if_lost(self) -> None:
        """Some things make sense only if everybody is there.

        Raises:
            ResetNeeded: If somebody is not.
        """
        if self.lost:
            raise ResetNeeded("a worker is lost: call reset() to start it anew")

    def wait(
        self, *, for_all: bool, timeout: float | None = None, came: int | None = None
    ) -> tuple[dict[int, Any], Failures]:
        """Wait for every answer that is due.

        Args:
            for_all: Else return as soon as there is a failure.
            timeout: Instead of the vec's.
            came: What a first wait has come to already.

        Returns:
            What workers said beside their rows, and what went wrong, by worker.
        """
        try:
            return self._wait(for_all, self._timeout if timeout is None else timeout, came)
        except Exception:
            raise
        except BaseException:
            self.interrupted = True
            raise

    def _wait(self, for_all: bool, limit: float | None, came: int | None) -> tuple[dict[int, Any], Failures]:
        messages: dict[int, Any] = {}
        failures: Failures = {}
        deadline = Deadline(limit)
        while True:
            if self._closed:
                raise Closed("the vec was closed while its envs were moving")
            self._read_deaths()
            self._hear(messages, failures, deadline)
            for worker in sorted(self.lost):
                if self.signals.pending(worker):
                    failures.setdefault(worker, self._loss(worker))
                    self.signals.take(worker)
            if came in (ALL_PLAIN, ALL_ANSWERED) or (failures and not for_all):
                return messages, failures
            if came == TIMED_OUT:
                for worker in range(self.num_workers):
                    if self.signals.pending(worker):
                        failures[worker] = self._late(worker, f"within {limit:g} s")
                        self.signals.take(worker)
                return messages, failures
            left = deadline.left()
            came = self.signals.wait(-1.0 if left is None else left)

    def _hear(self, messages: dict[int, Any], failures: Failures, deadline: Deadline) -> None:
        """Read what workers that have answered had to say."""
        for worker in self.signals.speakers():
            was_lost = worker in self.lost
            self.lost.add(worker)
            outcome = self.signals.take(worker)
            try:
                said = self._receive(worker, deadline)
                if not was_lost:
                    self.lost.discard(worker)
                if outcome == FAILED:
                    failures[worker] = unpack_error(said)
                else:
                    messages[worker] = said
            except Gone:
                failures[worker] = self._obituary(worker)
            except Late:
                failures[worker] = self._late(worker, "with its message")
            except EnvError as error:
                if not was_lost:
                    self.lost.discard(worker)
                failures[worker] = error

    def settle(self) -> list[BaseException]:
        """Wait for whoever is still at work, drop what they say, and replace those who are lost.

        Returns:
            What went wrong in what was dropped.
        """
        failures = self._finish_calls()
        for worker in sorted(self.lost):
            self.replace(worker)
        return failures

    def _finish_calls(self) -> list[BaseException]:
        # Whoever was waited for when Ctrl-C came may well hang.
        timeout = GRACE if self.interrupted else self._timeout
        failures: Failures = {}
        if any(map(self.signals.pending, range(self.num_workers))) or self.signals.speakers():
            _, failures = self.wait(for_all=True, timeout=timeout)
        self.interrupted = False
        return list(failures.values())

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
        self._read_deaths()
        return worker in self._exit_codes

    def _read_deaths(self) -> None:
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
        for token in tokens:
            self.lost.add(self._tokens[token])
            self._exit_codes[self._tokens[token]] = code
            del self._tokens[token]

    def _loss(self, worker: int) -> WorkerError:
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
        return f" Call reset() to start it anew, or {other}."

    def _whereabouts(self, worker: int) -> str:
        env = self.signals.last_env(worker) if self._shares else -1
        return "" if env < 0 else f" It was last in env {env}."

    def _envs_of(self, worker: int) -> str:
        ids = self._ids[worker]
        return f"env {ids[0]}" if len(ids) == 1 else f"envs {ids[0]} to {ids[-1]}"

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
        self.wait(for_all=True, timeout=GRACE)
        limit = CLOSING if self._timeout is None else self._timeout
        request = self._channel.dumps(("close",))
        for worker in range(self.num_workers):
            if worker not in self.lost:
                self.ask(worker, request)
        messages, failures = self.wait(for_all=True, timeout=limit)
        errors = [unpack_error(failure) for said in messages.values() for failure in said]
        for worker, failure in failures.items():
            if isinstance(failure, WorkerTimeout):
                failure.args = (f"{self._envs_of(worker)} could not be closed within {limit:g} s",)
            # One that has closed its envs may leave, also if it was not heard when it said so.
            left = worker in messages or (isinstance(failure, WorkerDied) and failure.exit_code == 0)
            if not left:
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
