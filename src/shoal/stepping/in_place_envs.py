"""Steps `shoal.Env`s, which write their rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.adapters.env import Env
from shoal.errors import ResetNeeded
from shoal.rows.copies import copied_column
from shoal.rows.fields import Misfit, describe
from shoal.stepping.env_faults import name_env, observation_error
from shoal.stepping.episodes import Episodes
from shoal.stepping.row_slice import Infos, Run, keep


class InPlaceStepper:
    """Steps a run of `shoal.Env`s. Same face as the core's `Stepper`; any number of rows per env."""

    def __init__(self, envs: Sequence[Env], run: Run) -> None:
        self._run, self._arena, self._first_env = run, run.arena, run.first_env
        self._agents = envs[0].num_agents
        self._episodes = Episodes(run.arena)
        self._begun = np.zeros(len(envs), np.bool_)
        self._finished = np.zeros(len(run.arena), np.bool_)  # agents that have ended in this episode
        self._bind(envs)

    def _bind(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        for index, env in enumerate(envs):
            rows = self._arena.rows(index * self._agents, (index + 1) * self._agents)
            env.bind(rows, (self._run.observation, self._run.action))
        self._bound = [env.bound() for env in envs]

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
        self._begun |= chosen
        rows = np.repeat(chosen, self._agents)
        self._finished &= ~rows
        self._episodes.begin(rows)
        return infos

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Infos:
        arena, rows = self._arena, slice(index * self._agents, (index + 1) * self._agents)
        arena.mask[rows] = True
        # The transition that ended the last episode is still to be reported, whatever reset() clears.
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
        """Step every env in which an agent acts; reset the others."""
        if not self._begun.all():
            raise ResetNeeded("a shoal.Env has no rows before its first reset: call reset() first")
        arena, starts = self._arena, self._arena.starts
        acting = arena.mask.copy()
        self._episodes.clear()
        said: list[Infos] = []
        for index, acts in enumerate(self._by_env(acting)):
            if acts:
                said.append(self._call(index, "step", self._envs[index].actions))
            else:  # finished by the last step, under NEXT_STEP
                said.append(self._reset_one(index, None, None))
        # What the env still writes for an agent that has finished is dropped, also if it returns now.
        self._finished &= ~acting
        arena.mask[(arena.terminations | arena.truncations) & ~self._finished] = False
        if self._finished.any():
            arena.rewards[self._finished] = 0.0
            arena.terminations[self._finished] = False
            arena.truncations[self._finished] = False
        over = np.array([not acts for acts in self._by_env(arena.mask)])
        if over.any():
            # The env may have ended without flags for some agents. Those that have acted or were rewarded are
            # truncated; the others had no part in the episode.
            done = arena.terminations | arena.truncations
            rewarded = arena.episode_returns + arena.rewards != 0
            took_part = (acting | ~starts | rewarded) & ~self._finished
            arena.truncations[np.repeat(over, self._agents) & ~done & took_part] = True
        if self._run.mode is AutoresetMode.SAME_STEP:
            self._keep_finals(said)
            for index in np.flatnonzero(over).tolist():
                said[index] += self._reset_one(index, None, None)
        self._finished |= self._episodes.settle(acting)
        self._finished[np.repeat(over, self._agents)] = False
        return [pair for pairs in said for pair in pairs]

    def _by_env(self, rows: NDArray[np.bool_]) -> list[bool]:
        """Whether any row of each env is set."""
        return rows.reshape(len(self._envs), self._agents).any(1).tolist()  # type: ignore[return-value]

    def _keep_finals(self, said: list[Infos]) -> None:
        """Under SAME_STEP: what agents saw last, before a reset writes over it."""
        done = self._arena.terminations | self._arena.truncations
        over = [not acts for acts in self._by_env(self._arena.mask)]
        for index, ends in enumerate(self._by_env(done)):
            if not (ends or over[index]):
                continue
            own, finals = dict(said[index]), []
            for row in range(index * self._agents, (index + 1) * self._agents):
                if done[row]:
                    final = {"final_obs": self._final(row), "final_info": keep(own.get(row, {}))}
                    finals.append((row, final))
                elif over[index] and row in own:
                    finals.append((row, {"final_info": keep(own[row])}))
            said[index] = finals if over[index] else finals + said[index]

    def _final(self, row: int) -> Any:
        # Copied: the reset that follows writes the same row.
        rows, layout = self._arena.observations[row : row + 1].copy(), self._run.observation
        if self._run.flat:
            return layout.flat(rows)[0]
        objects = copied_column(self._arena.observation_objects[row : row + 1])
        return layout.root.split(layout.columns(rows, objects), 1)[0]

    def _call(self, index: int, verb: str, *args: Any, **kwargs: Any) -> Infos:
        env = self._envs[index]
        self._run.progress[0] = self._first_env + index
        try:
            said = getattr(env, verb)(*args, **kwargs)
        except Misfit as misfit:
            # From the misfit: its traceback shows the line of the env that wrote it.
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
        """What a snapshot needs besides the envs and the arena."""
        arrays = {"begun": self._begun, "finished": self._finished}
        return {name: array.copy() for name, array in arrays.items()}

    def load(self, state: dict[str, Any], envs: Sequence[Env]) -> None:
        """Continue from a `state`, with envs taken from the same snapshot."""
        self._begun[:] = state["begun"]
        self._finished[:] = state["finished"]
        self._bind(envs)
