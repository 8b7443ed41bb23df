"""A single compiled env as Gymnasium has envs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from shoal.errors import ArgumentError


class SingleNative(gymnasium.Env[Any, Any]):
    """One env of a `shoal.NativeEnv` class: for Gymnasium's own tools. Many at once are what it is made for.

    Args:
        cls: The class.
        render_mode: ``"rgb_array"`` or None.
        debug: As for `shoal.Native`.
        check: As for `shoal.Native`.
        **kwargs: Values for constants and parameters.
    """

    def __init__(
        self,
        cls: Any,
        *,
        render_mode: str | None = None,
        debug: bool = False,
        check: bool = False,
        **kwargs: Any,
    ) -> None:
        from shoal.vector.native import Native

        self._vec = Native(
            cls,
            1,
            env_kwargs=kwargs,
            num_workers=1,
            render_mode=render_mode,
            debug=debug,
            check=check,
            autoreset_mode=AutoresetMode.DISABLED,
        )
        if self._vec.agents_per_env > 1:
            self._vec.close()
            raise ArgumentError(
                f"{cls.__name__} has {self._vec.agents_per_env} agents, and Gymnasium's envs have one: use "
                "shoal.make"
            )
        self.observation_space = self._vec.single_observation_space
        self.action_space = self._vec.single_action_space
        self.metadata, self.render_mode = dict(cls.metadata), render_mode
        self.native_class, self.native_kwargs = cls, kwargs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        obs, infos = self._vec.reset(seed=seed, options=options)
        return self._first(obs), infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move on by one."""
        batch: Any = create_empty_array(self.action_space, 1)
        obs, rewards, terminations, truncations, _ = self._vec.step(
            concatenate(self.action_space, [action], batch)
        )
        return self._first(obs), float(rewards[0]), bool(terminations[0]), bool(truncations[0]), {}

    def _first(self, obs: Any) -> Any:
        (first,) = iterate(self._vec.observation_space, obs)
        return np.array(first) if isinstance(first, np.ndarray) else first

    def render(self) -> Any:
        """The env's frame."""
        return self._vec.render()[0]

    def close(self) -> None:
        """Release what it holds."""
        self._vec.close()

    def __getattr__(self, name: str) -> Any:
        """A parameter, a constant or a field of the state."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._vec.get_attr(name)[0]
