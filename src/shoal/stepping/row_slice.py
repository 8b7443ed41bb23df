"""What all steppers share: the rows they step into, the infos they give back, the rules of both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.rows.arena import Arena
from shoal.rows.layout import Layout

Infos = list[tuple[int, dict[str, Any]]]
"""Non-empty infos, each with the row it belongs to, in the order in which they arose."""


@dataclass(frozen=True)
class Run:
    """A contiguous run of rows.

    Attributes:
        arena: The rows.
        observation: Layout of the observations.
        action: Layout of the actions.
        mode: When a finished env is reset.
        first_env: Index of the first env in the vec, for messages.
        flat: Whether ``final_obs`` is to be a flat row instead of the env's own value.
        progress: One number: the env that was last entered, for whoever finds this process dead or stuck.
    """

    arena: Arena
    observation: Layout
    action: Layout
    mode: AutoresetMode
    first_env: int = 0
    flat: bool = False
    progress: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def part(self, first: int, last: int, agents: int) -> Run:
        """The run of the envs from `first` up to but not including `last`."""
        rows = self.arena.rows(first * agents, last * agents)
        return replace(self, arena=rows, first_env=self.first_env + first)


DEEPEST = 200
"""Dicts inside each other in an info. Each level takes some stack, here and where infos are merged."""


def too_deep() -> NoReturn:
    """Refuse an info whose dicts are nested deeper than DEEPEST."""
    raise RecursionError(
        f"info: expected at most {DEEPEST} dicts inside each other, got more: does it contain itself?"
    )


def keep(info: Any, depth: int = 1) -> Any:
    """A copy of an info and its arrays, which an env may share with others or write into again.

    Raises:
        RecursionError: If it is nested deeper than DEEPEST; one that contains itself always is.
    """
    if isinstance(info, dict):
        if depth > DEEPEST:
            too_deep()
        return {key: keep(value, depth + 1) for key, value in info.items()}
    return info.copy() if isinstance(info, np.ndarray) else info


def begin_episodes(arena: Arena, rows: NDArray[np.bool_]) -> None:
    """Bring the columns up to date after a reset of some rows."""
    # No row carries a transition now, so that none is counted twice.
    clear_step(arena)
    arena.episode_returns[rows] = 0.0
    arena.episode_lengths[rows] = 0
    arena.resets[:] = True


def clear_step(arena: Arena) -> None:
    """Clear what the last step wrote beside observations, and the totals of the episodes that it ended."""
    ended = arena.terminations | arena.truncations
    if ended.any():
        arena.episode_returns[ended] = 0.0
        arena.episode_lengths[ended] = 0
        arena.terminations[:] = False
        arena.truncations[:] = False
    arena.rewards[:] = 0.0
