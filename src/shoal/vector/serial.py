"""Serial: all envs in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.adapters.single import SingleEnv
from shoal.rows.arena import Arena
from shoal.stepping.block import Block, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard
from shoal.stepping.row_slice import Infos, Run
from shoal.vector.options import Options, autoreset, creators_of
from shoal.vector.spaces import ObservationMode, UnitFacts, combine
from shoal.vector.vec import VectorEnv


class Serial(VectorEnv):
    """Many envs in this process: exact, simple to debug, and with no waiting for anybody.

    Args:
        env: A creator (a class, or a function without arguments that returns an env), or a list of
            creators, one per env. A creator may return a vector env: its envs become envs of this one.
        num_envs: How often to call a single creator.
        autoreset_mode: ``NEXT_STEP`` (default), ``SAME_STEP`` or ``DISABLED``, as Gymnasium defines them.
        flat: Give observations and take actions as one flat array per row (see `shoal.layout`).
        copy: Return observations that may be kept; else views, valid until the next step.
        seed: Seeds the first reset and the action space.
        episode_stats: Report finished episodes as ``infos["episode"]``.
        observation_mode: ``"same"``, ``"different"`` or a pair of spaces (batched, single).
        rows_as_envs: Present each agent's row as an env, for code that knows nothing of agents.

    Example:
        >>> import gymnasium, shoal
        >>> with shoal.Serial(lambda: gymnasium.make("CartPole-v1"), num_envs=3) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step([0, 1, 0])
        >>> rewards
        array([1., 1., 1.])
    """

    def __init__(
        self,
        env: Callable[[], Any] | Sequence[Callable[[], Any]],
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        copy: bool = True,
        seed: int | None = None,
        episode_stats: bool = False,
        observation_mode: ObservationMode = "same",
        rows_as_envs: bool = False,
    ) -> None:
        mode = autoreset(autoreset_mode)
        options = Options(mode, flat, copy, seed, episode_stats, observation_mode, rows_as_envs)
        self.env_fns = creators_of(env, num_envs)
        units = build_envs(self.env_fns)
        try:
            with Guard("a space or a property of an env"):
                facts = [UnitFacts.of(unit, names_of(unit)) for unit in units]
                described = combine(facts, observation_mode, mode, objects=not flat)
            rows = described.num_envs * len(described.agents)
            arena = Arena.allocate(rows, described.observation, described.action)
            run = Run(arena, described.observation, described.action, mode, flat=flat)
            self._block = Block(units, run)
            self._begin_step = self._block.step  # without a call in between
            super().__init__(described, arena, options)
        except BaseException:
            close_all(units)
            raise

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, as their creators made them."""
        envs: list[Any] = []
        for unit in self._block.units:
            if isinstance(unit, GymnasiumVectorEnv):
                envs.extend(getattr(unit, "envs", [unit]))
            else:
                envs.append(unit.env if isinstance(unit, SingleEnv) else unit)
        return envs

    # Everything happens at once, so there is nothing to finish.

    def _begin_reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        return self._block.reset(chosen, seeds, options)

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return self._block.call(name, args, kwargs)

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        self._block.set_attr(name, values)

    def _render(self) -> list[Any]:
        return self._block.render()

    def _freeze(self) -> Any:
        return self._block.snapshot()

    def _thaw(self, state: Any) -> None:
        self._block.restore(state)
        self._begin_step = self._block.step

    def _shut(self) -> list[Exception]:
        return self._block.close()
