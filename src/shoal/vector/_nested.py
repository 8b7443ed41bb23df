"""Steps vector envs inside a vec: a hierarchy, or an engine that is a vector env by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal._core._faults import name_env, observation_error
from shoal._core.run import Infos, Run
from shoal.fields import Misfit
from shoal.packing import BatchPacker
from shoal.vector._episodes import Episodes
from shoal.vector.infos import split_infos


class NestedStepper:
    """Steps one vector env whose envs are envs of ours. Same face as the core's `Stepper`."""

    def __init__(self, envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]], run: Run) -> None:
        (self._vec,) = envs
        self._run, self._arena, self._first_env = run, run.arena, run.first_env
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
        if not chosen.any():
            return []
        if not chosen.all():
            options = {**(options or {}), "reset_mask": chosen}
        seed: Any = list(seeds)
        if all(s is None for s in seeds):
            seed = None
        elif seeds[0] is not None and seed == list(range(seeds[0], seeds[0] + len(seeds))):
            seed = seeds[0]  # what every vector env accepts
        obs, infos = self._call("reset", seed=seed, options=options)
        self._write(obs, "reset")
        rows = np.repeat(chosen, self._agents)
        self._arena.mask[rows] = True
        self._episodes.begin(rows)
        return self._infos(infos)

    def step(self) -> Infos:
        """Step the vector env once; resetting is its own business."""
        arena = self._arena
        acting = arena.mask.copy()
        # Copied: the vector env, or an env in it, may keep what it was given.
        columns = self._run.action.columns(arena.actions.copy(), arena.action_objects.copy())
        obs, rewards, terminations, truncations, infos = self._call(
            "step", self._run.action.root.values(columns)
        )
        self._write(obs, "step")
        arena.rewards[:] = np.where(acting, rewards, 0.0)
        arena.terminations[:] = terminations
        arena.truncations[:] = truncations
        done = self._episodes.settle(acting)
        arena.mask[:] = True if self._run.mode is AutoresetMode.SAME_STEP else ~done
        inner_mask = getattr(self._vec.unwrapped, "mask", None)
        if inner_mask is not None:
            arena.mask[:] = inner_mask  # it knows of agents that do not act
        return self._infos(infos)

    def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._vec, verb)(*args, **kwargs)
        except Exception as error:
            name_env(error, self._first_env, verb)
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
        return {"starts": self._episodes.starts.copy()}

    def load(self, state: dict[str, Any], envs: Sequence[GymnasiumVectorEnv[Any, Any, Any]]) -> None:
        """Continue from a `state`, with the vector env taken from the same snapshot."""
        self._episodes.starts[:] = state["starts"]
        (self._vec,) = envs
