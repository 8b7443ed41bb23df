"""The worker: a process that owns a run of envs and steps them when the parent calls.

    built --(facts: its spaces)--> parent --(share: memory, layouts)--> serving --(closed, or killed)--> gone

Guarantees
  - Rows are touched only between a call and its answer.
  - Every call is answered once, whatever the envs do; a message follows exactly if the outcome says so. It is
    sent after the answer, so that one that is larger than the line's buffer finds the parent reading.
  - A plain step takes no message, no pickle and no system call of ours.
  - Ctrl-C is the parent's to handle; if the parent or the launcher dies, the kernel ends this process.

The parent's side is `_pool.py`.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._native import WorkerSignals, die_with_parent, progress_offset
from shoal._core.run import Infos, Run
from shoal.buffers import SharedMemory
from shoal.emulation import Creator
from shoal.errors import EnvError
from shoal.vector._mail import Deadline, Gone, Mail, dumps
from shoal.vector._remote_errors import pack_error
from shoal.vector._share import Share
from shoal.vector.block import Block, Unit, agents_of, build_envs, close_all
from shoal.vector.spaces import UnitFacts

STEP, REQUEST = 0, 1  # verbs of a call: a request comes with a message
PLAIN, MESSAGE, FAILED = 0, 1, 2  # outcomes: the last two are followed by one

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
    np.random.seed()  # noqa: NPY002 - else workers forked from one process would all draw the same
    code, mail = 1, Mail(socket.socket(fileno=descriptor))
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
    def __init__(self, mail: Mail, creators: Sequence[Sequence[Creator]] | None) -> None:
        self._mail, self._creators = mail, creators

    def live(self) -> None:
        try:
            units = self._build()
        except BaseException as error:
            with suppress(Gone):
                self._mail.send((FAILED, pack_error(error)), FOREVER)
            return
        try:
            self._mail.send((PLAIN, _facts(units)), FOREVER)
            pickled, (descriptor,) = self._mail.receive(FOREVER, num_descriptors=1)
            try:
                self._settle_in(units, pickle.loads(pickled), descriptor)
            except BaseException as error:
                self._mail.send((FAILED, pack_error(error)), FOREVER)
                raise Gone from None
            self._mail.send((PLAIN, None), FOREVER)
        except Gone:  # the vec has come to nothing
            close_all(units)
            return
        with suppress(Gone):
            self._serve()

    def _build(self) -> list[Unit]:
        number, first, world, pickled = pickle.loads(self._mail.receive(FOREVER)[0])
        if world is not None:
            if world.show_crashes:
                faulthandler.enable()
            world.enter()
        creators = self._creators[number] if self._creators is not None else pickle.loads(pickled)
        units = build_envs(creators, first)
        _one_thread()
        return units

    def _settle_in(self, units: list[Unit], share: Share, descriptor: int) -> None:
        memory = SharedMemory(share.nbytes(), descriptor)
        memory.close()
        block = memory.block
        first, last = share.first_row, share.last_row
        progress = block[progress_offset(share.worker) :][:8].view(np.int64)
        observation, action = share.layouts()
        run = Run(
            share.arena(block).rows(first, last),
            observation,
            action,
            share.mode,
            share.first_env,
            share.flat,
            progress,
        )
        self._block = Block(units, run)
        self._signals = WorkerSignals(block, share.worker, *share.patience)
        self._arena, self._progress = run.arena, progress
        self._kept = share.kept(block).rows(first, last) if share.keeps else None
        self._due = share.due
        self._resets_at_first_step = share.due is not None and share.mode is AutoresetMode.NEXT_STEP
        self._serving = True

    def _serve(self) -> None:
        while self._serving:
            try:
                said, verb = self._signals.serve(self._step()), "infos"
                if isinstance(said, int):
                    verb, *arguments = pickle.loads(self._mail.receive(FOREVER)[0])
                    said = self._answer_to(verb, *arguments)
                outcome, message = MESSAGE, _pickled(said, verb)
            except Gone:
                raise
            except BaseException as error:
                outcome, message = FAILED, dumps(pack_error(error))
            self._signals.answer(outcome)
            self._mail.post(message, FOREVER)

    def _step(self) -> Callable[[], Infos]:
        return self._block.step if self._kept is None else self._step_and_keep

    def _step_and_keep(self) -> Infos:
        # Copied, so that the parent can still report them should this step be the end of us.
        self._kept.copy_from(self._arena)  # type: ignore[union-attr]
        self._signals.keep()
        if not self._resets_at_first_step:
            return self._block.step()
        everyone = np.ones(len(self._due or ()), np.bool_)
        return self._reset(everyone, [None] * len(everyone), None)

    def _reset(
        self, chosen: NDArray[np.bool_], seeds: list[int | None], options: dict[str, Any] | None
    ) -> Infos:
        if self._due is not None:
            if self._resets_at_first_step and chosen.any():
                chosen = np.ones_like(chosen)  # all of them wait for it
                self._resets_at_first_step = False
            seeds = [due if seed is None else seed for due, seed in zip(self._due, seeds, strict=True)]
            self._due = [None if reset else due for due, reset in zip(self._due, chosen, strict=True)]
        return self._block.reset(chosen, seeds, options)

    def _answer_to(self, verb: str, *arguments: Any) -> Any:
        if verb == "close":
            self._serving = False
            return [pack_error(error) for error in self._block.close()]
        if verb == "reset":
            return self._reset(*arguments)
        self._progress[0] = -1  # what follows goes through all envs
        if verb == "snapshot":
            return self._block.snapshot(), self._due, self._resets_at_first_step
        if verb == "restore":
            ((state, due, resets),) = arguments
            self._block.restore(state)
            self._due, self._resets_at_first_step = due, resets
            return None
        return getattr(self._block, verb)(*arguments)


def _pickled(said: Any, verb: str) -> bytes:
    try:
        return dumps(said)
    except Exception as error:
        what = "an info" if verb in ("infos", "reset") else f"what {verb} gave"
        raise EnvError(f"{what} cannot be pickled, so it cannot leave its worker: {error}") from error


def _facts(units: Sequence[Unit]) -> list[UnitFacts]:
    """What the parent must know of each unit. Equal ones are one object, which is pickled once."""
    facts: list[UnitFacts] = []
    for unit in units:
        own = UnitFacts.of(unit, agents_of(unit))
        facts.append(facts[-1] if facts and own.is_like(facts[-1]) else own)
    return facts


def _one_thread() -> None:
    """Tell libraries that are loaded by now; those that come later read the environment."""
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS") == "1":
        sys.modules["torch"].set_num_threads(1)
    if "cv2" in sys.modules and os.environ.get("OPENCV_FOR_THREADS_NUM") == "1":
        sys.modules["cv2"].setNumThreads(1)
