"""Restarts: replace failed workers in a vec with ``on_error="restart"``, and report their rows as truncated.

The rows of a worker that failed in a step have their last observation, reward 0, the truncation flag, and
"restarted" in infos. What follows depends on the autoreset mode:
    NEXT_STEP   the next step resets the envs
    SAME_STEP   the rows hold the first observation of the next episode; the last one is in "final_obs"
    DISABLED    the envs wait for the caller's reset
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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

RAISED_BY = "raised by "  # the note that `env_faults.py` adds to an exception of an env begins so
MOST_IN_A_ROW = 3  # failures of a worker without a good step between them; the next one is raised


class Restarts:
    """Replace workers that fail.

    Args:
        workers: The workers.
        calls: The calls to the workers.
        blocks: The states of the blocks.
        shares: The share of each worker.
        arena: The rows of all envs.
        kept: The rows from before the step that is under way.
        layout: The layout of observations.

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
        self._restarted = [0] * len(shares)  # the number of restarts of each worker
        self._in_a_row = [0] * len(shares)
        self._ranges = {block.number: block for share in shares for block in share.blocks}
        self._verbs = dict.fromkeys(self._ranges, "reset")  # the verb of the last call, by block
        self._options: dict[int, dict[str, Any] | None] = {}  # of the reset under way, by block
        # The calls of each block, now and at the last failure. They show whether a good step was between two
        # failures.
        self._num_calls = dict.fromkeys(self._ranges, 0)
        self._num_calls_at_failure: dict[int, int] = {}
        self.count = 0

    def begin(self, blocks: Sequence[int], reset: Reset | None = None) -> set[int]:
        """Record that these blocks are about to be called: for this reset, or for a step if it is None.

        Returns:
            The blocks that must not be called, because their worker was replaced while the caller had their
            rows. `report_cut_off` reports their rows as truncated.
        """
        for block in blocks:
            self._num_calls[block] += 1
            self._options[block] = None if reset is None else reset.options
            self._verbs[block] = "step" if reset is None else "reset"
        if reset is not None:
            for env in np.flatnonzero(reset.chosen).tolist():
                if reset.seeds[env] is not None:
                    self._seeds[env] = reset.seeds[env]  # the seeds of new envs are derived from it
            if reset.is_whole:
                self._blocks.restart(blocks)
                return set()
        cut = self._blocks.call(blocks)
        for block in cut:  # keep the rows as they are now, until `report_cut_off`
            arena, kept = self._rows(block)
            kept.copy_from(arena)
            kept.copy_objects_from(arena)
            self._options[block], self._verbs[block] = None, "step"
        return cut

    def replace(self, worker: int, error: Exception) -> None:
        """Replace a worker that failed, and report the rows of its blocks that were under way as truncated.

        Args:
            worker: The worker.
            error: The error of the worker.

        Raises:
            Exception: The last error, if the worker fails too often in a row.
        """
        self._workers.kill(worker)  # it may still run and write to rows
        own = self._workers.blocks[worker]
        complete = set(self._blocks.done).union(self._signals.arrived()).difference(self._signals.unread())
        lost = [block for block in own if block not in complete]
        under_way = [block for block in lost if block in self._blocks.called or block in self._blocks.cut_off]
        self._calls.drop(under_way)
        for block in under_way:
            arena, kept = self._rows(block)
            kept.copy_objects_from(arena)  # a failed worker sends no objects
            cut = block in self._blocks.cut_off
            if self._verbs[block] == "step" and not cut and not self._signals.kept(block):
                kept.copy_from(arena)  # the step had not begun, so the rows have not changed
        infos: dict[int, Infos] | None = None
        while infos is None:
            # A wait for another worker may have recorded this failure. It does not concern the new worker.
            self._calls.failures.pop(worker, None)
            self._count_failure(worker, error)
            try:
                infos = self._start_another(worker, under_way)
            except Exception as again:  # the new worker has failed too
                error = again
        self._calls.infos.update(infos)
        self._blocks.settle(under_way)

    def _start_another(self, worker: int, under_way: list[int]) -> dict[int, Infos]:
        self._workers.replace(worker, self._derived_seeds(worker))
        # Also blocks that are DONE: when they are called next, their new envs have not been reset.
        self._blocks.orphan(block for block in self._workers.blocks[worker] if block not in under_way)
        return {block: self._report(block) for block in under_way}

    def report_cut_off(self) -> None:
        """Report the rows of all blocks that are CUT_OFF as truncated, in place of a step."""
        while self._blocks.cut_off:
            block = self._blocks.cut_off[0]
            try:
                self._calls.infos[block] = self._report(block)
            except Exception as error:
                self.replace(self._workers.owners[block], error)
            else:
                self._blocks.settle([block])

    def _rows(self, block: int) -> tuple[Arena, Arena]:
        """Return the rows of a block, and its rows from before the last step."""
        share, own = self._shares[self._workers.owners[block]], self._ranges[block]
        return share.rows_of(own, self._arena), share.rows_of(own, self._kept)

    def _report(self, block: int) -> Infos:
        """Report the rows of a block as truncated, or reset its envs if it was called for a reset."""
        share, own = self._shares[self._workers.owners[block]], self._ranges[block]
        infos: Infos = [(row, {"restarted": True}) for row in range(own.num_envs * share.agents)]
        if self._verbs[block] == "reset":
            return infos + self._reset(own)
        arena, kept = self._rows(block)
        clear_step(kept)
        arena.copy_from(kept)
        arena.copy_objects_from(kept)
        # `cut`: the rows to report as truncated. The agent acts now, or has acted or got a reward in this
        # episode.
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
        """Replace all lost workers before a reset of all their envs, without a report in their rows."""
        for worker in sorted(self._workers.lost):
            self._restarted[worker] += 1
            self._workers.replace(worker, self._derived_seeds(worker))

    def _count_failure(self, worker: int, error: Exception) -> None:
        """Count a failure, and warn about it.

        Raises:
            Exception: `error`, if the worker has failed too often in a row.
        """
        self._workers.refuse_if_ended()
        share, block = self._shares[worker], self._failed_block(worker)
        # In other modes than SAME_STEP, a reset takes a call of its own between two failures in a row.
        between = 1 if share.mode is AutoresetMode.SAME_STEP else 2
        then = self._num_calls_at_failure.get(block)
        in_a_row = then is not None and self._num_calls[block] - then <= between
        self._in_a_row[worker] = self._in_a_row[worker] + 1 if in_a_row else 1
        self._num_calls_at_failure.update((own.number, self._num_calls[own.number]) for own in share.blocks)
        if self._in_a_row[worker] > MOST_IN_A_ROW:
            self._in_a_row[worker] = 0  # the caller decides whether to go on
            raise error
        self.count += 1
        self._restarted[worker] += 1
        cause = "" if error.__cause__ is None else f"\n{error.__cause__}"
        text = f"worker {worker} is restarted (number {self.count}): {_described(error)}{cause}"
        warn_caller(text, RestartWarning)

    def _failed_block(self, worker: int) -> int:
        """Return the block of the env in which a worker failed, or its first block if that is not known."""
        env = self._signals.last_env(worker)
        own = self._shares[worker].blocks
        return next((block.number for block in own if block.first_env <= env < block.last_env), own[0].number)

    def state(self) -> dict[str, list[Any]]:
        """Return what the seeds of new envs are derived from, for a snapshot."""
        return {"seeds": list(self._seeds), "restarted": list(self._restarted)}

    def load(self, state: dict[str, list[Any]]) -> None:
        """Continue from a `state`."""
        self._seeds, self._restarted = list(state["seeds"]), list(state["restarted"])

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
        """Reset all envs of a block, and return their infos. Other blocks may be under way."""
        all_envs = np.ones(block.num_envs, np.bool_)
        arguments = (all_envs, [None] * block.num_envs, self._options.get(block.number))
        (request,) = self._calls.requests("reset", [arguments])
        self._calls.ask(block.number, request)
        goal = partial(self._signals.wait_for, [block.number])
        self._calls.wait(goal, for_all=True, wanted=[block.number])
        owner = self._workers.owners[block.number]
        failure = self._calls.failures.pop(owner, None)  # failures of other workers are raised later
        if failure is not None:
            raise failure
        infos: Infos = self._calls.infos[block.number]
        self._calls.drop([block.number])
        return infos


def _described(error: Exception) -> str:
    """Describe an error of a worker. If an env raised it, name the env first: its text may be long."""
    with suppress(Exception):  # an env may have set notes that are no list of texts
        for note in reversed(getattr(error, "__notes__", None) or []):  # the first may be of an inner vec
            if note.startswith(RAISED_BY):
                return f"{note.removeprefix(RAISED_BY)} raised {summary_of(error)}"
    return summary_of(error)
