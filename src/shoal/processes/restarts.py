"""What a vec with ``on_error="restart"`` does when a worker fails: a new one, and rows that say so.

the rows of a worker that failed in a step: their last observation, reward 0, truncated, "restarted" in infos
NEXT_STEP   the next step resets them
SAME_STEP   they hold the first observation of the next episode; the last one is in "final_obs"
DISABLED    they wait for the caller's reset
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.caller_warning import warn_caller
from shoal.errors import RestartWarning
from shoal.processes.calls import Pool
from shoal.processes.placement import Part
from shoal.processes.share import Share
from shoal.processes.workers import Crew
from shoal.rows.arena import Arena
from shoal.rows.copies import copied_column
from shoal.rows.layout import Layout
from shoal.stepping.env_faults import summary_of
from shoal.stepping.row_slice import Infos, clear_step

STRIKES = 3  # failures without a good step in between, after which a worker is given up


class Restarts:
    """Replaces workers that fail.

    Args:
        crew: The workers.
        pool: By which they are asked.
        shares: What each of them has.
        arena: The rows.
        kept: The rows before the step under way.
        layout: Of the observations.

    Attributes:
        count: Restarts so far.
        bereft: Blocks that were not under way when their worker failed: their next step will say so.
    """

    def __init__(
        self, crew: Crew, pool: Pool, shares: Sequence[Share], arena: Arena, kept: Arena, layout: Layout
    ) -> None:
        self._crew, self._pool, self._shares = crew, pool, shares
        self._arena, self._kept, self._layout = arena, kept, layout
        self._seeds: list[int | None] = [None] * shares[0].num_envs
        self._options: dict[int, dict[str, Any] | None] = {}  # of the reset under way, by block
        self._restarted = [0] * len(shares)  # of each worker
        self._strikes = [0] * len(shares)
        self._parts = {part.number: part for share in shares for part in share.parts}
        # To tell a failure in a row from one after a good step: calls of each block, now and at the last one.
        self._calls = dict.fromkeys(self._parts, 0)
        self._calls_then: dict[int, int] = {}
        self.count = 0
        self.bereft: set[int] = set()
        self._severed: set[int] = set()  # bereft ones that have been sent, and kept

    def begin(
        self,
        blocks: Sequence[int],
        chosen: NDArray[np.bool_] | None = None,
        seeds: Sequence[int | None] = (),
        options: dict[str, Any] | None = None,
    ) -> None:
        """These blocks are about to be called: for a step, or for this reset."""
        for block in blocks:
            self._calls[block] += 1
            self._options[block] = options
        if chosen is not None and chosen.all():  # a new beginning for everybody
            self.bereft.clear()
            self._severed.clear()
        for env in [] if chosen is None else np.flatnonzero(chosen).tolist():
            if seeds[env] is not None:
                self._seeds[env] = seeds[env]  # that of a new env is derived from it

    def mend(self, worker: int, error: Exception, verbs: dict[int, str]) -> dict[int, Infos]:
        """Replace a worker that failed, and make the rows that were under way say so.

        Args:
            worker: Which.
            error: What happened to it.
            verbs: For each of its blocks that were under way: the verb.

        Returns:
            The infos of each of them.

        Raises:
            Exception: What went wrong, if the worker fails again and again.
        """
        share = self._shares[worker]
        self._crew.kill(worker)  # it may be slow rather than dead, and still write
        for block, verb in verbs.items():
            arena, kept = self._rows(share, self._parts[block])
            kept.copy_objects_from(arena)  # a worker that fails sends none
            if verb == "step" and block not in self._severed and not self._pool.signals.kept(block):
                kept.copy_from(arena)  # it had not begun, and the rows are as they were
        while True:
            self._judge(worker, error)
            try:
                return self._replace(share, verbs)
            except Exception as again:  # its successor is no better
                error = again

    def _replace(self, share: Share, verbs: dict[int, str]) -> dict[int, Infos]:
        self._crew.replace(share.worker, self._derived_seeds(share))
        self.bereft.difference_update(verbs)
        self.bereft.update(part.number for part in share.parts if part.number not in verbs)
        infos = {block: self._report(share, self._parts[block], verb) for block, verb in verbs.items()}
        self._severed.difference_update(verbs)
        return infos

    def sever(self, block: int) -> None:
        """A bereft block is sent: `cut_off` is to make its rows, as they are now, say what happened."""
        arena, kept = self._rows(self._shares[self._crew.owners[block]], self._parts[block])
        kept.copy_from(arena)
        kept.copy_objects_from(arena)
        self.bereft.discard(block)
        self._severed.add(block)
        self._options[block] = None

    def cut_off(self, block: int) -> Infos:
        """Make the rows of a severed block say what happened, as the step that they were sent for would.

        Raises:
            Exception: If its worker fails meanwhile. `mend` then does the same.
        """
        infos = self._report(self._shares[self._crew.owners[block]], self._parts[block], "step")
        self._severed.discard(block)
        return infos

    def load(self, bereft: Iterable[int]) -> None:
        """All rows are those of a snapshot from now on."""
        self.bereft = set(bereft)
        self._severed.clear()

    def _rows(self, share: Share, part: Part) -> tuple[Arena, Arena]:
        return share.rows_of(part, self._arena), share.rows_of(part, self._kept)

    def _report(self, share: Share, part: Part, verb: str) -> Infos:
        """Make the rows of a block say that they were cut off."""
        infos: Infos = [(row, {"restarted": True}) for row in range(part.num_envs * share.agents)]
        if verb == "reset":
            return infos + self._reset(part)
        arena, kept = self._rows(share, part)
        clear_step(kept)
        arena.copy_from(kept)
        arena.copy_objects_from(kept)
        # Agents that act, and agents that wait for them and have acted or were rewarded in the same episode.
        alive = np.repeat(kept.mask.reshape(-1, share.agents).any(1), share.agents)
        cut = kept.mask | (alive & (~kept.starts | (kept.episode_returns != 0)))
        if share.mode is AutoresetMode.SAME_STEP:
            infos += [(row, self._final(kept, row, share.flat)) for row in np.flatnonzero(cut).tolist()]
            infos += self._reset(part)
            arena.episode_returns[:] = kept.episode_returns
            arena.episode_lengths[:] = kept.episode_lengths
        else:
            arena.mask[:] = False
        arena.rewards[:] = 0.0
        arena.terminations[:] = False
        arena.truncations[:] = cut
        arena.resets[:] = ~cut
        return infos

    def seeds_for_another(self, worker: int) -> list[list[int | None]]:
        """The seeds for one that takes a lost worker's place without a word, because all envs are reset."""
        self._restarted[worker] += 1
        return self._derived_seeds(self._shares[worker])

    def _judge(self, worker: int, error: Exception) -> None:
        self._crew.refuse_if_ended()
        share, block = self._shares[worker], self._culprit(worker)
        # Where a call resets before the next one can step, that one lies between two failures in a row.
        between = 1 if share.mode is AutoresetMode.SAME_STEP else 2
        in_a_row = block in self._calls_then and self._calls[block] - self._calls_then[block] <= between
        self._strikes[worker] = self._strikes[worker] + 1 if in_a_row else 1
        self._calls_then.update((part.number, self._calls[part.number]) for part in share.parts)
        if self._strikes[worker] > STRIKES:
            self._strikes[worker] = 0  # what comes then is the caller's decision
            raise error
        self.count += 1
        self._restarted[worker] += 1
        cause = "" if error.__cause__ is None else f"\n{error.__cause__}"
        text = f"worker {worker} is restarted (number {self.count}): {summary_of(error)}{cause}"
        warn_caller(text, RestartWarning)

    def _culprit(self, worker: int) -> int:
        """The block in which a worker failed, as far as one can tell."""
        env = self._pool.signals.last_env(worker)
        parts = self._shares[worker].parts
        return next((part.number for part in parts if part.first_env <= env < part.last_env), parts[0].number)

    def _derived_seeds(self, share: Share) -> list[list[int | None]]:
        return [
            [self._derived_seed(env, share.worker) for env in range(part.first_env, part.last_env)]
            for part in share.parts
        ]

    def _derived_seed(self, env: int, worker: int) -> int | None:
        seed = self._seeds[env]
        if seed is None:
            return None
        sequence = np.random.SeedSequence([seed, env, self._restarted[worker]])
        return int(sequence.generate_state(1)[0])

    def _reset(self, part: Part) -> Infos:
        arguments = (np.ones(part.num_envs, np.bool_), [None] * part.num_envs, self._options.get(part.number))
        (request,) = self._pool.requests("reset", [arguments])
        self._pool.ask(part.number, request)
        goal = partial(self._pool.signals.wait_for, [part.number])
        self._pool.wait(goal, for_all=True, whose=[part.number])
        failure = self._pool.failures.pop(self._crew.owners[part.number], None)  # others have their turn
        if failure is not None:
            raise failure
        infos: Infos = self._pool.heard[part.number]
        self._pool.drop([part.number])
        return infos

    def _final(self, rows: Arena, row: int, flat: bool) -> dict[str, Any]:
        layout, one = self._layout, rows.observations[row : row + 1].copy()
        # A later step keeps others in the same place.
        objects = copied_column(rows.observation_objects[row : row + 1])
        obs = layout.flat(one)[0] if flat else layout.root.split(layout.columns(one, objects), 1)[0]
        return {"final_obs": obs, "final_info": {}}
