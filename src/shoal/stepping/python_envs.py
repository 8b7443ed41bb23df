"""Stepper: reset Python envs with one row each; the core's `StepLoop` steps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal._core import Packer, StepLoop
from shoal.rows.fields import Misfit
from shoal.stepping.env_faults import name_env, observation_error
from shoal.stepping.episodes import Episodes
from shoal.stepping.results import checked
from shoal.stepping.row_slice import Infos, RowSlice, keep


class SteppedEnv(Protocol):
    """The methods of an env that the stepper calls (see `shoal.adapters.single.SingleEnv`)."""

    step: Callable[[Any], Any]

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with the seed and options of the caller."""

    def restart(self) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""


class Stepper:
    """Steps Python envs straight into the arena.

    Args:
        envs: The envs, in the order of their rows.
        rows: Their rows.

    Attributes:
        step: Step every env once with the actions in the arena, reset envs as the mode says; return `Infos`.
    """

    step: Callable[[], Infos]

    def __init__(self, envs: Sequence[SteppedEnv], rows: RowSlice) -> None:
        arena = rows.arena
        self._rows, self._arena, self._episodes = rows, arena, Episodes(arena, rows.mode)
        self._packer = Packer(
            rows.observation,
            arena.observations,
            arena.observation_objects,
            on_undeclared=rows.observation.warn_undeclared,
        )
        self._adopt(envs)

    def _adopt(self, envs: Sequence[SteppedEnv]) -> None:
        self._envs = envs
        self.step = StepLoop(envs, self._rows, self._packer, self._arena.starts).step

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the rows of other envs keep their observations."""
        self._episodes.reset(chosen)
        infos: Infos = []
        row = 0
        try:
            for row, env in enumerate(self._envs):
                if chosen[row]:
                    self._rows.progress[0] = self._rows.first_env + row
                    obs, info = env.reset(seeds[row], options)
                    self._packer.write(row, obs)
                    if info:
                        infos.append((row, keep(checked(info))))
        except Misfit as misfit:
            raise observation_error(misfit, self._rows.first_env + row, "reset") from None
        except BaseException as error:
            name_env(error, self._rows.first_env + row, "reset")
            raise
        return infos

    def state(self) -> dict[str, Any]:
        """Return what a snapshot needs besides the envs and the arena."""
        return {}

    def load(self, state: dict[str, Any], envs: Sequence[SteppedEnv]) -> None:
        """Continue from a `state`, with the envs of the same snapshot."""
        self._adopt(envs)
