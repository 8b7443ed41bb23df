"""The worker: a process that holds some blocks of envs and steps them when the parent calls.

    build envs --(facts: spaces)--> parent --(share: memory, layouts)--> serve --(closed, or killed)--> end

Guarantees
  - The worker writes to rows only between a call and its answer.
  - Every call is answered exactly once, even if an env raises. A message follows exactly if the outcome says
    so. It is sent after the answer: a message that is larger than the socket's buffer can be sent only while
    the parent reads.
  - A plain step needs no message, no pickle and no system call of this code. If spaces have fields without
    bytes, every answer or every call for a step has a message: see `objects.py`.
  - The parent handles Ctrl-C. If the parent or the launcher dies, the kernel kills this process.
  - If an env forks, the child answers no call: a child that returns from the env's code exits.

The parent's side is `calls.py` and `workers.py`.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._native import WorkerSignals, die_with_parent, progress_offset
from shoal.adapters.single import Creator
from shoal.errors import EnvError
from shoal.processes.messages import HEADER, Connection, ConnectionClosed, Deadline, dumps
from shoal.processes.objects import InfosAndObjects, ObjectRows
from shoal.processes.parent_settings import ParentSettings
from shoal.processes.remote_errors import Failure, pack_error
from shoal.processes.share import Share
from shoal.rows.arena import Arena, SharedMemory
from shoal.stepping.block import Block, Unit, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard, enter_worker, stand_in
from shoal.stepping.row_slice import Infos, RowSlice
from shoal.vector.spaces import UnitFacts

STEP, REQUEST = 0, 1  # the verbs of a call; a message comes with a request
PLAIN, MESSAGE, FAILED = 0, 1, 2  # the outcomes of a call; a message follows the last two
# If one of these verbs fails in a worker that will be replaced, the worker takes no more calls. Otherwise it
# would depend on timing which calls it begins before the parent reads the error.
MOVING_VERBS = ("infos", "reset", "act")

CONNECTION_CLOSED = (
    "the connection between a worker and this process is closed "
    "(an env may have closed descriptors that it had not opened)"
)

NO_DEADLINE = Deadline(None)


def main(descriptor: int, launcher: int, creators: Sequence[Sequence[Creator]] | None = None) -> None:
    """Run a worker. Does not return.

    Args:
        descriptor: The descriptor of the connection to the parent.
        launcher: The pid of the launcher, which started this process.
        creators: For each worker, its creators, if this process is a fork of the parent. Otherwise the
            creators come in a message.
    """
    if not die_with_parent(launcher):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter_worker()
    np.random.seed()  # noqa: NPY002 - otherwise all forks of one process would draw the same numbers
    code, connection = 1, Connection(socket.socket(fileno=descriptor))
    try:
        _Worker(connection, creators).run()
        code = 0
    except BaseException:  # print any error before this process ends
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


class _Worker:
    def __init__(self, connection: Connection, creators: Sequence[Sequence[Creator]] | None) -> None:
        self._connection, self._creators, self._pid = connection, creators, os.getpid()

    def run(self) -> None:
        """Build the envs, receive the share of this worker, and serve calls until the vec is closed."""
        try:
            units = self._build()
            facts = _facts(units)
        except BaseException as error:
            with suppress(ConnectionClosed):
                self._send(FAILED, pack_error(_setup_error(error)))
            return
        try:
            self._send_facts(facts)
            pickled, (descriptor,) = self._connection.receive(NO_DEADLINE, num_descriptors=1)
            try:
                self._attach(units, pickle.loads(pickled), descriptor)
            except BaseException as error:
                self._send(FAILED, pack_error(_setup_error(error)))
                raise ConnectionClosed from None
            self._send(PLAIN, None)
            self._connection.receive(NO_DEADLINE)  # until all workers are ready
        except ConnectionClosed:  # the vec could not be made
            close_all(units)
            return
        with suppress(ConnectionClosed):
            self._serve()

    def _send(self, outcome: int, message: Any) -> None:
        """Send a reply during setup. Exit if this process is a fork that an env has made."""
        if os.getpid() != self._pid:
            os._exit(1)
        self._connection.send((outcome, message), NO_DEADLINE)

    def _send_facts(self, facts: list[UnitFacts]) -> None:
        try:
            self._send(PLAIN, facts)
        except ConnectionClosed:
            raise
        except Exception as error:
            what = "a space or the metadata of an env"
            failure = EnvError(f"{what} cannot be pickled, so it cannot leave its worker: {error}")
            self._send(FAILED, pack_error(failure))
            raise ConnectionClosed from None

    def _build(self) -> list[Unit]:
        settings: ParentSettings | None
        worker, creator_numbers, settings, pickled = pickle.loads(self._connection.receive(NO_DEADLINE)[0])
        specs: dict[str, Any] = {}
        if settings is not None:
            specs = settings.apply()
            # A package that an env imports registers its ids again. `_create` restores those of the parent.
            warnings.filterwarnings("ignore", ".*Overriding environment")
        creators = self._creators[worker] if self._creators is not None else pickle.loads(pickled)
        units = build_envs([partial(_create, creator, specs) for creator in creators], creator_numbers)
        _use_one_thread()
        return units

    def _attach(self, units: list[Unit], share: Share, descriptor: int) -> None:
        """Map the shared memory, and make the blocks of this worker's share."""
        memory = SharedMemory(share.nbytes(), descriptor)
        self._signals = WorkerSignals(
            memory.block,
            share.num_workers,
            share.most_blocks,
            share.worker,
            *share.patience,
            memory.descriptor,
        )
        self._unsent = share.unsent_message(memory.block)
        at = progress_offset(share.worker, share.most_blocks)
        self._progress = memory.block[at : at + 8].view(np.int64)
        arena, layouts = share.arena(memory.block), share.layouts()
        kept = share.kept(memory.block) if share.keeps else None
        self._blocks: list[_ServedBlock] = []
        first = 0
        for number, part in enumerate(share.blocks):
            rows = share.rows_of(part, arena)
            row_slice = RowSlice(rows, *layouts, share.mode, part.first_env, share.flat, self._progress)
            block = Block(units[first : first + part.units], row_slice)
            first += part.units
            kept_rows = None if kept is None else share.rows_of(part, kept)
            first_seeds = None if share.first_seeds is None else share.first_seeds[number]
            served = _ServedBlock(block, rows, kept_rows, first_seeds, share.mode, self._signals)
            if any(layout.num_objects for layout in layouts):
                served.objects = ObjectRows(rows, layouts, part.first_env, share.agents)
                served.sends_objects = layouts[0].num_objects > 0
            self._blocks.append(served)
        self._serving, self._keeps = True, share.keeps

    def _serve(self) -> None:
        """Answer calls until the parent asks to close the envs."""
        steps = [block.step for block in self._blocks]
        while self._serving:
            verb, stops, failure = "infos", False, None
            try:
                result = self._signals.serve(steps)
                if isinstance(result, int):
                    verb, *arguments = pickle.loads(self._connection.receive(NO_DEADLINE)[0])
                    result = self._execute(verb, *arguments)
                    steps = [block.step for block in self._blocks]
                outcome, message = MESSAGE, self._pickled(result, verb)
            except ConnectionClosed:
                self._leave_unsent(None)
                raise
            except BaseException as error:
                stops = self._keeps and verb in MOVING_VERBS
                failure = pack_error(self._public(error, verb))
                outcome, message = FAILED, dumps((failure, stops))
            self._signals.answer(outcome)
            try:
                self._connection.post(message, NO_DEADLINE)
            except ConnectionClosed:
                self._leave_unsent(failure)
                raise
            if outcome == FAILED and stops:
                self._connection.receive(NO_DEADLINE)  # until the parent kills this process

    def _leave_unsent(self, failure: Failure | None) -> None:
        """Write an error to shared memory, because the connection to the parent is closed."""
        if failure is None:
            failure = pack_error(EnvError(f"{CONNECTION_CLOSED}, so it could not answer"))
        short = failure._replace(
            pickled=None,
            summary=failure.summary[:500],
            notes=[],
            traceback=failure.traceback[-500:],
            cause=None,
        )
        for each in (failure, short):
            message = dumps(each)
            if len(message) <= len(self._unsent) - HEADER.size:
                self._unsent[: HEADER.size + len(message)] = np.frombuffer(
                    HEADER.pack(len(message)) + message, np.uint8
                )
                return

    def _public(self, error: BaseException, verb: str) -> Exception:
        """Convert an error for the parent. One that would end the parent becomes an EnvError."""
        if isinstance(error, Exception):
            return error
        env = int(self._progress[0])
        known = [] if env < 0 else [env]
        return stand_in(error, f"env {env}" if known else "an env", {"infos": "step"}.get(verb, verb), known)

    def _execute(self, verb: str, *arguments: Any) -> Any:
        """Run a request, and return the result."""
        if verb in ("reset", "act"):
            return getattr(self._blocks[self._signals.block()], verb)(*arguments)
        if verb == "close":
            self._serving = False
            return [pack_error(error) for served in self._blocks for error in served.block.close()]
        self._progress[0] = -1  # the other verbs run over all envs
        (by_block,) = arguments
        targets: list[Any] = self._blocks
        if verb not in ("snapshot", "restore"):
            targets = [served.block for served in self._blocks]
        return [getattr(target, verb)(*own) for target, own in zip(targets, by_block, strict=True)]

    def _pickled(self, result: Any, verb: str) -> bytes:
        try:
            with Guard("an env", "__reduce__"):
                return dumps(result)
        except Exception as error:
            objects = self._blocks[self._signals.block()].objects
            if objects is not None and isinstance(result, InfosAndObjects):
                objects.check(result)
            what = "an info" if verb in MOVING_VERBS else f"what {verb} gave"
            raise EnvError(f"{what} cannot be pickled, so it cannot leave its worker: {error}") from error


def _setup_error(error: BaseException) -> Exception:
    """Convert an error during setup for the parent. One that would end the parent becomes an EnvError."""
    return error if isinstance(error, Exception) else stand_in(error, "an env, or its creator,")


def _create(creator: Creator, specs: dict[str, Any]) -> Any:
    try:
        return creator()
    finally:
        gymnasium.registry.update(specs)


class _ServedBlock:
    """A block of this worker: keeps its rows before each step, and replaces the block of a lost worker.

    Args:
        block: The envs.
        arena: The rows of the block.
        kept: The rows of the second arena, into which the rows are copied before each step; None if the vec
            does not restart workers.
        first_seeds: The seed of each env's first reset, if this block replaces that of a lost worker.
        mode: The autoreset mode.
        signals: The handshake, which records that rows have been kept.

    Attributes:
        objects: The object rows of the block; None if no space needs objects.
        sends_objects: Whether observations have objects, so that every answer has a message.
    """

    objects: ObjectRows | None = None
    sends_objects = False

    def __init__(
        self,
        block: Block,
        arena: Arena,
        kept: Arena | None,
        first_seeds: list[int | None] | None,
        mode: AutoresetMode,
        signals: WorkerSignals,
    ) -> None:
        self.block, self._arena, self._kept, self._signals = block, arena, kept, signals
        self._first_seeds = first_seeds
        replaces = first_seeds is not None
        self._resets_at_first_step = replaces and mode is AutoresetMode.NEXT_STEP
        # Under DISABLED, the envs that wait for the caller's first reset. When the caller resets one env, all
        # are reset, and the observations of the envs that still wait are hidden from the caller.
        waits = replaces and mode is AutoresetMode.DISABLED
        self._waiting = np.full(len(first_seeds or ()), waits, np.bool_)
        self._hidden: NDArray[np.uint8] | None = None

    @property
    def step(self) -> Callable[[], Infos | InfosAndObjects]:
        """The function that steps the block."""
        if self.sends_objects:
            return self._step_and_add_objects
        return self._step_bytes

    @property
    def _step_bytes(self) -> Callable[[], Infos]:
        return self.block.step if self._kept is None else self._step_and_keep

    def _step_and_add_objects(self) -> InfosAndObjects:
        return self._add_objects(self._step_bytes())

    def act(self, pickles: NDArray[Any]) -> Infos | InfosAndObjects:
        """Step with actions whose objects came with the call."""
        assert self.objects is not None
        self.objects.take_actions(pickles)
        return self.step()

    def _add_objects(self, infos: Infos) -> InfosAndObjects:
        assert self.objects is not None
        unreset = None
        if self._resets_at_first_step or self._waiting.any():
            unreset = self._waiting | self._resets_at_first_step
        return self.objects.add_to(infos, unreset)

    def _step_and_keep(self) -> Infos:
        # The parent reports the copy if this process dies in the step.
        self._kept.copy_from(self._arena)  # type: ignore[union-attr]
        self._signals.keep()
        if not self._resets_at_first_step:
            return self.block.step()
        all_envs = np.ones(len(self._first_seeds or ()), np.bool_)
        return self._reset(all_envs, [None] * len(all_envs), None)

    def reset(
        self, chosen: NDArray[np.bool_], seeds: list[int | None], options: dict[str, Any] | None
    ) -> Infos | InfosAndObjects:
        """Reset the chosen envs."""
        infos = self._reset(chosen, seeds, options)
        return self._add_objects(infos) if self.sends_objects else infos

    def _reset(
        self, chosen: NDArray[np.bool_], seeds: list[int | None], options: dict[str, Any] | None
    ) -> Infos:
        if self._first_seeds is not None:
            if self._resets_at_first_step and chosen.any():
                chosen = np.ones_like(chosen)  # all envs wait for their first reset
                self._resets_at_first_step = False
            firsts = self._first_seeds
            seeds = [first if seed is None else seed for first, seed in zip(firsts, seeds, strict=True)]
            self._first_seeds = [
                None if reset else first for first, reset in zip(firsts, chosen, strict=True)
            ]
        if chosen.all() or not self._waiting.any():
            self._waiting[:] = False
            return self.block.reset(chosen, seeds, options)
        shown = self._arena.observations.copy()
        agents = len(shown) // len(chosen)
        if self._hidden is None:  # a vector env can be reset in parts only after a whole reset
            mask = self._arena.mask.copy()
            self.block.reset(np.ones_like(chosen), seeds, None)
            self._hidden = self._arena.observations.copy()
            self._arena.mask[:] = mask
        waited = np.repeat(self._waiting, agents)
        self._arena.observations[waited] = self._hidden[waited]
        infos = self.block.reset(chosen, seeds, options)
        self._waiting &= ~chosen
        waiting = np.repeat(self._waiting, agents)
        self._arena.observations[waiting] = shown[waiting]
        self._arena.mask[waiting] = False
        return infos

    def snapshot(self) -> Any:
        """Return the state of all envs, and which of them wait for their first reset."""
        objects = [] if self.objects is None else [self.objects.state()]
        waits = self._resets_at_first_step, self._waiting.copy(), self._hidden
        return self.block.snapshot(), self._first_seeds, *waits, *objects

    def restore(self, state: Any) -> None:
        """Continue from a snapshot."""
        inner, self._first_seeds, self._resets_at_first_step, self._waiting, self._hidden, *objects = state
        self.block.restore(inner)
        if self.objects is not None:
            self.objects.load(*objects)


def _facts(units: Sequence[Unit]) -> list[UnitFacts]:
    """Return the facts of each unit. Equal neighbours are the same object, which is pickled once."""
    facts: list[UnitFacts] = []
    for unit in units:
        own = UnitFacts.of(unit, names_of(unit))
        facts.append(facts[-1] if facts and own.is_like(facts[-1]) else own)
    return facts


def _use_one_thread() -> None:
    """Set imported libraries to one thread. Libraries that are imported later read the environment."""
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS") == "1":
        sys.modules["torch"].set_num_threads(1)
    if "cv2" in sys.modules and os.environ.get("OPENCV_FOR_THREADS_NUM") == "1":
        sys.modules["cv2"].setNumThreads(1)
