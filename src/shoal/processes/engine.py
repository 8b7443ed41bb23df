"""ProcessEngine: steps envs in worker processes. Their rows are in shared memory.

    begin_steps --(a counter goes up)--> a worker steps its block --(its counter goes up)--> wait_for

A plain step sends no message. Infos, errors and everything that is not a step travel as messages
(`calls.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shoal.caller_warning import warn_caller
from shoal.errors import WorkerTimeout
from shoal.processes.blocks import Blocks
from shoal.processes.calls import ALL_PLAIN, Calls, first_of
from shoal.processes.objects import action_pickles
from shoal.processes.restarts import Restarts
from shoal.processes.share import Share
from shoal.processes.worker import STEP
from shoal.processes.workers import Workers
from shoal.rows.arena import Arena
from shoal.stepping.block import Block
from shoal.stepping.env_faults import summary_of
from shoal.stepping.row_slice import Infos
from shoal.vector.engine import OwnedEngine, Reset


class ProcessEngine(OwnedEngine):
    """Steps envs in worker processes.

    Args:
        workers: The workers, after `Workers.assign`.
        calls: The calls to the workers.
        shares: The share of each worker.
        arena: The rows of all envs.
        own: The block that this process steps itself. Its rows come first. None if there is none.
        restarts: The replacement of lost workers; None if their errors are raised instead.
        states: The states of the blocks.
        waits_for_all: Whether the vec is synchronous.
        sends_objects: Whether actions have objects, so that each call for a step needs a message.
    """

    def __init__(
        self,
        workers: Workers,
        calls: Calls,
        shares: Sequence[Share],
        arena: Arena,
        own: Block | None,
        restarts: Restarts | None,
        states: Blocks,
        *,
        waits_for_all: bool,
        sends_objects: bool,
    ) -> None:
        super().__init__()
        self._workers, self._calls, self._signals = workers, calls, workers.signals
        self._shares, self._arena, self._agents = shares, arena, shares[0].agents
        self._own, self._restarts, self._states = own, restarts, states
        self._waits_for_all, self._sends_objects = waits_for_all, sends_objects
        in_order = sorted((block for share in shares for block in share.blocks), key=lambda b: b.number)
        self.blocks = in_order
        self._all = list(range(len(in_order)))
        self._own_envs = in_order[0].first_env
        self._own_infos: Infos = []
        self._under_way = 0  # the number of blocks that were called and that the caller has not waited for
        self._last_figures: dict[str, float] | None = None

    # -- moving ----------------------------------------------------------------------------------------

    def step_all(self) -> None:
        """Begin a step of all blocks, and step the block of this process."""
        self.begin_steps(self._all)
        if self._own is not None:
            begun, self._under_way = self._under_way, 0
            self._own_infos = self._own.step()
            self._under_way = begun

    def begin_steps(self, blocks: Sequence[int]) -> None:
        """Call the workers of these blocks for a step."""
        self.check_owner()
        if self._workers.lost:
            self._handle_lost()
        count = len(blocks)
        if self._restarts is not None and (cut := self._restarts.begin(blocks)):
            blocks = [block for block in blocks if block not in cut]
        if self._sends_objects:
            self._ask_steps(blocks)
        elif self._workers.lost:
            self._calls.post_steps(blocks)
        elif len(blocks) == len(self._all):
            self._signals.post_steps()
        else:
            self._signals.post(blocks, STEP)
        self._under_way += count

    def _ask_steps(self, blocks: Sequence[int]) -> None:
        """Call blocks for a step by message, with the objects of their actions."""
        rows = [self._shares[0].rows_of(self.blocks[block], self._arena) for block in blocks]
        requests = self._calls.requests("act", [(action_pickles(own),) for own in rows])
        for block, request in zip(blocks, requests, strict=True):
            self._calls.ask(block, request)

    def begin_reset(self, blocks: Sequence[int], reset: Reset) -> None:
        """Call the workers of these blocks for a reset. A reset of all envs also replaces lost workers."""
        self.check_owner()
        requests = self._reset_requests(blocks, reset)
        cut: set[int] = set()
        if reset.is_whole:
            self._drop(self._workers.reset_verb)
            if self._restarts is not None:
                self._restarts.begin(blocks, reset)
            self._replace_lost()
        else:
            cut = self._begin_partial_reset(blocks, reset)
        for block, request in zip(blocks, requests, strict=True):
            if block not in cut:
                self._calls.ask(block, request)
        if self._own is not None:
            own = slice(0, self._own_envs)
            self._own_infos = self._own.reset(reset.chosen[own], reset.seeds[own], reset.options)
        self._under_way += len(blocks)

    def _reset_requests(self, blocks: Sequence[int], reset: Reset) -> list[bytes]:
        envs = [self.blocks[block].envs for block in blocks]
        arguments = [(reset.chosen[own], list(reset.seeds[own]), reset.options) for own in envs]
        return self._calls.requests("reset", arguments)

    def _begin_partial_reset(self, blocks: Sequence[int], reset: Reset) -> set[int]:
        """Prepare a reset of some envs. A synchronous vec drops the verb that is under way.

        Returns:
            The blocks that must not be called, because their worker was replaced. Their envs are not reset:
            their rows are reported as truncated first.

        Raises:
            WorkerError: If a worker is lost and the vec does not restart workers.
        """
        reported: set[int] = set()
        if self._waits_for_all and self._restarts is None:
            self._drop(self._workers.reset_verb)
        elif self._waits_for_all:
            reported = self._drop_good_answers()
        self._workers.notice_ends()
        if self._workers.lost:
            self._handle_lost()
        if self._restarts is None:
            return set()
        return reported | self._restarts.begin([each for each in blocks if each not in reported], reset)

    def _drop_good_answers(self) -> set[int]:
        """Wait for all calls, replace workers that fail, and drop the answers of the others.

        Returns:
            The blocks of replaced workers. Their rows are complete, and report the restart.
        """
        while self._wait(self._signals.wait, None) is None:
            pass
        self._under_way = 0
        reported = set(self._states.done)  # a synchronous vec settles no other blocks
        dropped = [block for block in self._all if block not in reported]
        self._calls.drop(dropped)
        self._states.receive(dropped)
        return reported

    def _drop(self, verb: str) -> None:
        """Wait for all calls and drop their answers. Warn about errors that the caller has not seen."""
        unseen, self._under_way = self._under_way > 0, 0
        interrupted = self._calls.interruption.happened
        self._workers.notice_ends()
        dropped = self._calls.finish()
        self._calls.drop(self._all)
        self._states.restart(())
        self._workers.refuse_if_ended()
        for error in dropped:
            # After Ctrl-C, a late worker is no news: the caller did not wait for it.
            if unseen and not (interrupted and isinstance(error, WorkerTimeout)):
                warn_caller(f"dropped by {verb}(): {summary_of(error)}")

    def _replace_lost(self) -> None:
        """Replace all lost workers before a reset of all their envs."""
        if self._restarts is not None:
            self._restarts.replace_lost()
        else:
            for worker in sorted(self._workers.lost):
                self._workers.replace(worker)

    def _handle_lost(self) -> None:
        """Replace workers that were lost between calls, or raise if the vec does not restart workers."""
        if self._restarts is None:
            self._calls.refuse_if_lost()
            return
        for worker in sorted(self._workers.lost):
            self._restarts.replace(worker, self._workers.lost_error(worker))

    # -- waiting ---------------------------------------------------------------------------------------

    def wait_for(self, blocks: Sequence[int]) -> None:
        """Wait until the workers of these blocks have answered."""
        self.check_owner()
        everything = len(blocks) == len(self._all)
        goal = self._signals.wait_and_take if everything else partial(self._signals.wait_for, list(blocks))
        while (plain := self._wait(goal, None if everything else blocks)) is None:
            pass
        if not (everything and plain):
            self._signals.take(blocks)
        self._states.receive(blocks)
        self._under_way -= len(blocks)  # last: if Ctrl-C ends the wait, the caller has not seen the answers

    def wait_for_any(self, count: int) -> list[int]:
        """Wait until the workers of `count` blocks have answered, and return the first of these blocks."""
        self.check_owner()

        def goal(seconds: float) -> int:
            # Counted here and not before `_wait`, which completes cut-off blocks without a call.
            return self._signals.wait_for_any(max(0, count - len(self._states.done)), seconds)

        while True:
            self._calls.give_up_overdue()
            if self._wait(goal, None) is not None:
                self._take_answered()
                if len(self._states.done) >= count:
                    break
        first = self._states.done[:count]
        self._states.receive(first)
        self._under_way -= count  # last, as in `wait_for`
        return first

    def _wait(self, goal: Callable[[float], int], wanted: Sequence[int] | None) -> bool | None:
        """Wait once; return whether all answers came without a message, or None if a worker was replaced.

        Args:
            goal: The wait of the handshake.
            wanted: The blocks whose workers are given up after a timeout; None for all called blocks.
        """
        if self._restarts is not None:
            self._restarts.report_cut_off()
        result: int | None = None
        with self._calls.interruption:
            if not self._workers.lost and not self._calls.failures:
                result = goal(-1.0 if self._calls.timeout is None else self._calls.timeout)
            if result != ALL_PLAIN:
                self._calls.wait(goal, for_all=False, result=result, wanted=wanted)
        if not self._calls.failures:
            return result == ALL_PLAIN
        if self._restarts is None:
            self._under_way = 0
            raise first_of(self._calls.take_failures())
        worker = min(self._calls.failures)
        self._restarts.replace(worker, self._calls.failures.pop(worker))
        return None

    def _take_answered(self) -> None:
        """Take the blocks from the handshake that have answered and whose messages have been read."""
        unread = set(self._signals.unread())
        answered = [block for block in self._signals.arrived() if block not in unread]
        self._signals.take(answered)
        self._states.settle(answered)

    def take_infos(self, blocks: Sequence[int]) -> Infos:
        """Return the infos of these blocks; the infos of this process's own envs come first."""
        infos, self._own_infos = self._own_infos, []
        if not self._calls.infos:
            return infos
        infos, first = list(infos), self._own_envs * self._agents if self._waits_for_all else 0
        for block in blocks:
            infos += [(first + row, info) for row, info in self._calls.infos.pop(block, ())]
            first += self.blocks[block].num_envs * self._agents
        return infos

    def finish(self) -> None:
        """Wait until all workers have answered."""
        self.check_owner()
        while self._wait(self._signals.wait, None) is None:
            pass
        self._take_answered()

    # -- access to the envs ----------------------------------------------------------------------------

    def _ask_all(self, verb: str, arguments: Callable[[slice], tuple[Any, ...]]) -> list[Any]:
        """Run a method of all blocks, and return one result per block; the own block comes first.

        Args:
            verb: The method of the block.
            arguments: The function that returns the arguments for a block, given its envs.
        """
        self.check_owner()
        results: list[Any] = []
        if self._own is not None:
            results.append(getattr(self._own, verb)(*arguments(slice(0, self._own_envs))))
        theirs = self._calls.ask_all(
            verb, [[arguments(block.envs) for block in share.blocks] for share in self._shares]
        )
        by_block = {
            block.number: result
            for share, replies in zip(self._shares, theirs, strict=True)
            for block, result in zip(share.blocks, replies, strict=True)
        }
        return results + [by_block[block] for block in self._all]

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every env, or read an attribute."""
        results = self._ask_all("call", lambda envs: (name, args, kwargs))
        return [value for part in results for value in part]

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        self._ask_all("set_attr", lambda envs: (name, list(values[envs])))

    def render(self) -> list[Any]:
        """Return the frame of every env."""
        frames = self._ask_all("render", lambda envs: ())
        return [frame for part in frames for frame in part]

    def snapshot(self) -> Any:
        """Return the state of all envs and blocks, for a snapshot."""
        return {
            "blocks": self._ask_all("snapshot", lambda envs: ()),
            "done": list(self._states.done),
            "orphaned": set(self._states.orphaned),
            "infos": dict(self._calls.infos),
            "restarts": None if self._restarts is None else self._restarts.state(),
        }

    def restore(self, state: Any) -> None:
        """Replace lost workers, and continue from the state of a snapshot."""
        self.check_owner()
        self._drop("restore")
        self._replace_lost()
        starts = [0] * (self._own is not None) + [block.first_env for block in self.blocks]
        by_start = dict(zip(starts, state["blocks"], strict=True))
        self._ask_all("restore", lambda envs: (by_start[envs.start],))
        self._states.settle(state["done"])
        self._states.orphan(state["orphaned"])
        self._under_way = len(state["done"])
        self._calls.infos = dict(state["infos"])
        if self._restarts is not None and state["restarts"] is not None:
            self._restarts.load(state["restarts"])

    def kind(self) -> dict[str, Any]:
        """Return the number of envs of each block, which a snapshot must match."""
        sizes = [block.num_envs for block in self.blocks]
        if self._own is not None:
            sizes.insert(0, self._own_envs)
        return {"split of envs among processes": sizes}

    # -- life ------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """End the wait that is under way."""
        self._workers.interrupt()

    def close(self) -> list[Exception]:
        """Close all envs and end all workers."""
        if "_signals" not in vars(self):  # an earlier close() was interrupted at its end
            return []
        if self._last_figures is None:
            self._last_figures = self.figures()
        # After an interrupted verb the connections cannot be used, so the workers are killed.
        errors = self._calls.close(at_once=self._workers.ended)
        if os.getpid() != self._owner:
            return []
        if self._own is not None:
            errors += self._own.close()
        self._release()
        return errors

    def _release(self) -> None:
        """Drop all references to the shared memory."""
        self._calls.release()
        self._workers.release()
        for name in ("_arena", "_own", "_restarts", "_signals"):
            vars(self).pop(name, None)

    def figures(self) -> dict[str, float]:
        """Return the seconds that workers and parent spent stepping and waiting, and the restarts."""
        if self._last_figures is not None:
            return self._last_figures
        waited, signal, slowest, worked, idle = self._signals.figures()
        count = self._workers.num_workers
        hops = {"seconds_step": slowest, "seconds_signal": signal} if self._waits_for_all else {}
        return hops | {
            "seconds_waiting": waited,
            "seconds_workers_stepping": worked / count,
            "seconds_workers_waiting": idle / count,
            "restarts": 0 if self._restarts is None else self._restarts.count,
        }

    def counts(self) -> dict[str, Any]:
        """Return the number of workers, and whether this process steps envs too."""
        own = {} if self._own_envs == 0 else {"parent_steps": True}
        return {"num_workers": self._workers.num_workers, **own}
