"""The worker: a process that owns a run of envs and steps them when the parent calls.

    built --(facts: its spaces)--> parent --(share: memory, layouts)--> serving --(closed, or killed)--> gone

Guarantees
  - Rows are touched only between a call and its answer.
  - Every call is answered once, whatever the envs do; a message follows exactly if the outcome says so. It is
    sent after the answer, so that one that is larger than the line's buffer finds the parent reading.
  - A plain step takes no message, no pickle and no system call of ours. Only where spaces have no bytes does
    every answer, or every call for a step, have a message: see `_objects.py`.
  - Ctrl-C is the parent's to handle; if the parent or the launcher dies, the kernel ends this process.
  - If an env forks, its child answers no call: a child that comes back from the env's code ends itself.

The parent's side is `_pool.py`.
"""

from __future__ import annotations

import faulthandler
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
from shoal.processes.messages import HEADER, Connection, Deadline, Gone, dumps
from shoal.processes.objects import ObjectRows, Told
from shoal.processes.remote_errors import Failure, pack_error
from shoal.processes.share import Share
from shoal.rows.arena import Arena, SharedMemory
from shoal.stepping.block import Block, Unit, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard, enter_worker, stand_in
from shoal.stepping.row_slice import Infos, RowSlice
from shoal.vector.spaces import UnitFacts

STEP, REQUEST = 0, 1  # verbs of a call: a request comes with a message
PLAIN, MESSAGE, FAILED = 0, 1, 2  # outcomes: the last two are followed by one
# If they fail in a worker that is then replaced, it does nothing more: else what it had begun by the time the
# parent heard of it would be a matter of luck.
ENDING = ("infos", "reset", "act")

LINE_CLOSED = (
    "the line between a worker and this process is closed "
    "(an env may have closed descriptors that it had not opened)"
)

FOREVER = Deadline(None)


def main(descriptor: int, launcher: int, creators: Sequence[Sequence[Creator]] | None = None) -> None:
    """A worker's life. Does not return.

    Args:
        descriptor: Of the line to the parent.
        launcher: The process that started this one.
        creators: Those of every worker, if they came with the fork; else they come by mail.
    """
    if not die_with_parent(launcher):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter_worker()
    np.random.seed()  # noqa: NPY002 - else workers forked from one process would all draw the same
    code, mail = 1, Connection(socket.socket(fileno=descriptor))
    try:
        _Worker(mail, creators).live()
        code = 0
    except BaseException:  # whatever it is, it must be seen
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


class _Worker:
    def __init__(self, mail: Connection, creators: Sequence[Sequence[Creator]] | None) -> None:
        self._mail, self._creators, self._pid = mail, creators, os.getpid()

    def live(self) -> None:
        try:
            units = self._build()
            facts = _facts(units)
        except BaseException as error:
            with suppress(Gone):
                self._tell(FAILED, pack_error(_early(error)))
            return
        try:
            self._tell_facts(facts)
            pickled, (descriptor,) = self._mail.receive(FOREVER, num_descriptors=1)
            try:
                self._settle_in(units, pickle.loads(pickled), descriptor)
            except BaseException as error:
                self._tell(FAILED, pack_error(_early(error)))
                raise Gone from None
            self._tell(PLAIN, None)
            self._mail.receive(FOREVER)  # the others are ready too
        except Gone:  # the vec has come to nothing
            close_all(units)
            return
        with suppress(Gone):
            self._serve()

    def _tell(self, outcome: int, message: Any) -> None:
        """Tell the parent how the envs are being set up, unless this is a fork that one of them made."""
        if os.getpid() != self._pid:
            os._exit(1)
        self._mail.send((outcome, message), FOREVER)

    def _tell_facts(self, facts: list[UnitFacts]) -> None:
        try:
            self._tell(PLAIN, facts)
        except Gone:
            raise
        except Exception as error:
            what = "a space or the metadata of an env"
            failure = EnvError(f"{what} cannot be pickled, so it cannot leave its worker: {error}")
            self._tell(FAILED, pack_error(failure))
            raise Gone from None

    def _build(self) -> list[Unit]:
        number, numbers, world, pickled = pickle.loads(self._mail.receive(FOREVER)[0])
        specs: dict[str, Any] = {}
        if world is not None:
            if world.show_crashes:
                faulthandler.enable()
            specs = world.enter()
            # A package that an env imports registers its ids once more. The parent's are put back.
            warnings.filterwarnings("ignore", ".*Overriding environment")
        creators = self._creators[number] if self._creators is not None else pickle.loads(pickled)
        units = build_envs([partial(_create, creator, specs) for creator in creators], numbers)
        _one_thread()
        return units

    def _settle_in(self, units: list[Unit], share: Share, descriptor: int) -> None:
        memory = SharedMemory(share.nbytes(), descriptor)
        self._signals = WorkerSignals(
            memory.block,
            share.num_workers,
            share.most_blocks,
            share.worker,
            *share.patience,
            memory.descriptor,
        )
        self._words = share.last_message(memory.block)
        at = progress_offset(share.worker, share.most_blocks)
        self._progress = memory.block[at : at + 8].view(np.int64)
        arena, layouts = share.arena(memory.block), share.layouts()
        kept = share.kept(memory.block) if share.keeps else None
        self._blocks: list[_ServedBlock] = []
        first = 0
        for number, part in enumerate(share.blocks):
            rows = share.rows_of(part, arena)
            run = RowSlice(rows, *layouts, share.mode, part.first_env, share.flat, self._progress)
            block = Block(units[first : first + part.units], run)
            first += part.units
            old = None if kept is None else share.rows_of(part, kept)
            due = None if share.due is None else share.due[number]
            served = _ServedBlock(block, rows, old, due, share.mode, self._signals)
            if any(layout.num_objects for layout in layouts):
                served.objects = ObjectRows(rows, layouts, part.first_env, share.agents)
                served.tells = layouts[0].num_objects > 0
            self._blocks.append(served)
        self._serving, self._keeps = True, share.keeps

    def _serve(self) -> None:
        steps = [block.step for block in self._blocks]
        while self._serving:
            verb, ends, failure = "infos", False, None
            try:
                said = self._signals.serve(steps)
                if isinstance(said, int):
                    verb, *arguments = pickle.loads(self._mail.receive(FOREVER)[0])
                    said = self._answer_to(verb, *arguments)
                    steps = [block.step for block in self._blocks]
                outcome, message = MESSAGE, self._pickled(said, verb)
            except Gone:
                self._leave_words(None)
                raise
            except BaseException as error:
                ends = self._keeps and verb in ENDING
                failure = pack_error(self._public(error, verb))
                outcome, message = FAILED, dumps((failure, ends))
            self._signals.answer(outcome)
            try:
                self._mail.post(message, FOREVER)
            except Gone:
                self._leave_words(failure)
                raise
            if outcome == FAILED and ends:
                self._mail.receive(FOREVER)  # until it is killed

    def _leave_words(self, failure: Failure | None) -> None:
        """Leave in shared memory what cannot be sent, because the line to the parent is closed."""
        if failure is None:
            failure = pack_error(EnvError(f"{LINE_CLOSED}, so it could not answer"))
        short = failure._replace(
            pickled=None,
            summary=failure.summary[:500],
            notes=[],
            traceback=failure.traceback[-500:],
            cause=None,
        )
        for each in (failure, short):
            words = dumps(each)
            if len(words) <= len(self._words) - HEADER.size:
                self._words[: HEADER.size + len(words)] = np.frombuffer(
                    HEADER.pack(len(words)) + words, np.uint8
                )
                return

    def _public(self, error: BaseException, verb: str) -> Exception:
        """Convert an error for the parent. One that would end the parent becomes an EnvError."""
        if isinstance(error, Exception):
            return error
        env = int(self._progress[0])
        known = [] if env < 0 else [env]
        return stand_in(error, f"env {env}" if known else "an env", {"infos": "step"}.get(verb, verb), known)

    def _answer_to(self, verb: str, *arguments: Any) -> Any:
        if verb in ("reset", "act"):
            return getattr(self._blocks[self._signals.block()], verb)(*arguments)
        if verb == "close":
            self._serving = False
            return [pack_error(error) for served in self._blocks for error in served.block.close()]
        self._progress[0] = -1  # what follows goes through all envs
        (by_block,) = arguments
        return [getattr(served, verb)(*own) for served, own in zip(self._blocks, by_block, strict=True)]

    def _pickled(self, said: Any, verb: str) -> bytes:
        try:
            with Guard("an env", "__reduce__"):
                return dumps(said)
        except Exception as error:
            objects = self._blocks[self._signals.block()].objects
            if objects is not None and isinstance(said, Told):
                objects.check(said)
            what = "an info" if verb in ENDING else f"what {verb} gave"
            raise EnvError(f"{what} cannot be pickled, so it cannot leave its worker: {error}") from error


def _early(error: BaseException) -> Exception:
    """What the parent is to see of an error before there are rows."""
    return error if isinstance(error, Exception) else stand_in(error, "an env, or its creator,")


def _create(creator: Creator, specs: dict[str, Any]) -> Any:
    try:
        return creator()
    finally:
        gymnasium.registry.update(specs)


class _ServedBlock:
    """A block, and what it must do in the place of one that is gone.

    Args:
        block: Its envs.
        arena: Its rows.
        kept: Where to keep them before each step, if at all.
        due: The seed of each env's first reset, if there was another block before.
        mode: The autoreset mode.
        signals: Where to say that rows have been kept.

    Attributes:
        objects: What rows hold beside bytes, if anything.
        tells: Whether observations have such objects, so that every answer has a message.
    """

    objects: ObjectRows | None = None
    tells = False

    def __init__(
        self,
        block: Block,
        arena: Arena,
        kept: Arena | None,
        due: list[int | None] | None,
        mode: AutoresetMode,
        signals: WorkerSignals,
    ) -> None:
        self.block, self._arena, self._kept, self._due, self._signals = block, arena, kept, due, signals
        self._resets_at_first_step = due is not None and mode is AutoresetMode.NEXT_STEP
        # Under DISABLED: who waits for the caller's first reset; where they are meanwhile, once any is reset.
        waits = due is not None and mode is AutoresetMode.DISABLED
        self._waits = np.full(len(due or ()), waits, np.bool_)
        self._unseen: NDArray[np.uint8] | None = None

    @property
    def step(self) -> Callable[[], Infos | Told]:
        if self.tells:
            return self._step_and_tell
        return self._step_bytes

    @property
    def _step_bytes(self) -> Callable[[], Infos]:
        return self.block.step if self._kept is None else self._step_and_keep

    def _step_and_tell(self) -> Told:
        return self._told(self._step_bytes())

    def act(self, pickles: NDArray[Any]) -> Infos | Told:
        """Step with actions whose objects come with the call."""
        assert self.objects is not None
        self.objects.take_actions(pickles)
        return self.step()

    def _told(self, infos: Infos) -> Told:
        assert self.objects is not None
        fresh = None
        if self._resets_at_first_step or self._waits.any():
            fresh = self._waits | self._resets_at_first_step
        return self.objects.told(infos, fresh)

    def _step_and_keep(self) -> Infos:
        # Copied, so that the parent can still report them should this step be the end of us.
        self._kept.copy_from(self._arena)  # type: ignore[union-attr]
        self._signals.keep()
        if not self._resets_at_first_step:
            return self.block.step()
        everyone = np.ones(len(self._due or ()), np.bool_)
        return self._reset(everyone, [None] * len(everyone), None)

    def reset(
        self, chosen: NDArray[np.bool_], seeds: list[int | None], options: dict[str, Any] | None
    ) -> Infos | Told:
        infos = self._reset(chosen, seeds, options)
        return self._told(infos) if self.tells else infos

    def _reset(
        self, chosen: NDArray[np.bool_], seeds: list[int | None], options: dict[str, Any] | None
    ) -> Infos:
        if self._due is not None:
            if self._resets_at_first_step and chosen.any():
                chosen = np.ones_like(chosen)  # all of them wait for it
                self._resets_at_first_step = False
            seeds = [due if seed is None else seed for due, seed in zip(self._due, seeds, strict=True)]
            self._due = [None if reset else due for due, reset in zip(self._due, chosen, strict=True)]
        if chosen.all() or not self._waits.any():
            self._waits[:] = False
            return self.block.reset(chosen, seeds, options)
        shown = self._arena.observations.copy()
        agents = len(shown) // len(chosen)
        if self._unseen is None:  # a vector env can be reset in parts only after a whole reset
            kept = self._arena.mask.copy()
            self.block.reset(np.ones_like(chosen), seeds, None)
            self._unseen = self._arena.observations.copy()
            self._arena.mask[:] = kept
        waited = np.repeat(self._waits, agents)
        self._arena.observations[waited] = self._unseen[waited]
        infos = self.block.reset(chosen, seeds, options)
        self._waits &= ~chosen
        waiting = np.repeat(self._waits, agents)
        self._arena.observations[waiting] = shown[waiting]
        self._arena.mask[waiting] = False
        return infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return self.block.call(name, args, kwargs)

    def set_attr(self, name: str, values: list[Any]) -> None:
        self.block.set_attr(name, values)

    def render(self) -> list[Any]:
        return self.block.render()

    def snapshot(self) -> Any:
        objects = [] if self.objects is None else [self.objects.state()]
        waits = self._resets_at_first_step, self._waits.copy(), self._unseen
        return self.block.snapshot(), self._due, *waits, *objects

    def restore(self, state: Any) -> None:
        inner, self._due, self._resets_at_first_step, self._waits, self._unseen, *objects = state
        self.block.restore(inner)
        if self.objects is not None:
            self.objects.load(*objects)


def _facts(units: Sequence[Unit]) -> list[UnitFacts]:
    """What the parent must know of each unit. Equal ones are one object, which is pickled once."""
    facts: list[UnitFacts] = []
    for unit in units:
        own = UnitFacts.of(unit, names_of(unit))
        facts.append(facts[-1] if facts and own.is_like(facts[-1]) else own)
    return facts


def _one_thread() -> None:
    """Tell libraries that are loaded by now; those that come later read the environment."""
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS") == "1":
        sys.modules["torch"].set_num_threads(1)
    if "cv2" in sys.modules and os.environ.get("OPENCV_FOR_THREADS_NUM") == "1":
        sys.modules["cv2"].setNumThreads(1)
