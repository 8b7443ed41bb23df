"""Steps `shoal.Env`s, which write their rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._faults import name_env, observation_error
from shoal._core._reference import keep
from shoal._core.run import Infos, Run
from shoal.env import Env
from shoal.fields import Misfit, describe
from shoal.vector._episodes import Episodes


class InPlaceStepper:
    """Steps a run of `shoal.Env`s. Same face as the core's `Stepper`; any number of rows per env."""

    def __init__(self, envs: Sequence[Env], run: Run) -> None:
        self._run, self._arena, self._first_env = run, run.arena, run.first_env
        self._agents = envs[0].num_agents
        self._episodes = Episodes(run.arena)
        self._bind(envs)

    def _bind(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        self._rows = [self._arena.rows(i * self._agents, (i + 1) * self._agents) for i in range(len(envs))]
        for env, rows in zip(envs, self._rows, strict=True):
            env.bind(rows)
        self._observations = [env.observations for env in envs]

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
        return self._call(index, "reset", seed=seed, options=options and dict(options))

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
            # An agent that has finished, or has not acted yet, has no transition; one that waits for its
            # turn has: what happens to it meanwhile belongs to its last action.
            absent = ~acts & self._episodes.starts[first : first + self._agents]
            for column in (rows.rewards, rows.terminations, rows.truncations):
                column[absent] = 0
            done = rows.terminations | rows.truncations
            rows.mask[done] = False
            if self._run.mode is AutoresetMode.SAME_STEP and not rows.mask.any():
                infos += self._finals(index, done, dict(said))
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
        env, first = self._envs[index], index * self._agents
        if env.observations is not self._observations[index] or env.rewards is not self._rows[index].rewards:
            problem = (
                "expected to be written in place, got another array in its stead: write "
                "self.observations[...] = x, not self.observations = x"
            )
            wrong = Misfit((), problem, root="self.observations, self.rewards")
            raise observation_error(wrong, self._first_env + index, verb)
        infos = [said] if isinstance(said, dict) else [] if said is None else said
        if not isinstance(infos, list) or len(infos) > self._agents:
            problem = f"expected nothing, an info or a list of up to {self._agents}, got {describe(said)}"
            wrong = Misfit((), problem, root=f"{verb}()", is_type=True)
            raise observation_error(wrong, self._first_env + index, verb)
        return [(first + agent, info) for agent, info in enumerate(infos) if info]

    def _finals(self, index: int, done: NDArray[np.bool_], said: dict[int, dict[str, Any]]) -> Infos:
        """What the agents saw last, before a reset in the same step writes over it."""
        finals: Infos = []
        for agent, ends in enumerate(done.tolist()):
            row = index * self._agents + agent
            if ends:
                info = keep(said.get(row, {}))
                finals.append((row, {"final_obs": self._final(row), "final_info": info}))
            elif row in said:
                finals.append((row, {"final_info": keep(said[row])}))
        return finals

    def _final(self, row: int) -> Any:
        # Copied: the reset that follows writes the same row.
        rows = self._arena.observations[row : row + 1].copy()
        if self._run.flat:
            return self._run.observation.flat(rows)[0]
        return self._run.observation.root.split(self._run.observation.columns(rows), 1)[0]

    def state(self) -> dict[str, Any]:
        """What a snapshot needs besides the envs and the arena."""
        return {"starts": self._episodes.starts.copy()}

    def load(self, state: dict[str, Any], envs: Sequence[Env]) -> None:
        """Continue from a `state`, with envs taken from the same snapshot."""
        self._episodes.starts[:] = state["starts"]
        self._bind(envs)
