"""Steps vector envs inside a vec: a hierarchy, or an engine that is a vector env by itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.rows.fields import Misfit
from shoal.rows.packing import BatchPacker
from shoal.stepping.env_faults import observation_error, stand_in, would_end
from shoal.stepping.episodes import Episodes
from shoal.stepping.row_slice import Infos, Run
from shoal.vector.infos import split_infos
from shoal.vector.vec import VectorEnv


class NestedStepper:
    """Steps one vector env whose envs are envs of ours. Same face as the core's `Stepper`."""

    def __init__(self, envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]], run: Run) -> None:
        (self._vec,) = envs
        self._run, self._arena, self._first_env = run, run.arena, run.first_env
        inner = self._vec.unwrapped
        self._inner = inner if isinstance(inner, VectorEnv) else None
        self._agents = len(run.arena) // self._vec.num_envs
        self._packer = BatchPacker(run.observation, run.arena.observations, run.arena.observation_objects)
        self._episodes = Episodes(run.arena)

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the other rows keep their observations."""
        rows = np.repeat(chosen, self._agents)
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
        self._arena.mask[rows] = True
        self._episodes.begin(rows)
        if self._inner is not None and chosen.any():  # else it may be one that has not begun
            self._arena.mask[:] = self._inner.mask
        return self._infos(infos)

    def step(self) -> Infos:
        """Step the vector env once; resetting is its own business."""
        arena = self._arena
        acting = arena.mask.copy()
        # Copied: the vector env, or an env in it, may keep what it was given.
        columns = self._run.action.columns(arena.actions.copy(), arena.action_objects.copy())
        actions = self._run.action.root.values(columns)
        obs, rewards, terminations, truncations, infos = self._call("step", actions)
        self._write(obs, "step")
        self._episodes.clear()
        arena.rewards[:] = rewards
        arena.terminations[:] = terminations
        arena.truncations[:] = truncations
        done = self._episodes.settle(acting)
        arena.mask[:] = True if self._run.mode is AutoresetMode.SAME_STEP else ~done
        if self._inner is not None:
            arena.mask[:] = self._inner.mask  # it knows of agents that do not act
        return self._infos(infos)

    def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        self._run.progress[0] = self._first_env
        try:
            return getattr(self._vec, verb)(*args, **kwargs)
        except BaseException as error:
            last = self._first_env + self._vec.num_envs - 1
            whose = f"the vector env that holds envs {self._first_env} to {last}"
            if would_end(error):
                raise stand_in(error, whose, verb, range(self._first_env, last + 1)) from error
            if isinstance(error, Exception):
                with suppress(Exception):  # an exception may refuse notes
                    error.add_note(f"raised by {verb}() of {whose}")
            raise

    def _write(self, obs: Any, verb: str) -> None:
        try:
            self._packer.write(obs)
        except Misfit as misfit:
            raise observation_error(misfit, self._first_env, verb) from None

    def _infos(self, infos: dict[str, Any]) -> Infos:
        pairs = split_infos(infos, len(self._arena)) if infos else []
        if self._run.flat:
            for _, info in pairs:
                if "final_obs" in info:
                    info["final_obs"] = self._run.observation.pack(info["final_obs"])
        return pairs

    def state(self) -> dict[str, Any]:
        """What a snapshot needs besides the envs and the arena."""
        return {}

    def load(self, state: dict[str, Any], envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]]) -> None:
        """Continue from a `state`, with the vector env taken from the same snapshot."""
        (self._vec,) = envs


def _shortest(seeds: Sequence[int | None]) -> Any:
    """The same seeds in a form that every vector env takes, if there is one."""
    if all(seed is None for seed in seeds):
        return None
    first = seeds[0]
    if first is not None and list(seeds) == list(range(first, first + len(seeds))):
        return first
    return list(seeds)
