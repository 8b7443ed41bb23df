"""The oracle: N envs stepped one at a time, as Gymnasium defines each autoreset mode.

The code is as simple as possible, and shares nothing with the backends that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray


class Moment(NamedTuple):
    """The values that a vec must return after one step or reset."""

    obs: Any
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    infos: dict[str, Any]


class ByHand:
    """Steps Gymnasium envs one at a time.

    Args:
        creators: The creators, one per env.
        mode: The autoreset mode to follow.
    """

    def __init__(
        self, creators: Sequence[Callable[[], gymnasium.Env[Any, Any]]], mode: AutoresetMode
    ) -> None:
        self.envs = [creator() for creator in creators]
        self.mode, self.count = mode, len(creators)
        self.finished = [False] * self.count
        self.last_obs: list[Any] = [None] * self.count
        self._infos = VectorEnv()  # only used to merge infos as Gymnasium does
        self._infos.num_envs = self.count

    def reset(
        self, seeds: Sequence[int | None], chosen: Sequence[bool], options: dict[str, Any] | None
    ) -> Moment:
        """Reset the chosen envs."""
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if chosen[i]:
                obs, info = env.reset(seed=seeds[i], options=options)
                self.last_obs[i], self.finished[i] = deepcopy(obs), False
                infos = self._infos._add_info(infos, deepcopy(info), i)
        nothing = np.zeros(self.count, np.bool_)
        return self._moment([0.0] * self.count, nothing, nothing, ~nothing, infos)

    def step(self, actions: Sequence[Any]) -> Moment:
        """Step every env with its own action."""
        rewards, resets = [0.0] * self.count, np.zeros(self.count, np.bool_)
        terminations, truncations = np.zeros(self.count, np.bool_), np.zeros(self.count, np.bool_)
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if self.finished[i] and self.mode is AutoresetMode.NEXT_STEP:
                obs, info = env.reset()
                resets[i] = True
            else:
                obs, reward, terminations[i], truncations[i], info = env.step(actions[i])
                rewards[i] = float(reward)
                if self.mode is AutoresetMode.SAME_STEP and (terminations[i] or truncations[i]):
                    final = {"final_obs": deepcopy(obs), "final_info": deepcopy(info)}
                    infos = self._infos._add_info(infos, final, i)
                    obs, info = env.reset()
            self.last_obs[i] = deepcopy(obs)
            self.finished[i] = bool(terminations[i] or truncations[i])
            infos = self._infos._add_info(infos, deepcopy(info), i)
        return self._moment(rewards, terminations, truncations, resets, infos)

    def _moment(
        self,
        rewards: list[float],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        resets: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> Moment:
        space = self.envs[0].observation_space
        empty: Any = create_empty_array(space, self.count)
        batch = concatenate(space, self.last_obs, empty)
        return Moment(batch, np.array(rewards), terminations, truncations, resets, infos)
