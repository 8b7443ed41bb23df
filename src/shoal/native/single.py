"""A single compiled env: a `gymnasium.Env`, or a `shoal.Env` if it has several agents."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from shoal.adapters.env import _BOUND, Env
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.vector.infos import split_infos


class _VecOfOne:
    """The base of both classes: a `shoal.Native` with one env, whose fields are attributes here.

    Args:
        cls: The env class.
        render_mode: ``"rgb_array"`` or None.
        debug: Whether to run as plain Python, as for `shoal.Native`.
        check: Whether to check indices, as for `shoal.Native`.
        infos: Whether `step` returns the infos that the class declares.
        **kwargs: Values for constants and parameters.
    """

    observation_space: Any
    action_space: Any
    metadata: dict[str, Any]
    render_mode: str | None

    def __init__(
        self,
        cls: Any,
        *,
        render_mode: str | None = None,
        debug: bool = False,
        check: bool = False,
        infos: bool = False,
        **kwargs: Any,
    ) -> None:
        from shoal.vector.native import Native

        super().__init__()
        vec = Native(
            cls,
            1,
            env_kwargs=kwargs,
            num_workers=1,
            render_mode=render_mode,
            debug=debug,
            check=check,
            infos=infos,
            autoreset_mode=AutoresetMode.DISABLED,
        )
        self.observation_space, self.action_space = vec.single_observation_space, vec.single_action_space
        self.metadata, self.render_mode = dict(cls.metadata), render_mode
        self.native_class, self.native_kwargs = cls, kwargs
        self._vec = vec  # last, because __setattr__ passes later attributes on to the vec

    def render(self) -> Any:
        """Return the env's frame."""
        return self._vec.render()[0]

    def close(self) -> None:
        """Close the vec inside."""
        self._vec.close()

    def __getattr__(self, name: str) -> Any:
        """Return a parameter, a constant or a field of the state."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._vec.get_attr(name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a parameter or a field of the state in the kernel's memory; otherwise set an attribute."""
        own = name.startswith("_") or name in _BOUND or hasattr(type(self), name)
        if not own and "_vec" in self.__dict__ and self._reaches_kernel(name):
            self._vec.set_attr(name, [value])  # raises for a constant
        else:
            super().__setattr__(name, value)

    def _reaches_kernel(self, name: str) -> bool:
        return self._vec.column_of(name) is not None or name in self._vec.constants


def _infos_of(infos: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Split the infos of a vec into those of its rows."""
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for row, info in split_infos(infos, count):
        found[row] = info
    return found


class SingleNative(_VecOfOne, gymnasium.Env[Any, Any]):
    """One env of a `shoal.NativeEnv` class, for Gymnasium's tools. For speed, use `shoal.Native`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        obs, infos = self._vec.reset(seed=seed, options=options)
        return self._first(obs), infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do one step."""
        batch: Any = create_empty_array(self.action_space, 1)
        obs, rewards, terminations, truncations, infos = self._vec.step(
            concatenate(self.action_space, [action], batch)
        )
        info = _infos_of(infos, 1)[0]
        return self._first(obs), float(rewards[0]), bool(terminations[0]), bool(truncations[0]), info

    def _first(self, obs: Any) -> Any:
        (first,) = iterate(self._vec.observation_space, obs)
        return np.array(first) if isinstance(first, np.ndarray) else first


class TeamNative(_VecOfOne, Env):
    """One env of a `shoal.NativeEnv` class with several agents, for backends other than `shoal.Native`."""

    def __init__(self, cls: Any, **options: Any) -> None:
        super().__init__(cls, **options)
        self.num_agents = self._vec.agents_per_env

    def bind(self, rows: Arena, layouts: tuple[Layout, Layout] | None = None) -> None:
        """Make the env write into `rows` from now on."""
        super().bind(rows, layouts)
        self._bytes = rows.observations

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode."""
        self._vec.reset(seed=seed, options=options)
        self._show()

    def step(self, actions: Any) -> list[dict[str, Any]] | None:
        """Step the env with the actions of all agents that are alive."""
        _, rewards, terminations, truncations, infos = self._vec.step(actions)
        self.rewards[:], self.terminations[:], self.truncations[:] = rewards, terminations, truncations
        self._show()
        return _infos_of(infos, self.num_agents) if infos else None

    def _show(self) -> None:
        self.mask[:] = self._vec.mask
        self._bytes[:] = self._vec.observation_rows  # both have the same spaces, so the same layout

    def __getattr__(self, name: str) -> Any:
        """Return an array of the rows, or an attribute of the compiled env."""
        return Env.__getattr__(self, name) if name in _BOUND else super().__getattr__(name)
