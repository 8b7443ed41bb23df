"""Counts and times of a vec, and the statistics of its episodes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.buffers import Arena
from shoal.errors import ArgumentError


def report(
    figures: tuple[int, int, int, float, float], workers: dict[str, float] | None = None
) -> dict[str, Any]:
    """What a vec has done and how long it took.

    - ``vector_steps``, ``transitions`` (of all agents; rows that only reset are not counted), ``episodes``
    - ``seconds_in_step``: in `step`, or `send` and `recv`; ``seconds_outside``: the caller's own time between
    - ``steps_per_second``: transitions per second of both together
    - ``bound``: what a run waits for, ``"envs"`` or ``"learner"``: whichever of the two times is longer

    A vec with workers adds

    - ``seconds_step``: that the slowest worker took in each step, envs and packing;
      ``seconds_signal``: beyond that, until this process knew; ``seconds_view``: then, to make the batch
    - ``seconds_waiting``: that this process waited for workers; ``seconds_workers_waiting``: that workers
      waited for a call, on average; ``seconds_workers_stepping``: that they worked, on average
    - ``restarts``: workers that were replaced, with ``on_error="restart"``
    """
    vector_steps, transitions, episodes, inside, outside = figures
    seconds = inside + outside
    result: dict[str, Any] = {
        "vector_steps": vector_steps,
        "transitions": transitions,
        "episodes": episodes,
        "seconds_in_step": inside,
        "seconds_outside": outside,
        "steps_per_second": transitions / seconds if seconds else 0.0,
        "bound": "envs" if inside >= outside else "learner",
    }
    if workers is not None:
        view = inside - workers["seconds_step"] - workers["seconds_signal"]
        result.update(workers, seconds_view=max(0.0, view))
    return result


class EpisodeClock:
    """Adds ``infos["episode"]`` (return ``r``, length ``l``, seconds ``t``) where an episode ends.

    The form is that of Gymnasium's RecordEpisodeStatistics; return and length come from the arena.
    """

    def __init__(self, num_rows: int) -> None:
        self._begun = np.full(num_rows, time.perf_counter())
        self._resetting = False  # whether the last step ended episodes

    def restart(self, rows: NDArray[np.bool_]) -> None:
        """These rows have been reset by the caller."""
        self._begun[rows] = time.perf_counter()

    def add_to(self, infos: dict[str, Any], arena: Arena, mode: AutoresetMode, episodes: int) -> None:
        """Report the episodes that ended in this step, if any.

        Raises:
            ArgumentError: If the envs report an ``episode`` themselves.
        """
        now = time.perf_counter()
        if self._resetting:  # under NEXT_STEP, by the step after an end
            self._begun[arena.resets] = now
        self._resetting = episodes > 0
        if not episodes:
            return
        if "episode" in infos:
            raise ArgumentError(
                'episode_stats: the envs already give infos["episode"] themselves. Use either '
                "episode_stats=True or RecordEpisodeStatistics, not both."
            )
        done = arena.terminations | arena.truncations
        infos["episode"] = {
            "r": np.where(done, arena.episode_returns, 0.0),
            "l": np.where(done, arena.episode_lengths, 0),
            "t": np.where(done, np.round(now - self._begun, 6), 0.0),
        }
        infos["_episode"] = done
        if mode is AutoresetMode.SAME_STEP:
            self._begun[done] = now

    def state(self) -> NDArray[np.float64]:
        """Seconds that each episode has lasted."""
        return time.perf_counter() - self._begun

    def load(self, seconds: NDArray[np.float64]) -> None:
        """Go on from a `state`."""
        self._begun = time.perf_counter() - seconds
        self._resetting = True  # for all that is known
