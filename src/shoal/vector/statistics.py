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

    If it is asynchronous, steps overlap: ``vector_steps`` counts batches, and there is no ``seconds_step``,
    ``seconds_signal`` and ``seconds_view``.
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
        """The caller comes in: by `send` or `recv`."""
        self._entered = time.perf_counter()
        if self._left:
            self._outside += self._entered - self._left
            self._left = self._entered  # should the verb fail, it is outside from then on

    def leave(self, transitions: int | None = None, episodes: int = 0) -> None:
        """And leaves, from `recv` with so many of both."""
        self._left = time.perf_counter()
        self._inside += self._left - self._entered
        if transitions is not None:
            self._batches += 1
            self._transitions += transitions
            self._episodes += episodes

    def figures(self) -> tuple[int, int, int, float, float]:
        """As `report` takes them."""
        return self._batches, self._transitions, self._episodes, self._inside, self._outside


class EpisodeClock:
    """Adds ``infos["episode"]`` (return ``r``, length ``l``, seconds ``t``) where an episode ends.

    The form is that of Gymnasium's RecordEpisodeStatistics; return and length come from the arena.
    """

    def __init__(self, num_rows: int, agents: int) -> None:
        self._agents = agents
        self._begun = np.full(num_rows, time.perf_counter())

    def restart(self, rows: NDArray[np.bool_]) -> None:
        """These rows have been reset by the caller."""
        self._begun[rows] = time.perf_counter()

    def add_to(
        self,
        infos: dict[str, Any],
        arena: Arena,
        mode: AutoresetMode,
        episodes: int,
        where: slice | NDArray[np.int64],
    ) -> None:
        """Report the episodes that ended in this step, if any.

        Args:
            infos: To add to.
            arena: The rows that were stepped.
            mode: The autoreset mode.
            episodes: How many ended.
            where: The rows within the vec.

        Raises:
            ArgumentError: If the envs report an ``episode`` themselves.
        """
        now = time.perf_counter()
        begun = self._begun[where]
        # An env whose agents all carry no transition has been reset; one that waits for others has not.
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
        """Seconds that each episode has lasted."""
        return time.perf_counter() - self._begun

    def load(self, seconds: NDArray[np.float64]) -> None:
        """Go on from a `state`."""
        self._begun = time.perf_counter() - seconds
