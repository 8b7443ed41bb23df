"""RowSlice: the rows that a stepper steps envs into, and the infos that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.rows.arena import Arena
from shoal.rows.layout import Layout

Infos = list[tuple[int, dict[str, Any]]]
"""Non-empty infos, each with its row, in the order in which the envs returned them."""


@dataclass(frozen=True)
class RowSlice:
    """A contiguous slice of rows, with what is needed to step envs into it.

    Attributes:
        arena: The rows.
        observation: Layout of the observations.
        action: Layout of the actions.
        mode: When an env whose episode is over is reset.
        first_env: Index of the first env in the vec, for messages.
        flat: Whether ``final_obs`` is a flat row instead of a copy of the env's own value.
        progress: An array with one number: the index of the env whose code ran last. If this process dies or
            hangs, the parent process reads it to name the env.
    """

    arena: Arena
    observation: Layout
    action: Layout
    mode: AutoresetMode
    first_env: int = 0
    flat: bool = False
    progress: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def part(self, first: int, last: int, agents: int) -> RowSlice:
        """Return the rows of the envs from `first` up to but not including `last`."""
        rows = self.arena.rows(first * agents, last * agents)
        return replace(self, arena=rows, first_env=self.first_env + first)


DEEPEST = 200
"""Maximum depth of nested dicts in an info. Each level needs stack here and where infos are merged."""


def too_deep() -> NoReturn:
    """Refuse an info whose dicts are nested deeper than DEEPEST."""
    raise RecursionError(
        f"info: expected at most {DEEPEST} dicts inside each other, got more: does it contain itself?"
    )


def keep(info: Any, depth: int = 1) -> Any:
    """Copy an info with its dicts and arrays, because envs may share them or write into them again.

    Raises:
        RecursionError: If the info is nested deeper than DEEPEST. An info that contains itself always is.
    """
    if isinstance(info, dict):
        if depth > DEEPEST:
            too_deep()
        return {key: keep(value, depth + 1) for key, value in info.items()}
    return info.copy() if isinstance(info, np.ndarray) else info
