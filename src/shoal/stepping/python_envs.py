"""Stepper: a run of Python envs, one row each, reset here and stepped by the core's `StepLoop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal._core import Packer, StepLoop
from shoal.rows.fields import Misfit
from shoal.stepping.env_faults import name_env, observation_error
from shoal.stepping.results import checked
from shoal.stepping.row_slice import Infos, Run, begin_episodes, keep


class SteppedEnv(Protocol):
    """What the stepper needs of an env (see `shoal.adapters.single.SingleEnv`)."""

    step: Callable[[Any], Any]

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode as the caller asks."""

    def restart(self) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""


class Stepper:
    """Steps a run of Python envs straight into the arena.

    Args:
        envs: The envs, in the order of their rows.
        run: Their rows.

    Attributes:
        step: Steps every env once, as its mode says, with the actions in the arena; returns `Infos`.
    """

    step: Callable[[], Infos]

    def __init__(self, envs: Sequence[SteppedEnv], run: Run) -> None:
        arena = run.arena
        self._run, self._arena = run, arena
        self._packer = Packer(run.observation, arena.observations, arena.observation_objects)
        self._adopt(envs)

    def _adopt(self, envs: Sequence[SteppedEnv]) -> None:
        self._envs = envs
        self.step = StepLoop(envs, self._run, self._packer, self._arena.starts).step

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the other rows keep their observation."""
        infos: Infos = []
        row = 0
        try:
            for row, env in enumerate(self._envs):
                if chosen[row]:
                    self._run.progress[0] = self._run.first_env + row
                    obs, info = env.reset(seeds[row], options)
                    self._packer.write(row, obs)
                    if info:
                        infos.append((row, keep(checked(info))))
        except Misfit as misfit:
            raise observation_error(misfit, self._run.first_env + row, "reset") from None
        except BaseException as error:
            name_env(error, self._run.first_env + row, "reset")
            raise
        self._arena.mask[chosen] = True
        self._arena.starts[chosen] = True
        begin_episodes(self._arena, chosen)
        return infos

    def state(self) -> dict[str, Any]:
        """What a snapshot needs besides the envs and the arena."""
        return {}

    def load(self, state: dict[str, Any], envs: Sequence[SteppedEnv]) -> None:
        """Continue from a `state`, with envs taken from the same snapshot."""
        self._adopt(envs)
