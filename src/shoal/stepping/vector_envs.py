"""NestedStepper: step a vector env inside a vec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.rows.fields import Misfit
from shoal.rows.packing import BatchPacker
from shoal.stepping.env_faults import observation_error, stand_in, would_end
from shoal.stepping.episodes import Episodes
from shoal.stepping.row_slice import Infos, RowSlice
from shoal.vector.infos import split_infos
from shoal.vector.vec import VectorEnv


class NestedStepper:
    """Steps one vector env, whose envs are envs of the vec; has the same methods as `Stepper`.

    Args:
        envs: A list with the vector env.
        rows: The rows of its envs.
    """

    def __init__(self, envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]], rows: RowSlice) -> None:
        (self._vec,) = envs
        self._rows, self._arena, self._first_env = rows, rows.arena, rows.first_env
        inner = self._vec.unwrapped
        self._inner = inner if isinstance(inner, VectorEnv) else None
        self._agents = len(rows.arena) // self._vec.num_envs
        self._packer = BatchPacker(
            rows.observation,
            rows.arena.observations,
            rows.arena.observation_objects,
            on_undeclared=rows.observation.warn_undeclared,
        )
        self._episodes = Episodes(rows.arena, rows.mode)

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the rows of other envs keep their observations."""
        rows = np.repeat(chosen, self._agents)
        self._episodes.reset(rows)
        infos: dict[str, Any] = {}
        if chosen.any():
            own = dict(options) if isinstance(options, dict) else options
            if not chosen.all():
                own = {**(own or {}), "reset_mask": chosen.copy()}
            others = self._arena.observations[~rows]
            obs, infos = self._call("reset", seed=_shortest(seeds), options=own)
            self._write(obs, "reset")
            if not np.array_equal(self._arena.observations[~rows], others):
                raise ArgumentError(
                    f"reset_mask: {type(self._vec).__name__} resets all of its envs whatever the mask says, "
                    "so they can only be reset together"
                )
        if self._inner is not None and chosen.any():  # otherwise it may never have been reset
            self._arena.mask[:] = self._inner.mask
        return self._infos(infos)

    def step(self) -> Infos:
        """Step the vector env once; it resets its own envs."""
        arena = self._arena
        acting = self._episodes.begin_step()
        # Copied, because the vector env, or an env in it, may keep its actions.
        columns = self._rows.action.columns(arena.actions.copy(), arena.action_objects.copy())
        actions = self._rows.action.root.values(columns)
        obs, rewards, terminations, truncations, infos = self._call("step", actions)
        self._write(obs, "step")
        arena.rewards[:] = rewards
        arena.terminations[:] = terminations
        arena.truncations[:] = truncations
        self._episodes.end_step_of_single_rows(acting)
        if self._inner is not None:
            arena.mask[:] = self._inner.mask  # some of its agents may wait
        return self._infos(infos)

    def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        self._rows.progress[0] = self._first_env
        try:
            return getattr(self._vec, verb)(*args, **kwargs)
        except BaseException as error:
            last = self._first_env + self._vec.num_envs - 1
            source = f"the vector env that holds envs {self._first_env} to {last}"
            if would_end(error):
                raise stand_in(error, source, verb, range(self._first_env, last + 1)) from error
            if isinstance(error, Exception):
                with suppress(Exception):  # an exception may refuse notes
                    error.add_note(f"raised by {verb}() of {source}")
            raise

    def _write(self, obs: Any, verb: str) -> None:
        try:
            self._packer.write(obs)
        except Misfit as misfit:
            raise observation_error(misfit, self._first_env, verb) from None

    def _infos(self, infos: dict[str, Any]) -> Infos:
        pairs = split_infos(infos, len(self._arena)) if infos else []
        if self._rows.flat:
            for _, info in pairs:
                if "final_obs" in info:
                    info["final_obs"] = self._rows.observation.pack(info["final_obs"])
        return pairs

    def state(self) -> dict[str, Any]:
        """Return what a snapshot needs besides the envs and the arena."""
        return {}

    def load(self, state: dict[str, Any], envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]]) -> None:
        """Continue from a `state`, with the vector env of the same snapshot."""
        (self._vec,) = envs


def _shortest(seeds: Sequence[int | None]) -> Any:
    """Return the seeds as None or an int, which every vector env accepts, if that gives the same seeds."""
    if all(seed is None for seed in seeds):
        return None
    first = seeds[0]
    if first is not None and list(seeds) == list(range(first, first + len(seeds))):
        return first
    return list(seeds)
