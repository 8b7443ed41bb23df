"""Steps `shoal.Env`s, which write their rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._faults import name_env, observation_error
from shoal._core._reference import Infos
from shoal.buffers import Arena
from shoal.env import Env
from shoal.layout import Layout, Misfit
from shoal.vector._episodes import Episodes


class InPlaceStepper:
    """Steps a run of `shoal.Env`s. Same face as the core's `Stepper`; any number of rows per env."""

    def __init__(
        self,
        envs: Sequence[Env],
        arena: Arena,
        observation: Layout,
        action: Layout,
        mode: AutoresetMode,
        first_env: int = 0,
        *,
        flat: bool = False,
    ) -> None:
        self._arena, self._observation, self._mode = arena, observation, mode
        self._first_env, self._flat, self._agents = first_env, flat, envs[0].num_agents
        self._episodes = Episodes(arena)
        self._bind(envs)

    def _bind(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        self._rows = [self._arena.rows(i * self._agents, (i + 1) * self._agents) for i in range(len(envs))]
        for env, rows in zip(envs, self._rows, strict=True):
            env.bind(rows)

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the other rows keep their observations."""
        infos: Infos = []
        for index in np.flatnonzero(chosen).tolist():
            infos += self._reset_one(index, seeds[index], options)
        self._episodes.begin(np.repeat(chosen, self._agents))
        return infos

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Infos:
        self._rows[index].mask[:] = True
        return self._call(index, "reset", seed=seed, options=options)

    def step(self) -> Infos:
        """Step every env that has somebody to act; reset the others."""
        acting = self._arena.mask.copy()
        self._arena.rewards[:] = 0.0
        self._arena.terminations[:] = False
        self._arena.truncations[:] = False
        infos: Infos = []
        for index, rows in enumerate(self._rows):
            first = index * self._agents
            acts = acting[first : first + self._agents]
            if not acts.any():  # finished by the last step, under NEXT_STEP
                infos += self._reset_one(index, None, None)
                continue
            said = self._call(index, "step", self._envs[index].actions)
            # What an env writes for an agent that did not act is no transition.
            for column in (rows.rewards, rows.terminations, rows.truncations):
                column[~acts] = 0
            done = rows.terminations | rows.truncations
            rows.mask[done] = False
            if self._mode is AutoresetMode.SAME_STEP and not rows.mask.any():
                own = dict(said)
                for agent in np.flatnonzero(done):
                    row = first + int(agent)
                    final = {"final_obs": self._final(row), "final_info": own.get(row, {})}
                    infos.append((row, final))
                said = self._reset_one(index, None, None)
            infos += said
        self._episodes.settle(acting)
        return infos

    def _call(self, index: int, verb: str, *args: Any, **kwargs: Any) -> Infos:
        try:
            said = getattr(self._envs[index], verb)(*args, **kwargs)
        except Misfit as misfit:
            raise observation_error(misfit, self._first_env + index, verb) from None
        except Exception as error:
            name_env(error, self._first_env + index, verb)
            raise
        first = index * self._agents
        infos = [said] if isinstance(said, dict) else said or []
        return [(first + agent, info) for agent, info in enumerate(infos) if info]

    def _final(self, row: int) -> Any:
        # Copied: the reset that follows writes the same row.
        rows = self._arena.observations[row : row + 1].copy()
        if self._flat:
            return self._observation.flat(rows)[0]
        return self._observation.root.split(self._observation.columns(rows), 1)[0]

    def state(self) -> dict[str, Any]:
        """What a snapshot needs besides the envs and the arena."""
        return {"starts": self._episodes.starts.copy()}

    def load(self, state: dict[str, Any], envs: Sequence[Env]) -> None:
        """Continue from a `state`, with envs taken from the same snapshot."""
        self._episodes.starts[:] = state["starts"]
        self._bind(envs)
