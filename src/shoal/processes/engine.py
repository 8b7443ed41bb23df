"""ProcessEngine: steps envs in worker processes, whose rows are in memory that all of them share.

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
from shoal.errors import WorkerError
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
from shoal.vector.engine import Engine, Reset


class ProcessEngine(Engine):
    """Steps envs in worker processes.

    Args:
        workers: The workers, which know their shares.
        calls: How they are called.
        shares: The share of each worker.
        arena: The rows of all envs.
        own: The block that this process steps itself, in front of all others; None if there is none.
        restarts: What replaces lost workers; None if an error is raised instead.
        states: The states of the blocks.
        waits_for_all: Whether the vec is synchronous.
        sends_objects: Whether actions hold values without bytes, so that each step needs a message.
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
        self._workers, self._calls, self._signals = workers, calls, workers.signals
        self._shares, self._arena, self._agents = shares, arena, shares[0].agents
        self._own, self._restarts, self._states = own, restarts, states
        self._waits_for_all, self._sends_objects = waits_for_all, sends_objects
        in_order = sorted((block for share in shares for block in share.blocks), key=lambda b: b.number)
        self.blocks = in_order
        self._all = list(range(len(in_order)))
        self._own_envs = in_order[0].first_env
        self._own_infos: Infos = []
        self._under_way = 0  # blocks that were begun, and that the caller has not asked for
        self._owner = os.getpid()
        self._last_figures: dict[str, float] | None = None

    # -- moving ----------------------------------------------------------------------------------------

    def step_all(self) -> None:
        """Begin a step of all blocks, and step this process's own."""
        self.begin_steps(self._all)
        if self._own is not None:
            begun, self._under_way = self._under_way, 0
            self._own_infos = self._own.step()
            self._under_way = begun

    def begin_steps(self, blocks: Sequence[int]) -> None:
        """Call the workers of these blocks for a step."""
        self.check_owner()
        if self._workers.lost:
            self._miss_lost()
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
        """Call for a step by message, with the values of actions that have no bytes."""
        rows = [self._shares[0].rows_of(self.blocks[block], self._arena) for block in blocks]
        requests = self._calls.requests("act", [(action_pickles(own),) for own in rows])
        for block, request in zip(blocks, requests, strict=True):
            self._calls.ask(block, request)

    def begin_reset(self, blocks: Sequence[int], reset: Reset) -> None:
        """Ask the workers of these blocks for a reset. One of all envs starts lost workers anew."""
        self.check_owner()
        requests = self._reset_requests(blocks, reset)
        cut: set[int] = set()
        if reset.is_whole or self._waits_for_all:
            self._drop(self._workers.reset_verb)
            if self._workers.lost and not reset.is_whole:
                self._choose_lost(reset)
                requests = self._reset_requests(blocks, reset)
            if self._restarts is not None:
                cut = self._restarts.begin(blocks, reset)
            self._replace_lost()
        else:
            self._workers.notice_ends()
            if self._workers.lost:
                self._miss_lost()
            if self._restarts is not None:
                # The envs that were to be reset are gone. Their rows say so, and wait for another reset.
                cut = self._restarts.begin(blocks, reset)
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

    def _choose_lost(self, reset: Reset) -> None:
        """Let a reset of some envs include all envs of lost workers: new workers begin with all of them.

        Raises:
            WorkerError: If lost workers are not to be replaced.
        """
        if self._restarts is None:
            raise self._workers.loss(min(self._workers.lost))
        for worker in self._workers.lost:
            for block in self._shares[worker].blocks:
                reset.chosen[block.envs] = True

    def _drop(self, verb: str) -> None:
        """Drop whatever is under way. Warn of errors that the caller has not seen."""
        unseen, self._under_way = self._under_way > 0, 0
        self._workers.notice_ends()
        dropped = self._calls.finish()
        self._calls.drop(self._all)
        self._states.restart(())
        self._workers.refuse_if_ended()
        if unseen:
            for error in dropped:
                warn_caller(f"dropped by {verb}(): {summary_of(error)}")

    def _replace_lost(self) -> None:
        """Replace all lost workers, before all their envs are reset."""
        if self._restarts is not None:
            self._restarts.replace_lost()
        else:
            for worker in sorted(self._workers.lost):
                self._workers.replace(worker)

    def _miss_lost(self) -> None:
        """Replace workers that were lost while no call of theirs was under way, or raise."""
        if self._restarts is None:
            self._calls.refuse_if_lost()
            return
        for worker in sorted(self._workers.lost):
            self._restarts.replace(worker, self._workers.loss(worker))

    # -- waiting ---------------------------------------------------------------------------------------

    def wait_for(self, blocks: Sequence[int]) -> None:
        """Wait until the workers of these blocks have answered."""
        self.check_owner()
        self._under_way -= len(blocks)
        everything = len(blocks) == len(self._all)
        goal = self._signals.wait_and_take if everything else partial(self._signals.wait_for, list(blocks))
        while (plain := self._wait(goal, None if everything else blocks)) is None:
            pass
        if not (everything and plain):
            self._signals.take(blocks)
        self._states.receive(blocks)

    def wait_for_any(self, count: int) -> list[int]:
        """Wait until the workers of `count` blocks have answered, and return those that were first."""
        self.check_owner()
        self._under_way -= count
        while True:
            self._calls.give_up_overdue()
            missing = max(0, count - len(self._states.done))
            if self._wait(partial(self._signals.wait_for_any, missing), None) is not None:
                self._take_answered()
                if len(self._states.done) >= count:
                    break
        first = self._states.done[:count]
        self._states.receive(first)
        return first

    def _wait(self, goal: Callable[[float], int], wanted: Sequence[int] | None) -> bool | None:
        """Wait once; return whether the answers were plain rows, or None if a worker had to be replaced.

        Args:
            goal: The wait of the signals.
            wanted: The blocks that are late if the goal is not reached in time; None for all that are called.
        """
        if self._restarts is not None:
            self._restarts.report_cut_off()
        came: int | None = None
        with self._calls.interruption:
            if not self._workers.lost and not self._calls.failures:
                came = goal(-1.0 if self._calls.timeout is None else self._calls.timeout)
            if came != ALL_PLAIN:
                self._calls.wait(goal, for_all=False, came=came, whose=wanted)
        if not self._calls.failures:
            return came == ALL_PLAIN
        if self._restarts is None:
            self._under_way = 0
            raise first_of(self._calls.take_failures())
        worker = min(self._calls.failures)
        self._restarts.replace(worker, self._calls.failures.pop(worker))
        return None

    def _take_answered(self) -> None:
        """Take all answers whose messages have been read from the handshake."""
        unread = set(self._signals.unread())
        answered = [block for block in self._signals.arrived() if block not in unread]
        self._signals.take(answered)
        self._states.settle(answered)

    def take_infos(self, blocks: Sequence[int]) -> Infos:
        """Return the infos of these blocks, those of this process's own envs first."""
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
        """Ask all blocks, and return one result for each; that of this process's own block comes first.

        Args:
            verb: The method of the block.
            arguments: Returns the arguments for the block with these envs.
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

    def freeze(self) -> Any:
        """Pickle all envs, each in its process."""
        return {
            "blocks": self._ask_all("snapshot", lambda envs: ()),
            "done": list(self._states.done),
            "orphaned": set(self._states.orphaned),
            "infos": dict(self._calls.infos),
        }

    def thaw(self, state: Any) -> None:
        """Continue from pickled envs. Lost workers are replaced before."""
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

    def kind(self) -> dict[str, Any]:
        """Return how the envs are split among processes."""
        sizes = [block.num_envs for block in self.blocks]
        if self._own is not None:
            sizes.insert(0, self._own_envs)
        return {"split of envs among processes": sizes}

    # -- life ------------------------------------------------------------------------------------------

    def check_owner(self) -> None:
        """Raise in a fork of the process that made the workers."""
        if os.getpid() != self._owner:
            raise WorkerError(
                "this vec was made by the process from which this one was forked, and only that one can use "
                "it: make a new one here"
            )

    def interrupt(self) -> None:
        """Make the wait that is under way end."""
        self._workers.interrupt()

    def close(self) -> list[Exception]:
        """Close all envs and end all workers."""
        if "_signals" not in vars(self):  # an earlier close() was interrupted after its last line
            return []
        if self._last_figures is None:
            self._last_figures = self.figures()
        # If a verb was interrupted, it had the connections: no more messages can be sent to the workers.
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
        """Return what the workers did, and how long this process waited for them."""
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
        """Return the number of workers."""
        own = {} if self._own_envs == 0 else {"parent_steps": True}
        return {"num_workers": self._workers.num_workers, **own}
