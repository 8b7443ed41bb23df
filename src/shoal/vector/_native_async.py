"""Asynchronous compiled envs: blocks that threads step while the caller has others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.native.bodies import RESET, STEP_SAME
from shoal.native.debugging import DebugQueue
from shoal.processes.placement import Part
from shoal.stepping.row_slice import Infos
from shoal.vector._async import AsyncVerbs
from shoal.vector.batch_view import Hand
from shoal.vector.native import Native
from shoal.vector.statistics import report
from shoal.vector.vec import READY, Result


class AsyncNative(AsyncVerbs, Native):
    """What `Native` makes if a batch has less than all envs, or with ``mode="async"``."""

    def _shape(self, count: int, batch_size: Any, surplus_envs: Any, mode: Any, order: Any) -> int:
        for name, value in self._native_spec.parameters.items():
            if value.ndim and surplus_envs:
                raise ArgumentError(
                    f"{name}: expected one value for all envs, because surplus_envs adds some"
                )
        return super()._shape(count, batch_size, surplus_envs, mode, order)

    def _start(self) -> None:
        batch_size, order = self._batching.batch_size, str(self._batching.order)
        size = _block_size(self._total_envs, batch_size, self.num_workers, order)
        parts = [
            Part(number, size, number * size, (number + 1) * size)
            for number in range(self._total_envs // size)
        ]
        self._parts = parts
        self._divide(parts, batch_size // size, order)
        ends = [part.last_env for part in parts]
        self._queue: Any
        if self.debug:
            self._queue = DebugQueue(self._native_spec, self._columns, ends)
            return
        from shoal._core._native import NativeQueue

        self._queue = self._made_by(NativeQueue, ends, others=self.num_workers)

    # -- the verbs -------------------------------------------------------------------------------------

    def _launch_reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        self._check_reset(seeds, options)
        AsyncVerbs._launch_reset(self, chosen, seeds, options)

    def _reset_all(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        self._forget()
        self._choose(slice(None), chosen, seeds)
        self._flow.restart()
        self._let_go()
        self._submit(list(range(len(self._parts))), "reset")

    def _reset_some(
        self,
        blocks: list[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        # Only their own entries: others may be under way.
        envs = np.concatenate(
            [np.arange(*self._parts[block].envs.indices(self._total_envs)) for block in blocks]
        )
        self._choose(envs, chosen, seeds)
        self._flow.send(blocks)
        self._let_go()
        self._submit(blocks, "reset")

    def _send(self, actions: Any, env_ids: NDArray[np.int64] | None) -> None:
        if self._flow.hands:
            self._refuse_never_reset()
        AsyncVerbs._send(self, actions, env_ids)

    def _begin_steps(self, hand: Hand) -> None:
        self._check_owner()
        self._hands.scatter(hand)
        self._flow.send(hand.blocks)
        if hand not in self._held:  # put together only now
            self._hands.release(hand)
        self._let_go()
        self._submit(hand.blocks, "step")

    def _submit(self, blocks: Sequence[int], verb: str) -> None:
        number = RESET if verb == "reset" else self._step_verb
        for block in blocks:
            self._verbs[block] = verb
            if self._replay is not None:
                self._replay.keep(self._parts[block].envs, number)
        self._queue.submit(list(blocks), number)

    def _arrive(self) -> list[int]:
        self._check_owner()
        flow = self._flow
        while not self._is_there():
            self._collect(1)
        return flow.receive()

    def _is_there(self) -> bool:
        flow = self._flow
        if flow.order == "ready":
            return len(flow.there) >= flow.per_batch
        return set(flow.next_batch()).issubset(flow.there)

    def _collect(self, wanted: int) -> None:
        """Take note of blocks that are done, at least so many."""
        if not self.debug:
            self._flow.arrive(self._queue.kept())  # by a call that was interrupted
        self._flow.arrive(self._queue.collect(wanted))
        if not self.debug and self._queue.has_failed():
            if self._replay is not None:  # which moves all envs, so that none may be under way
                self._flow.arrive(self._queue.collect(len(self._flow.sent) - len(self._flow.there)))
            raise self._raised_inside()

    def _forget(self) -> None:
        """All that is under way ends, whatever becomes of it."""
        self._check_owner()
        if self.debug:
            self._queue.forget()
            return
        missing = len(self._flow.sent) - len(self._flow.there) - len(self._queue.kept())
        self._queue.collect(max(0, missing))
        self._queue.has_failed()

    def _drain(self) -> None:
        """Wait for all that is under way."""
        self._check_owner()
        while missing := len(self._flow.sent) - len(self._flow.there):
            self._collect(missing)

    def _said_by(self, blocks: Sequence[int]) -> Infos:
        if self._step_verb != STEP_SAME:
            return []
        pairs: Infos = []
        rows = self._block_size * self.agents_per_env
        for position, block in enumerate(blocks):
            if self._verbs[block] == "step":
                for row, info in self._finals(slice(block * rows, (block + 1) * rows)):
                    pairs.append((position * rows + row, info))
        return pairs

    def _ask(self, verb: str, question: Callable[[], Result]) -> Result:
        """As ever, once all that is under way is there. It stays to be received."""
        if self._state is READY:
            self._move(self._drain, READY)
        return super()._ask(verb, question)

    def _snapshot_some(self, env_ids: Sequence[int]) -> dict[str, Any]:
        self._move(self._drain, self._state)  # what is there stays to be received
        return super()._snapshot_some(env_ids)

    def _restore(self, snapshot: Any, env_ids: Sequence[int] | None = None) -> None:
        self._move(self._drain, self._state)
        super()._restore(snapshot, env_ids)
        for hand in self._held:
            self._hands.gather(hand)

    def _end_threads(self) -> None:
        if not self.debug:
            self._queue.close()

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        return report(self._meter.figures())


def _block_size(envs: int, batch_size: int, threads: int, order: str) -> int:
    """Envs of a block: as many as divide a batch and all envs, and leave each thread something of a batch."""
    size = math.gcd(envs, batch_size)
    wanted = threads if order == "fifo" else 4 * threads  # the smaller, the fewer envs wait for a slow one
    while size > 1 and batch_size // size < wanted:
        size //= next(factor for factor in range(2, size + 1) if size % factor == 0)
    return size
