"""What a vec with ``on_error="restart"`` does when a worker fails: a new one, and rows that say so.

the rows of a worker that failed in a step: their last observation, reward 0, truncated, "restarted" in infos
NEXT_STEP   the next step resets them
SAME_STEP   they hold the first observation of the next episode; the last one is in "final_obs"
DISABLED    they wait for the caller's reset
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core.run import Infos
from shoal.buffers import Arena
from shoal.errors import RestartWarning
from shoal.layout import Layout
from shoal.vector._pool import Pool, first_of
from shoal.vector._remote_errors import summary_of
from shoal.vector._share import Share

STRIKES = 3  # failures without a good step in between, after which a worker is given up


class Restarts:
    """Replaces workers that fail.

    Args:
        pool: The workers.
        shares: What each of them has.
        arena: The rows.
        kept: The rows before the step under way.
        layout: Of the observations.

    Attributes:
        count: Restarts so far.
    """

    def __init__(
        self, pool: Pool, shares: Sequence[Share], arena: Arena, kept: Arena, layout: Layout
    ) -> None:
        self._pool, self._shares, self._arena, self._kept, self._layout = pool, shares, arena, kept, layout
        self._seeds: list[int | None] = [None] * sum(share.num_envs for share in shares)
        self._options: dict[str, Any] | None = None  # of the reset under way
        self._restarted = [0] * len(shares)  # of each worker
        self._strikes = [0] * len(shares)
        self._moment = 0  # counts calls, to tell a failure in a row from one after a good step
        self._failed_at = [-STRIKES] * len(shares)
        self.count = 0

    def begin(
        self,
        chosen: NDArray[np.bool_] | None = None,
        seeds: Sequence[int | None] = (),
        options: dict[str, Any] | None = None,
    ) -> None:
        """The workers are about to be called: for a step, or for this reset."""
        self._moment += 1
        self._options = options
        if chosen is not None and chosen.all():  # a new beginning for everybody
            self._strikes = [0] * len(self._shares)
            self._failed_at = [-STRIKES] * len(self._shares)
        for env in [] if chosen is None else np.flatnonzero(chosen).tolist():
            if seeds[env] is not None:
                self._seeds[env] = seeds[env]  # that of a new env is derived from it

    def mend(self, worker: int, error: BaseException, verb: str) -> Infos:
        """Replace a worker that failed, and make its rows say so.

        Returns:
            The infos of its rows.

        Raises:
            BaseException: What went wrong, if the worker fails again and again.
        """
        while True:
            self._judge(worker, error)
            try:
                return self._mend(self._shares[worker], verb)
            except Exception as again:  # its successor is no better
                error = again

    def _mend(self, share: Share, verb: str) -> Infos:
        worker, rows = share.worker, slice(share.first_row, share.last_row)
        due = self._derived_seeds(share)
        infos: Infos = [(row, {"restarted": True}) for row in range(rows.stop - rows.start)]
        if verb == "reset":
            self._pool.replace(worker, due)
            return infos + self._reset(share)
        self._pool.kill(worker)  # it may be slow rather than dead, and still write
        arena, kept = (each.rows(rows.start, rows.stop) for each in (self._arena, self._kept))
        if self._pool.signals.kept(worker):
            arena.copy_from(kept)
        else:  # it had not begun, and the rows are as they were; for another try, should this one fail
            kept.copy_from(arena)
        # Who was in an episode: who acted, and who waited for others; not who had just ended or been reset.
        cut = kept.mask | ~(kept.resets | kept.terminations | kept.truncations)
        if share.mode is AutoresetMode.SAME_STEP:
            finals = [(row, self._final(kept, row, share.flat)) for row in np.flatnonzero(cut).tolist()]
            self._pool.replace(worker, due)
            infos += finals + self._reset(share)
            arena.episode_returns[:] = kept.episode_returns
            arena.episode_lengths[:] = kept.episode_lengths
        else:
            self._pool.replace(worker, due)
            arena.mask[:] = False
        arena.rewards[:] = 0.0
        arena.terminations[:] = False
        arena.truncations[:] = cut
        arena.resets[:] = ~cut
        return infos

    def _judge(self, worker: int, error: BaseException) -> None:
        # Where a call resets before the next one can step, that one lies between two failures in a row.
        between = 1 if self._shares[worker].mode is AutoresetMode.SAME_STEP else 2
        in_a_row = self._moment - self._failed_at[worker] <= between
        self._strikes[worker] = self._strikes[worker] + 1 if in_a_row else 1
        self._failed_at[worker] = self._moment
        if self._strikes[worker] > STRIKES:
            raise error
        self.count += 1
        self._restarted[worker] += 1
        cause = "" if error.__cause__ is None else f"\n{error.__cause__}"
        warnings.warn(
            f"worker {worker} is restarted (number {self.count}): {summary_of(error)}{cause}",
            RestartWarning,
            stacklevel=8,  # where the user called step(), recv() or reset()
        )

    def _derived_seeds(self, share: Share) -> list[int | None]:
        seeds: list[int | None] = []
        for env in range(share.first_env, share.first_env + share.num_envs):
            seed = self._seeds[env]
            if seed is not None:
                sequence = np.random.SeedSequence([seed, env, self._restarted[share.worker]])
                seed = int(sequence.generate_state(1)[0])
            seeds.append(seed)
        return seeds

    def _reset(self, share: Share) -> Infos:
        everyone = np.ones(share.num_envs, np.bool_)
        arguments = (everyone, [None] * share.num_envs, self._options)
        (request,) = self._pool.requests("reset", [arguments])
        self._pool.ask(share.worker, request)
        messages, failures = self._pool.wait(for_all=True)
        if failures:
            raise first_of(failures)
        infos: Infos = messages[share.worker]
        return infos

    def _final(self, rows: Arena, row: int, flat: bool) -> dict[str, Any]:
        one = rows.observations[row : row + 1].copy()  # a later step keeps others in the same place
        layout = self._layout
        obs = layout.flat(one)[0] if flat else layout.root.split(layout.columns(one), 1)[0]
        return {"final_obs": obs, "final_info": {}}
