"""`shoal.Env`: the in-place contract for fast Python envs with any number of agents."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.utils import seeding
from numpy.typing import NDArray

from shoal._core import Packer
from shoal.errors import ArgumentError
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout

_BOUND = ("observations", "actions", "rewards", "terminations", "truncations", "mask", "_packer")
"""The attributes that `bind` sets. They belong to the rows, not to the env."""


class _Views(dict[str, Any]):
    """A dict of views that refuses assignment, which would replace a view instead of writing into the row."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(f"write into the row: [{key!r}][...] = x, not [{key!r}] = x")

    def __reduce__(self) -> Any:
        """Copy and pickle as an ordinary dict."""
        return dict, (dict(self),)


def _fixed(nested: Any) -> Any:
    if isinstance(nested, dict):
        return _Views({key: _fixed(part) for key, part in nested.items()})
    return tuple(map(_fixed, nested)) if isinstance(nested, tuple) else nested


class Env:
    """An env that writes its rows itself: no tuple, no copy, no allocation per step.

    A subclass sets ``observation_space`` and ``action_space`` (of one agent) and ``num_agents``, as
    class attributes or in ``__init__``. Its ``reset`` and ``step`` write into the arrays below. The arrays
    are views of the vec's rows; the vec binds them once it knows the spaces. An env without a vec gets its
    own rows on first use.

    Before each ``step`` the vec clears rewards and flags and puts the new actions into ``actions``. Then the
    env writes the results of the step. The rules for agents:

    - If the env sets ``terminations`` or ``truncations`` of an agent, the agent has finished. This transition
      is its last, and its ``mask`` is cleared after the step.
    - An agent whose ``mask`` is clear does not act, and its action is not read. The env may clear ``mask``
      of an agent that waits for its turn. Rewards and flags that the agent gets meanwhile belong to its last
      action, or to no action if it has not acted yet. The env may set ``mask`` of an agent that had finished:
      the agent returns and begins an episode.
    - For an agent that has no part in the episode, the env clears ``mask`` and writes neither a reward nor a
      flag.
    - When no agent is left to act, the episode is over. The vec then resets the env according to its
      autoreset mode.

    Attributes:
        observations: One entry per agent: an array, or nested arrays for structured spaces (Text as
            codes, OneOf as index and choices, Sequence, Graph and custom spaces as arrays of objects).
            `write` packs a whole value instead.
        actions: One entry per agent, nested like the space.
        rewards: The reward of each agent, as float64.
        terminations: Whether each agent has terminated.
        truncations: Whether each agent was truncated.
        mask: Whether each agent needs an action.
        np_random: The random stream of the env, as in `gymnasium.Env`.

    Args:
        buf: The rows to write into. By default the vec binds rows later.

    Example:
        >>> import numpy as np, shoal
        >>> from gymnasium.spaces import Box, Discrete
        >>> class Walkers(shoal.Env):
        ...     observation_space = Box(-10, 10, (1,), np.float32)
        ...     action_space = Discrete(2)
        ...     num_agents = 3
        ...
        ...     def reset(self, seed=None, options=None):
        ...         self.observations[:] = 0
        ...
        ...     def step(self, actions):
        ...         self.observations[:, 0] += 2 * actions - 1
        ...         self.rewards[:] = self.observations[:, 0]
        ...         self.terminations[:] = abs(self.observations[:, 0]) == 10
        >>> vec = shoal.Serial(Walkers, num_envs=2)
        >>> obs, infos = vec.reset(seed=0)
        >>> obs, rewards, terminations, truncations, infos = vec.step([1, 1, 0, 0, 1, 1])
        >>> rewards
        array([ 1.,  1., -1., -1.,  1.,  1.])
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    num_agents: int = 1
    num_envs: int = 1
    metadata: dict[str, Any] = {}
    render_mode: str | None = None
    spec: Any = None

    def __init__(self, buf: Arena | None = None) -> None:
        if buf is not None:
            self.bind(buf)

    def bind(self, rows: Arena, layouts: tuple[Layout, Layout] | None = None) -> None:
        """Make the env write into `rows` from now on. The vec calls this.

        Args:
            rows: The rows, one for each agent.
            layouts: The layouts of observations and actions; by default those of the env's spaces.

        Raises:
            ArgumentError: If the number of rows is not the number of agents.
        """
        if len(rows) != self.num_agents:
            raise ArgumentError(f"expected {self.num_agents} rows, one per agent, got {len(rows)}")
        observation, action = layouts or self._layouts()
        self._packer = Packer(
            observation,
            rows.observations,
            rows.observation_objects,
            on_undeclared=observation.warn_undeclared,
        )
        observed = observation.columns(rows.observations, rows.observation_objects)
        self.observations: Any = _fixed(observation.root.views(observed))
        self.actions: Any = _fixed(action.root.views(action.columns(rows.actions, rows.action_objects)))
        self.rewards: NDArray[np.float64] = rows.rewards
        self.terminations: NDArray[np.bool_] = rows.terminations
        self.truncations: NDArray[np.bool_] = rows.truncations
        self.mask: NDArray[np.bool_] = rows.mask

    def _layouts(self) -> tuple[Layout, Layout]:
        return Layout(self.observation_space, objects=True), Layout(self.action_space, objects=True)

    def bound(self) -> list[tuple[str, Any]]:
        """Return the names and arrays that `bind` set. The env must write into them, never replace them."""
        names = ("observations", "rewards", "terminations", "truncations", "mask")
        return [(name, getattr(self, name)) for name in names]

    def __getattr__(self, name: str) -> Any:
        """Allocate rows for an env without a vec, when it first needs them."""
        if name not in _BOUND:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        layouts = self._layouts()
        self.bind(Arena.allocate(self.num_agents, *layouts), layouts)
        return getattr(self, name)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows, which belong to the vec."""
        return {name: value for name, value in self.__dict__.items() if name not in _BOUND}

    def write(self, agent: int, value: Any) -> None:
        """Pack a whole observation into the row of an agent.

        Raises:
            ObservationError: If the value does not fit the observation space.
            ArgumentError: If there is no agent of this number.
        """
        agent = operator.index(agent)
        if not 0 <= agent < self.num_agents:
            raise ArgumentError(f"agent: expected one from 0 to {self.num_agents - 1}, got {agent}")
        self._packer.write(agent, value)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]] | None:
        """Begin an episode and write the first observations.

        A subclass defines this method. It may call ``super().reset(seed=seed)`` first, to seed ``np_random``.

        Args:
            seed: A new seed, or None to go on with the env's own random stream.
            options: The options that the caller of ``vec.reset`` gave.

        Returns:
            None, one info (the vec puts it at the env's first row), or a list with one info per agent.
        """
        if type(self).reset is Env.reset:
            raise NotImplementedError(f"{type(self).__name__} must define reset()")
        if seed is not None:
            self._random, self._random_seed = seeding.np_random(seed)
        return None

    @property
    def np_random(self) -> np.random.Generator:
        """The random stream of the env. It is created on first use."""
        if "_random" not in self.__dict__:
            self._random, self._random_seed = seeding.np_random()
        return self._random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._random, self._random_seed = value, -1

    @property
    def np_random_seed(self) -> int:
        """The seed of `np_random`."""
        _ = self.np_random
        return self._random_seed

    def step(self, actions: Any) -> dict[str, Any] | list[dict[str, Any]] | None:
        """Do one step and write observations, rewards and flags.

        Args:
            actions: The same as ``self.actions``.

        Returns:
            None, one info, or a list with one info per agent, as for `reset`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step()")

    def render(self) -> Any:
        """Return a frame. A subclass that can draw itself defines this method."""
        raise NotImplementedError(f"{type(self).__name__} does not define render()")

    def close(self) -> None:
        """Release the resources of the env."""
