"""InPlaceStepper: step envs of the class `shoal.Env`, which write their rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.adapters.env import Env
from shoal.errors import ResetNeeded
from shoal.rows.fields import Misfit, describe
from shoal.stepping.env_faults import name_env, observation_error
from shoal.stepping.episodes import Episodes
from shoal.stepping.results import last_observation
from shoal.stepping.row_slice import Infos, RowSlice, keep


class InPlaceStepper:
    """Steps `shoal.Env`s with any number of rows per env; has the same methods as `Stepper`.

    Args:
        envs: The envs, in the order of their rows.
        rows: Their rows.
    """

    def __init__(self, envs: Sequence[Env], rows: RowSlice) -> None:
        self._rows, self._arena, self._first_env = rows, rows.arena, rows.first_env
        self._agents = envs[0].num_agents
        self._episodes = Episodes(rows.arena, rows.mode, self._agents)
        self._begun = np.zeros(len(envs), np.bool_)
        self._bind(envs)

    def _bind(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        for index, env in enumerate(envs):
            rows = self._arena.rows(index * self._agents, (index + 1) * self._agents)
            env.bind(rows, (self._rows.observation, self._rows.action))
        self._bound = [env.bound() for env in envs]

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the rows of other envs keep their observations."""
        self._episodes.reset(np.repeat(chosen, self._agents))
        infos: Infos = []
        for index in np.flatnonzero(chosen).tolist():
            infos += self._reset_one(index, seeds[index], options)
        self._begun |= chosen
        return infos

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Infos:
        arena, rows = self._arena, slice(index * self._agents, (index + 1) * self._agents)
        self._episodes.restart(rows)
        # Under SAME_STEP the last transition is still to be reported, even if the env's reset() clears it.
        reported = (arena.rewards, arena.terminations, arena.truncations)
        kept = [column[rows].copy() for column in reported]
        own = dict(options) if isinstance(options, dict) else options
        infos = self._call(index, "reset", seed=seed, options=own)
        for column, values in zip(reported, kept, strict=True):
            column[rows] = values
        if not arena.mask[rows].any():
            self._refuse(index, "reset", "mask", "expected an agent that acts after reset(), got none")
        return infos

    def step(self) -> Infos:
        """Step every env in which an agent acts; reset the other envs (NEXT_STEP)."""
        if not self._begun.all():
            raise ResetNeeded("a shoal.Env has no rows before its first reset: call reset() first")
        acting = self._episodes.begin_step()
        said: list[Infos] = []
        for index, acts in enumerate(self._episodes.any_row(acting).tolist()):
            if acts:
                said.append(self._call(index, "step", self._envs[index].actions))
            else:
                said.append(self._reset_one(index, None, None))
        over = self._episodes.end_step(acting)
        if self._rows.mode is AutoresetMode.SAME_STEP:
            self._reset_same_step(over, said)
        return [pair for pairs in said for pair in pairs]

    def _reset_same_step(self, over: NDArray[np.bool_], said: list[Infos]) -> None:
        """Put last observations and infos of ended rows into `said`, then reset the envs that are `over`."""
        done = self._arena.terminations | self._arena.truncations
        for index in np.flatnonzero(self._episodes.any_row(done) | over).tolist():
            own, finals = dict(said[index]), []
            for row in range(index * self._agents, (index + 1) * self._agents):
                if done[row]:
                    obs = last_observation(self._arena, row, self._rows.observation, flat=self._rows.flat)
                    finals.append((row, {"final_obs": obs, "final_info": keep(own.get(row, {}))}))
                elif over[index] and row in own:
                    finals.append((row, {"final_info": keep(own[row])}))
            said[index] = finals if over[index] else finals + said[index]
        for index in np.flatnonzero(over).tolist():
            said[index] += self._reset_one(index, None, None)

    def _call(self, index: int, verb: str, *args: Any, **kwargs: Any) -> Infos:
        env = self._envs[index]
        self._rows.progress[0] = self._first_env + index
        try:
            said = getattr(env, verb)(*args, **kwargs)
        except Misfit as misfit:
            # Raised from the misfit, whose traceback shows the line of the env that wrote the value.
            raise observation_error(misfit, self._first_env + index, verb) from misfit
        except BaseException as error:
            name_env(error, self._first_env + index, verb)
            raise
        for name, array in self._bound[index]:
            if getattr(env, name) is not array:
                problem = (
                    f"another object was put in its place: write self.{name}[...] = x, not self.{name} = x"
                )
                self._refuse(index, verb, f"self.{name}", problem)
        if said is None:
            return []
        infos = [said] if isinstance(said, dict) else said
        if not isinstance(infos, list) or len(infos) > self._agents:
            expected = f"expected nothing, an info or a list of up to {self._agents}"
            self._refuse(index, verb, f"{verb}()", f"{expected}, got {describe(said)}", is_type=True)
        first = index * self._agents
        return [(first + agent, keep(info)) for agent, info in enumerate(infos) if info]

    def _refuse(self, index: int, verb: str, root: str, problem: str, *, is_type: bool = False) -> None:
        misfit = Misfit((), problem, root=root, is_type=is_type)
        raise observation_error(misfit, self._first_env + index, verb)

    def state(self) -> dict[str, Any]:
        """Return what a snapshot needs besides the envs and the arena."""
        arrays = {"begun": self._begun, "finished": self._episodes.ended}
        return {name: array.copy() for name, array in arrays.items()}

    def load(self, state: dict[str, Any], envs: Sequence[Env]) -> None:
        """Continue from a `state`, with the envs of the same snapshot."""
        self._begun[:] = state["begun"]
        self._episodes.ended[:] = state["finished"]
        self._bind(envs)
