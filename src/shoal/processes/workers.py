"""The crew: the worker processes of one vec, how they are set up, and what becomes of them.

Guarantees
  - A worker that is lost (dead, late, or interrupted in a message) is in `lost` until it is replaced.
  - When `kill` returns, the worker writes to no row any more.
  - Only the process that made a crew ends it; in a fork of it nothing happens to the workers.

What workers are asked for, and how their answers are heard, is `_pool.py`; who starts and buries them is
`_launcher.py`.
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
    Deadline,
    Gone,
    Late,
    Mail,
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


class Crew:
    """Workers, built and waiting to be told their share.

    Args:
        creators: Of each worker.
        numbers: Of its creators, for messages.
        start_method: How workers start.
        timeout: Seconds for any one wait; None for ever.

    Attributes:
        facts: Of each worker's units.
        signals: The handshake, once `assign` has been called. It counts blocks through the whole vec.
        owners: Of each block: its worker.
        blocks: Of each worker.
        lost: Workers that must be replaced before they can be called again.
        torn: Workers whose message was being read; if it still is, that was interrupted.
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
        self._timeout = timeout
        self._forks = start_method == "fork"
        self._units = numbers
        self._ids = numbers  # of creators, later of envs
        self._pickled = [None if self._forks else _pickle_creators(part) for part in creators]
        self._specs = [] if self._forks else _registrations()
        self._open = partial(open_channel, start_method, partial(worker_process.main, creators=creators))
        self.num_workers = len(creators)
        self.owners: list[int] = []
        self.blocks: list[list[int]] = []
        self.lost: set[int] = set()
        self.torn: set[int] = set()
        self.reset_verb = "reset"
        self.ended = False
        self._mails: dict[int, Mail] = {}
        self._tokens: dict[int, int] = {}  # of those whose death has not been told: their worker
        self._started = 0
        self._exit_codes: dict[int, int | str | None] = {}  # of the dead
        self._told: set[int] = set()  # whose loss an error has told of
        self._shares: list[Share] = []
        self._memory: SharedMemory | None = None
        self._channel, self._launcher_lives = self._open(), True
        try:
            deadline = Deadline(timeout)
            for worker in range(self.num_workers):
                self._start(worker, deadline)
            self.facts: list[list[UnitFacts]] = self._gather(range(self.num_workers), deadline)
        except BaseException:
            self.end()
            raise

    # -- setting up and replacing ----------------------------------------------------------------------

    def _start(self, worker: int, deadline: Deadline) -> None:
        self._started += 1
        self._tokens[self._started] = worker
        try:
            self._mails[worker] = self._channel.start(self._started)
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
            shares: One for each.
            memory: The memory, which is the crew's from now on.
            patience: How long this process waits in which way.
            cores: How many can be used.
            parent_steps: Whether this process steps a share itself.
        """
        self._memory = memory
        owners = {part.number: share.worker for share in shares for part in share.parts}
        self.owners = [owners[block] for block in range(len(owners))]
        self.blocks = [[part.number for part in share.parts] for share in shares]
        self.signals = ParentSignals(
            memory.block, self.owners, *patience, self._channel.fileno(), parent_steps, cores
        )
        self._shares = shares
        self._ids = [
            [env for part in share.parts for env in range(part.first_env, part.last_env)] for share in shares
        ]
        deadline = Deadline(self._timeout)
        for worker, share in enumerate(shares):
            self._tell(worker, share, deadline, memory.descriptor)
        self._gather(range(self.num_workers), deadline)
        for worker in range(self.num_workers):
            self._tell(worker, None, deadline)
        self._watch_lines()

    def _watch_lines(self) -> None:
        lines = [mail for worker, mail in self._mails.items() if worker not in self.lost]
        self.signals.watch_lines([mail.fileno() for mail in lines])

    def replace(self, worker: int, due: list[list[int | None]] | None = None) -> None:
        """Kill a worker and put a new one in its place, with new envs.

        Args:
            worker: Which.
            due: The seeds of its envs' first resets, unless told otherwise then, by block.
        """
        self.refuse_if_ended()
        self.kill(worker)
        deadline = Deadline(self._timeout)
        self._mails[worker].hang_up()
        if not self._launcher_lives:
            self._channel.close()
            self._channel, self._launcher_lives = self._open(), True
            self.signals.watch(self._channel.fileno())
        self.signals.renew(worker)
        self._exit_codes.pop(worker, None)
        self._words_of(worker)[: HEADER.size] = 0
        self._told.discard(worker)
        self.torn.discard(worker)
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
        self.lost.discard(worker)
        self._watch_lines()

    def kill(self, worker: int, patience: float = CLOSING) -> None:
        """Kill a worker; when this returns, it writes to no row any more."""
        self.lost.add(worker)
        for token, each in list(self._tokens.items()):
            if each == worker:
                self._channel.kill(token)
        self._await_death(worker, patience)  # if it is not told, nobody listens: what could be done is done

    def _await_death(self, worker: int, patience: float) -> bool:
        """Whether the death of a worker has been told within so many seconds."""
        deadline = Deadline(patience)
        with suppress(Late):
            while worker in self._tokens.values():
                self._read_death(deadline)
        return worker not in self._tokens.values()

    def _tell(self, worker: int, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send what a worker needs to know while it is being set up."""
        mail = self._mails[worker]
        try:
            mail.send(message, deadline, *descriptors)
        except Gone:
            pass  # whoever waits for its answer will find out
        except Late:
            raise self.late(worker, "while it was starting") from None

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
                outcome, reply = self.receive(worker, deadline)
            except Late:
                raise self.late(worker, "while it was starting") from None
            except Gone:
                raise self.obituary(worker) from None
            if outcome == FAILED:
                raise unpack_error(reply)
            replies[worker] = reply
        return [replies[worker] for worker in workers]

    # -- messages --------------------------------------------------------------------------------------

    def dumps(self, message: Any) -> bytes:
        """A message as workers can read it."""
        return self._channel.dumps(message)

    def post(self, block: int, request: bytes) -> None:
        """Call a block for a request. Whether its worker got it shows when the answer is waited for."""
        worker = self.owners[block]
        self.lost.add(worker)  # while the message is on its way
        self.signals.post([block], REQUEST)
        try:
            self._mails[worker].post(request, Deadline(self._timeout))
        except Gone:
            self._exit_codes.setdefault(worker, None)  # until its death is told
        except Late:
            pass
        else:
            self.lost.discard(worker)

    def receive(self, worker: int, deadline: Deadline) -> Any:
        """What a worker sends.

        Raises:
            Gone: If it has died.
            Late: If it takes too long.
            EnvError: If it sends what cannot be unpickled here.
        """
        self.torn.add(worker)
        pickled, _ = self._mails[worker].receive(deadline, lambda: self._is_dead(worker))
        self.torn.discard(worker)
        try:
            with Guard("an env", "__reduce__"):
                return pickle.loads(pickled)
        except Exception as error:
            raise EnvError(
                f"what a worker sent cannot be unpickled here: {summary_of(error)}", self._ids[worker]
            ) from error

    # -- what becomes of them --------------------------------------------------------------------------

    def _is_dead(self, worker: int) -> bool:
        self.notice_deaths()
        return worker in self._exit_codes

    def notice_deaths(self) -> None:
        """Take note of everybody whose death has been told."""
        with suppress(Late):
            while self._tokens:
                self._read_death(Deadline(0.0))

    def notice_closed_lines(self) -> None:
        """Take note of workers that have died, or cannot be talked to, though no death has been told."""
        there = {worker: mail for worker, mail in self._mails.items() if worker not in self.lost}
        for worker in closed_lines(there):
            self.lost.add(worker)
            self._exit_codes.setdefault(worker, None)  # until its death is told
        self._watch_lines()

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

    def died_untold(self) -> set[int]:
        """Workers that have died, of whose loss no error has told yet."""
        return (self.lost & set(self._exit_codes)) - self._told

    def loss(self, worker: int) -> Exception:
        """The error that says why a worker will not answer."""
        if worker in self._exit_codes:
            return self.obituary(worker)
        return self.late(worker, "since a call before")

    def obituary(self, worker: int) -> Exception:
        """The error that says how a worker died, or what it could not send any more."""
        self._told.add(worker)
        # It is dead, but its death may not have been told or heard yet. Or it lives, without a line to here.
        self._channel.wake()
        lives = not self._await_death(worker, GRACE)
        self.kill(worker, GRACE)
        if self._shares and (last := self._last_words(worker)) is not None:
            return last
        code = self._exit_codes.get(worker)
        how = _how(code)
        # Else the worker had died earlier, and Ctrl-C interrupted the message about it.
        if lives and code == -signal.SIGKILL:
            code, how = None, f"was ended: {LINE_CLOSED}"
        error = WorkerDied(
            f"worker {worker}, which ran {self.envs_of(worker)}, {how}.{self._whereabouts(worker)}"
            f"{self._advice(RESTART)}",
            self._ids[worker],
        )
        error.exit_code = code if isinstance(code, int) else None
        return error

    def _words_of(self, worker: int) -> NDArray[np.uint8]:
        assert self._memory is not None
        return self._shares[worker].last_words(self._memory.block)

    def _last_words(self, worker: int) -> Exception | None:
        """The error that a worker has left because it could not send it."""
        words = self._words_of(worker).tobytes()
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

    def late(self, worker: int, when: str) -> WorkerTimeout:
        """The error that says that a worker has not answered; it is lost from now on."""
        self.lost.add(worker)
        self._told.add(worker)
        return WorkerTimeout(
            f"worker {worker}, which ran {self.envs_of(worker)}, has not answered {when}."
            f"{self._whereabouts(worker)}{self._advice('allow more by timeout=')}",
            self._ids[worker],
        )

    @property
    def restarts(self) -> bool:
        """Whether who is lost is replaced by itself."""
        return bool(self._shares) and self._shares[0].keeps

    def _advice(self, other: str) -> str:
        """What to do, unless there is no vec yet or it does so by itself."""
        if not self._shares or self.restarts:
            return ""
        return f" Call {self.reset_verb}() to start it anew, or {other}."

    def _whereabouts(self, worker: int) -> str:
        env = self.signals.last_env(worker) if self._shares else -1
        return "" if env < 0 else f" It was last in env {env}."

    def envs_of(self, worker: int) -> str:
        """A worker's envs, in words."""
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
        """Whether this is the process that made the crew, and not a fork of it."""
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
        for mail in list(self._mails.values()):
            mail.shut_down()

    def end(self, *, at_once: bool = False) -> None:
        """End every worker: by itself, if it can and if there is time. May be called again."""
        self.ended = True  # first: the verb that this interrupts must not mistake what it finds
        if self.is_ours():
            for mail in self._mails.values():
                mail.hang_up()  # those that are still being set up close their envs then
            self._channel.wake()
            deadline = Deadline(0.0 if at_once else GRACE)
            with suppress(Late):
                while set(self._tokens.values()) - (self.lost if self._shares else set()):
                    self._read_death(deadline)
            for token in list(self._tokens):
                self._channel.kill(token)
            deadline = Deadline(2 * GRACE)
            with suppress(Late):  # a launcher that is stopped kills them when it finds the channel closed
                while self._tokens:
                    self._read_death(deadline)
        for mail in self._mails.values():
            mail.close()
        self._channel.close()
        if self._memory is not None:
            self._memory.close()


def _how(code: int | str | None) -> str:
    if code is None:
        return "died; nobody is left to say how"
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
