"""Counts and times of a vec, and the statistics of its episodes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.rows.arena import Arena


def report(
    figures: tuple[int, int, int, float, float], workers: dict[str, float] | None = None
) -> dict[str, Any]:
    """Return the counts and times of a vec, by name.

    - ``vector_steps``: the number of steps of all envs
    - ``transitions``: the number of transitions of all agents; rows that were only reset do not count
    - ``episodes``: the number of episodes that ended
    - ``seconds_in_step``: the time in `step`, or in `send` and `recv`
    - ``seconds_outside``: the time that the caller took between these verbs
    - ``steps_per_second``: the transitions per second of both times together
    - ``bound``: ``"envs"`` if more time passes in steps, ``"learner"`` if more time passes outside

    A vec with workers adds:

    - ``seconds_step``: the time of the slowest worker in each step, for its envs and packing
    - ``seconds_signal``: the time from the end of that work until this process noticed it
    - ``seconds_view``: the rest of the time in steps, which makes the batch
    - ``seconds_waiting``: the time that this process waited for workers
    - ``seconds_workers_waiting``: the time that workers waited for a call, on average
    - ``seconds_workers_stepping``: the time that workers worked, on average
    - ``restarts``: the number of workers that were replaced, with ``on_error="restart"``

    The steps of an asynchronous vec overlap. So ``vector_steps`` counts batches, and ``seconds_step``,
    ``seconds_signal`` and ``seconds_view`` are missing.

    Args:
        figures: The first five values: the counts, the seconds in steps and the seconds outside.
        workers: The values of the workers, if the vec has some.
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
        result.update(workers)
        if "seconds_step" in workers:
            view = inside - workers["seconds_step"] - workers["seconds_signal"]
            result["seconds_view"] = max(0.0, view)
    return result


class Meter:
    """Counts and times the verbs of an asynchronous vec, whose steps overlap."""

    def __init__(self) -> None:
        self._batches = self._transitions = self._episodes = 0
        self._inside = self._outside = self._entered = self._left = 0.0

    def enter(self) -> None:
        """Start to time a call of `send` or `recv`."""
        self._entered = time.perf_counter()
        if self._left:
            self._outside += self._entered - self._left
            self._left = self._entered  # if the verb raises, its time counts as outside

    def leave(self, transitions: int | None = None, episodes: int = 0) -> None:
        """End the time of the call.

        Args:
            transitions: The number of transitions in the batch that `recv` returns; None for `send`.
            episodes: The number of episodes that ended in this batch.
        """
        self._left = time.perf_counter()
        self._inside += self._left - self._entered
        if transitions is not None:
            self._batches += 1
            self._transitions += transitions
            self._episodes += episodes

    def figures(self) -> tuple[int, int, int, float, float]:
        """Return the counts and times in the form that `report` takes."""
        return self._batches, self._transitions, self._episodes, self._inside, self._outside


class EpisodeClock:
    """Adds ``infos["episode"]`` (return ``r``, length ``l``, seconds ``t``) for rows whose episode ends.

    The form is that of Gymnasium's RecordEpisodeStatistics. Return and length come from the arena.

    Args:
        num_rows: The number of rows of the vec.
        agents: The number of rows of an env.
    """

    def __init__(self, num_rows: int, agents: int) -> None:
        self._agents = agents
        self._begun = np.full(num_rows, time.perf_counter())

    def restart(self, rows: NDArray[np.bool_]) -> None:
        """Start the time of these rows, because the caller has reset them."""
        self._begun[rows] = time.perf_counter()

    def add_to(
        self,
        infos: dict[str, Any],
        arena: Arena,
        mode: AutoresetMode,
        episodes: int,
        where: slice | NDArray[np.int64],
    ) -> None:
        """Report the episodes that ended in this step, if there are any.

        Args:
            infos: The infos to add the report to.
            arena: The rows that were stepped.
            mode: The autoreset mode of the vec.
            episodes: The number of episodes that ended.
            where: The place of these rows in the vec.

        Raises:
            ArgumentError: If the envs report an ``episode`` themselves.
        """
        now = time.perf_counter()
        begun = self._begun[where]
        # An env was reset if none of its agents has a transition. An agent alone may only wait for others.
        reset = np.repeat(arena.resets.reshape(-1, self._agents).all(1), self._agents)
        begun[reset & arena.starts] = now
        if episodes:
            if "episode" in infos:
                raise ArgumentError(
                    'episode_stats: the envs already give infos["episode"] themselves. Use either '
                    "episode_stats=True or RecordEpisodeStatistics, not both."
                )
            done = arena.terminations | arena.truncations
            infos["episode"] = {
                "r": np.where(done, arena.episode_returns, 0.0),
                "l": np.where(done, arena.episode_lengths, 0),
                "t": np.where(done, np.round(now - begun, 6), 0.0),
            }
            infos["_episode"] = done
            if mode is AutoresetMode.SAME_STEP:
                begun[done] = now
        self._begun[where] = begun

    def state(self) -> NDArray[np.float64]:
        """Return the seconds that each episode has lasted."""
        return time.perf_counter() - self._begun

    def load(self, seconds: NDArray[np.float64], rows: slice | NDArray[np.int64] = slice(None)) -> None:
        """Continue from a `state` of these rows."""
        self._begun[rows] = time.perf_counter() - seconds
