"""What a vec with ``on_error="restart"`` does when a worker fails: it is replaced, and its rows say so.

The rows of a worker that failed in a step have their last observation, reward 0, the flag of truncation, and
"restarted" in infos. Then
    NEXT_STEP   the next step resets them
    SAME_STEP   they hold the first observation of the next episode; the last one is in "final_obs"
    DISABLED    they wait for the caller's reset
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.caller_warning import warn_caller
from shoal.errors import RestartWarning
from shoal.processes.blocks import Blocks
from shoal.processes.calls import Calls
from shoal.processes.placement import WorkerBlock
from shoal.processes.share import Share
from shoal.processes.workers import Workers
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.stepping.env_faults import summary_of
from shoal.stepping.episodes import clear_step
from shoal.stepping.results import last_observation
from shoal.stepping.row_slice import Infos
from shoal.vector.engine import Reset

MOST_IN_A_ROW = 3  # failures without a good step between them, after which a worker is given up


class Restarts:
    """Replaces workers that fail.

    Args:
        workers: The workers.
        calls: How they are called.
        blocks: The states of the blocks.
        shares: The share of each worker.
        arena: The rows.
        kept: The rows before the step that is under way.
        layout: The layout of the observations.

    Attributes:
        count: The number of restarts so far.
    """

    def __init__(
        self,
        workers: Workers,
        calls: Calls,
        blocks: Blocks,
        shares: Sequence[Share],
        arena: Arena,
        kept: Arena,
        layout: Layout,
    ) -> None:
        self._workers, self._calls, self._blocks, self._shares = workers, calls, blocks, shares
        self._arena, self._kept, self._layout = arena, kept, layout
        self._signals = workers.signals
        self._seeds: list[int | None] = [None] * shares[0].num_envs
        self._restarted = [0] * len(shares)  # of each worker
        self._in_a_row = [0] * len(shares)
        self._ranges = {block.number: block for share in shares for block in share.blocks}
        self._verbs = dict.fromkeys(self._ranges, "reset")  # that each block was last called for
        self._options: dict[int, dict[str, Any] | None] = {}  # of the reset under way, by block
        # To tell a failure in a row from one after a good step: calls of each block, now and at the last
        # failure.
        self._num_calls = dict.fromkeys(self._ranges, 0)
        self._num_calls_then: dict[int, int] = {}
        self.count = 0

    def begin(self, blocks: Sequence[int], reset: Reset | None = None) -> set[int]:
        """Note that these blocks are about to be called: for a step, or for this reset.

        Returns:
            The blocks that must not be called, because their worker was replaced while the caller had their
            rows. `report_cut_off` makes their rows say so.
        """
        for block in blocks:
            self._num_calls[block] += 1
            self._options[block] = None if reset is None else reset.options
            self._verbs[block] = "step" if reset is None else "reset"
        if reset is not None:
            for env in np.flatnonzero(reset.chosen).tolist():
                if reset.seeds[env] is not None:
                    self._seeds[env] = reset.seeds[env]  # that of a new env is derived from it
            if reset.is_whole:
                self._blocks.restart(blocks)
                return set()
        cut = self._blocks.call(blocks)
        for block in cut:  # as they are now: the step that they are sent for reports them
            arena, kept = self._rows(block)
            kept.copy_from(arena)
            kept.copy_objects_from(arena)
            self._options[block], self._verbs[block] = None, "step"
        return cut

    def replace(self, worker: int, error: Exception) -> None:
        """Replace a worker that failed, and make the rows of its blocks that were under way say so.

        Args:
            worker: The worker.
            error: What happened to it.

        Raises:
            Exception: The last error, if the worker fails again and again.
        """
        self._workers.kill(worker)  # it may be slow rather than dead, and still write
        own = self._workers.blocks[worker]
        complete = set(self._blocks.done).union(self._signals.arrived()).difference(self._signals.unread())
        lost = [block for block in own if block not in complete]
        under_way = [block for block in lost if block in self._blocks.called or block in self._blocks.cut_off]
        self._calls.drop(under_way)
        for block in under_way:
            arena, kept = self._rows(block)
            kept.copy_objects_from(arena)  # a worker that fails sends none
            cut = block in self._blocks.cut_off
            if self._verbs[block] == "step" and not cut and not self._signals.kept(block):
                kept.copy_from(arena)  # it had not begun, and the rows are as they were
        infos: dict[int, Infos] | None = None
        while infos is None:
            # A wait for another worker may have noted the same failure: the new worker has nothing to do
            # with it.
            self._calls.failures.pop(worker, None)
            self._count_failure(worker, error)
            try:
                infos = self._start_another(worker, under_way)
            except Exception as again:  # the new worker is no better
                error = again
        self._calls.infos.update(infos)
        self._blocks.settle(under_way)

    def _start_another(self, worker: int, under_way: list[int]) -> dict[int, Infos]:
        self._workers.replace(worker, self._derived_seeds(worker))
        # Blocks that are DONE, too: their next call would find envs that have not begun.
        self._blocks.orphan(block for block in self._workers.blocks[worker] if block not in under_way)
        return {block: self._report(block) for block in under_way}

    def report_cut_off(self) -> None:
        """Make the rows of blocks that are cut off say so, as the step that they were sent for would."""
        while self._blocks.cut_off:
            block = self._blocks.cut_off[0]
            try:
                self._calls.infos[block] = self._report(block)
            except Exception as error:
                self.replace(self._workers.owners[block], error)
            else:
                self._blocks.settle([block])

    def _rows(self, block: int) -> tuple[Arena, Arena]:
        """Return the rows of a block, and the place where they are kept before a step."""
        share, own = self._shares[self._workers.owners[block]], self._ranges[block]
        return share.rows_of(own, self._arena), share.rows_of(own, self._kept)

    def _report(self, block: int) -> Infos:
        """Make the rows of a block say that they were cut off; return their infos."""
        share, own = self._shares[self._workers.owners[block]], self._ranges[block]
        infos: Infos = [(row, {"restarted": True}) for row in range(own.num_envs * share.agents)]
        if self._verbs[block] == "reset":
            return infos + self._reset(own)
        arena, kept = self._rows(block)
        clear_step(kept)
        arena.copy_from(kept)
        arena.copy_objects_from(kept)
        # Agents that act, and agents that wait for them and have acted or were rewarded in the same episode.
        alive = np.repeat(kept.mask.reshape(-1, share.agents).any(1), share.agents)
        cut = kept.mask | (alive & (~kept.starts | (kept.episode_returns != 0)))
        if share.mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(cut).tolist():
                last = last_observation(kept, row, self._layout, flat=share.flat)
                infos.append((row, {"final_obs": last, "final_info": {}}))
            infos += self._reset(own)
            arena.episode_returns[:] = kept.episode_returns
            arena.episode_lengths[:] = kept.episode_lengths
        else:
            arena.mask[:] = False
        arena.rewards[:] = 0.0
        arena.terminations[:] = False
        arena.truncations[:] = cut
        arena.resets[:] = ~cut
        return infos

    def replace_lost(self) -> None:
        """Replace all lost workers, before a reset of all their envs: their rows say nothing of it."""
        for worker in sorted(self._workers.lost):
            self._restarted[worker] += 1
            self._workers.replace(worker, self._derived_seeds(worker))

    def _count_failure(self, worker: int, error: Exception) -> None:
        """Count a failure, and warn of it.

        Raises:
            Exception: `error`, if the worker has failed too often in a row.
        """
        self._workers.refuse_if_ended()
        share, block = self._shares[worker], self._failed_block(worker)
        # Where a call resets before the next one can step, that one lies between two failures in a row.
        between = 1 if share.mode is AutoresetMode.SAME_STEP else 2
        then = self._num_calls_then.get(block)
        in_a_row = then is not None and self._num_calls[block] - then <= between
        self._in_a_row[worker] = self._in_a_row[worker] + 1 if in_a_row else 1
        self._num_calls_then.update((own.number, self._num_calls[own.number]) for own in share.blocks)
        if self._in_a_row[worker] > MOST_IN_A_ROW:
            self._in_a_row[worker] = 0  # the caller decides how to go on
            raise error
        self.count += 1
        self._restarted[worker] += 1
        cause = "" if error.__cause__ is None else f"\n{error.__cause__}"
        text = f"worker {worker} is restarted (number {self.count}): {summary_of(error)}{cause}"
        warn_caller(text, RestartWarning)

    def _failed_block(self, worker: int) -> int:
        """Return the block in which a worker failed, as far as one can tell."""
        env = self._signals.last_env(worker)
        own = self._shares[worker].blocks
        return next((block.number for block in own if block.first_env <= env < block.last_env), own[0].number)

    def _derived_seeds(self, worker: int) -> list[list[int | None]]:
        return [
            [self._derived_seed(env, worker) for env in range(block.first_env, block.last_env)]
            for block in self._shares[worker].blocks
        ]

    def _derived_seed(self, env: int, worker: int) -> int | None:
        seed = self._seeds[env]
        if seed is None:
            return None
        sequence = np.random.SeedSequence([seed, env, self._restarted[worker]])
        return int(sequence.generate_state(1)[0])

    def _reset(self, block: WorkerBlock) -> Infos:
        """Reset all envs of a block, and wait for it; other blocks may be under way."""
        everyone = np.ones(block.num_envs, np.bool_)
        arguments = (everyone, [None] * block.num_envs, self._options.get(block.number))
        (request,) = self._calls.requests("reset", [arguments])
        self._calls.ask(block.number, request)
        goal = partial(self._signals.wait_for, [block.number])
        self._calls.wait(goal, for_all=True, whose=[block.number])
        failure = self._calls.failures.pop(
            self._workers.owners[block.number], None
        )  # others are raised later
        if failure is not None:
            raise failure
        infos: Infos = self._calls.infos[block.number]
        self._calls.drop([block.number])
        return infos
