"""The asynchronous process pool: blocks of envs that workers step while the caller has others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.processes.calls import ALL_PLAIN, first_of
from shoal.processes.placement import Plan
from shoal.rows.arena import Arena
from shoal.stepping.row_slice import Infos
from shoal.vector._async import AsyncVerbs
from shoal.vector.batch_view import Hand
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.statistics import report
from shoal.vector.vec import READY, Result


class AsyncMultiprocessing(AsyncVerbs, Multiprocessing):
    """What `Multiprocessing` makes if a batch has less than all envs, or with ``mode="async"``."""

    def _take_shape(self, plan: Plan, arena: Arena) -> None:
        self._divide(self._parts, plan.per_batch, self._order)
        self._crew.reset_verb = self._reset_verb
        self._cut: list[int] = []  # bereft blocks that were sent, and are to say so

    def _give_memory_back(self) -> None:
        super()._give_memory_back()
        self._hand, self._held = None, []
        vars(self).pop("_hands", None)

    # -- the verbs -------------------------------------------------------------------------------------

    def _reset_all(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        """Whatever is where, everything begins anew."""
        self._check_owner()
        blocks = list(range(len(self._parts)))
        requests = self._reset_requests(blocks, chosen, seeds, options)
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        self._drop_what_is_under_way("async_reset")
        self._replace_the_lost()
        self._flow.restart()
        self._let_go()
        self._cut = []
        self._ask_resets(blocks, requests)

    def _reset_some(
        self,
        blocks: list[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        self._check_owner()
        requests = self._reset_requests(blocks, chosen, seeds, options)
        self._crew.notice_deaths()
        self._miss_the_lost()
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        self._flow.send(blocks)
        self._let_go()
        # What was to be reset is gone: its rows say so, and wait for another reset.
        gone = self._cut_off(blocks)
        there = [
            (block, request) for block, request in zip(blocks, requests, strict=True) if block not in gone
        ]
        self._ask_resets([block for block, _ in there], [request for _, request in there])

    def _ask_resets(self, blocks: Sequence[int], requests: Sequence[bytes]) -> None:
        for block, request in zip(blocks, requests, strict=True):
            self._verbs[block] = "reset"
            self._pool.ask(block, request)
        self._unheard = True

    def _begin_steps(self, hand: Hand) -> None:
        self._check_owner()
        self._miss_the_lost()
        if self._restarts is not None:
            self._restarts.begin(hand.blocks)
        self._hands.scatter(hand)
        self._flow.send(hand.blocks)
        gone = self._cut_off(hand.blocks)
        for block in hand.blocks:
            self._verbs[block] = "step"
        there = [block for block in hand.blocks if block not in gone]
        if self._sends_objects:
            self._ask_steps(there)
        else:
            self._pool.post_steps(there)
        self._unheard = True
        if hand not in self._held:  # put together only now
            self._hands.release(hand)
        self._let_go()

    def _miss_the_lost(self) -> None:
        """Who has died while nothing of its was under way: replaced, or told."""
        for worker in sorted(self._crew.lost):
            error = self._crew.loss(worker)
            if self._restarts is None:
                raise error
            self._mend(worker, error)

    def _cut_off(self, blocks: Sequence[int]) -> set[int]:
        """Those whose worker was replaced while they were in hand. `recv` will have them say so."""
        if self._restarts is None:
            return set()
        gone = self._restarts.bereft.intersection(blocks)
        for block in [block for block in blocks if block in gone]:
            self._restarts.sever(block)
            self._verbs[block] = "step"
            self._cut.append(block)
        return gone

    def _said_by(self, blocks: Sequence[int]) -> Infos:
        pairs: Infos = []
        if self._pool.heard:
            size = len(self._hands.env_ids[0])
            for position, block in enumerate(blocks):
                for row, info in self._pool.heard.pop(block, ()):
                    pairs.append((position * size + row, info))
        return pairs

    def _arrive(self) -> list[int]:
        """Wait for a batch."""
        self._check_owner()
        flow = self._flow
        while True:
            self._tell_of_cuts()
            if flow.order == "fifo":
                batch = flow.next_batch()
                settled = self._await(partial(self._signals.wait_for, batch), batch)
            else:
                self._pool.miss_overdue()
                missing = max(0, flow.per_batch - len(flow.there))
                settled = self._await(partial(self._signals.wait_for_any, missing), None)
            if settled:
                break
        if flow.order == "ready":
            self._take_arrived()
        else:
            self._signals.take(flow.next_batch())
        if len(flow.sent) == flow.per_batch:
            self._unheard = False
        return flow.receive()

    def _await(self, goal: Callable[[float], int], wanted: Sequence[int] | None) -> bool:
        """Wait for a goal once; False if workers had to be replaced meanwhile."""
        with self._pool.interruption:
            came = None
            if not self._crew.lost and not self._pool.failures:
                came = goal(-1.0 if self._timeout is None else self._timeout)
            if came != ALL_PLAIN:
                self._pool.wait(goal, for_all=False, came=came, whose=wanted)
        if not self._pool.failures:
            return True
        if self._restarts is None:
            self._unheard = False
            raise first_of(self._pool.take_failures())
        worker = min(self._pool.failures)
        self._mend(worker, self._pool.failures.pop(worker))
        return False

    def _mend(self, worker: int, error: Exception) -> None:
        """Replace a worker. What was under way says so; what is there, and has been heard, stays."""
        self._crew.kill(worker)  # so that nothing comes any more
        arrived, unheard = self._signals.arrived(), set(self._signals.speakers())
        there = {*self._flow.there, *arrived} - unheard
        lost = [
            block for block in self._flow.sent if block in self._crew.blocks[worker] and block not in there
        ]
        self._pool.drop(lost)
        self._cut = [block for block in self._cut if block not in lost]
        verbs = {block: self._verbs[block] for block in lost}
        self._pool.heard.update(self._restarts.mend(worker, error, verbs))  # type: ignore[union-attr]
        self._pool.failures.pop(worker, None)
        self._flow.arrive(lost)

    def _tell_of_cuts(self) -> None:
        while self._cut:
            block = self._cut[0]
            try:
                self._pool.heard[block] = self._restarts.cut_off(block)  # type: ignore[union-attr]
            except Exception as error:
                self._mend(self._crew.owners[block], error)
            else:
                self._cut.remove(block)
                self._flow.arrive([block])

    def _take_arrived(self) -> None:
        arrived, unheard = self._signals.arrived(), set(self._signals.speakers())
        heard = [block for block in arrived if block not in unheard]  # others have come just now
        self._flow.arrive(heard)
        self._signals.take(heard)

    # -- access to the envs ----------------------------------------------------------------------------

    def _ask(self, verb: str, question: Callable[[], Result]) -> Result:
        """As ever, once all that is under way is there. It stays to be received."""
        if self._flow.sent and self._state is READY:
            self._move(self._drain, READY)
        return super()._ask(verb, question)

    def _drain(self) -> None:
        self._check_owner()
        self._tell_of_cuts()
        while not self._await(self._signals.wait, None):
            pass
        self._take_arrived()

    def _snapshot(self) -> dict[str, Any]:
        taken = super()._snapshot()
        taken["flow"]["heard"] = dict(self._pool.heard)
        taken["flow"]["bereft"] = set() if self._restarts is None else set(self._restarts.bereft)
        return taken

    def _load(self, snapshot: dict[str, Any]) -> None:
        super()._load(snapshot)
        self._pool.heard = dict(snapshot["flow"]["heard"])
        if self._restarts is not None:
            self._restarts.load(snapshot["flow"]["bereft"])
        self._cut = []

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        return report(self._meter.figures(), self._worker_figures())
