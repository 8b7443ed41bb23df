"""Vector envs in the classic form: ``reset() -> obs``, ``step() -> obs, rewards, dones, infos``.

A `shoal.VectorEnv` does the work. These classes only convert its batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

import shoal
from shoal.adapters.single import is_env
from shoal.batch import Batch
from shoal.compat import install_as_pufferlib
from shoal.errors import ArgumentError, ArgumentTypeError, CallError
from shoal.registry import find
from shoal.vector.infos import split_infos

Classic = tuple[Any, Any, Any, list[dict[Any, Any]]]
"""The type of a batch: observations, rewards, dones and infos."""

# Keys in the info of a finished row that belong to the finished episode, not to the reset after it.
_OF_THE_END = ("final_obs", "episode", "restarted")


class VectorEnv:
    """Many envs as one, in the classic form; also a base class for your own vector envs.

    Without arguments it is empty: a subclass then defines its own envs and methods. With arguments it is a
    complete vector env, and a subclass may override any method.

    A finished env is reset in the same step. Its ``obs`` begins the next episode, and its info has the last
    observation of the finished episode as ``final_obs``. ``dones`` is terminated or truncated. If an episode
    was truncated, the info has ``TimeLimit.truncated``, as in old gym. ``infos`` is a list with one dict for
    each env of the batch; the dict is empty if the step had no info.

    If an env has several agents, observations, rewards, dones, actions and both batched spaces are dicts by
    agent, and so is each env's info.

    Args:
        env_creator: A class or function that makes envs, a list of them, or a name that `shoal.make` knows.
        num_envs: The number of envs. With ``surplus_envs``, so many more envs are simulated.
        **kwargs: Other arguments of `shoal.make`, except ``autoreset_mode``. ``num_workers`` and
            ``envs_per_worker`` may both be given, if they agree. If a batch has fewer than all envs, or with
            ``mode="async"``, a batch has the envs that were ready first, unless ``order`` is given.

    Attributes:
        num_envs: The number of envs in a batch.
        num_workers: The number of processes that step envs; 1 if only this process does.
        envs_per_worker: The largest number of envs of a process.
        single_observation_space: The observation space of one agent in one env.
        observation_space: The space of a batch of observations.
        single_action_space: The action space of one agent in one env.
        action_space: The space of a batch of actions; `step` takes its samples.
        batch: The last received `shoal.Batch`. It also has ``env_ids``, ``mask`` and how each episode ended.
        envs: The env objects, if they are in this process.

    Raises:
        ArgumentError: If an argument cannot work, alone or together with another.

    Example:
        >>> from shoal.compat.pufferlib import VectorEnv
        >>> class Counting(VectorEnv):
        ...     count = 0
        ...
        ...     def step(self, actions):
        ...         self.count += 1
        ...         return super().step(actions)
        >>> with Counting("CartPole-v1", num_envs=2, backend="serial") as env:
        ...     obs = env.reset()
        ...     obs, rewards, dones, infos = env.step([0, 1])
        >>> obs.shape, env.count
        ((2, 4), 1)
    """

    num_envs: int
    num_workers: int
    envs_per_worker: int
    single_observation_space: Space[Any]
    observation_space: Space[Any]
    single_action_space: Space[Any]
    action_space: Space[Any]
    batch: Batch
    envs: list[Any]

    _backend = "auto"
    _vec: shoal.VectorEnv | None = None
    _agents: tuple[Any, ...] = ()  # empty if there is one agent

    def __init__(self, env_creator: Any = None, num_envs: int | None = None, **kwargs: Any) -> None:
        if env_creator is None:
            if num_envs is not None or kwargs:
                raise ArgumentError(
                    "env_creator: expected a creator or a name, got None with other arguments"
                )
            return
        self._vec = vec = make_vec(env_creator, num_envs, **{"backend": self._backend, **kwargs})
        self.num_envs = vec.batch_size
        self.num_workers = getattr(vec, "num_workers", 1)
        processes = self.num_workers + getattr(vec, "parent_steps", False)
        self.envs_per_worker = -(-vec.num_rows // vec.agents_per_env // processes)
        self.single_observation_space = vec.single_observation_space
        self.single_action_space = vec.single_action_space
        self.observation_space, self.action_space = vec.observation_space, vec.action_space
        if vec.agents_per_env > 1 and not vec.rows_as_envs:
            self._agents = vec.agents
            self.observation_space = self._by_agent(vec.single_observation_space)
            self.action_space = self._by_agent(vec.single_action_space)
            self.action_space.seed(kwargs.get("seed"))
        if isinstance(vec, shoal.Serial):
            self.envs = vec.envs

    def _by_agent(self, single: Space[Any]) -> Space[Any]:
        return spaces.Dict({agent: batch_space(single, self.num_envs) for agent in self._agents})

    @property
    def vec(self) -> shoal.VectorEnv:
        """Shoal's vec, which does the work. It also has ``stats()``, ``render()``, ``call()`` and more.

        Raises:
            CallError: If there is no vec, because no env was given.
        """
        if self._vec is None:
            raise CallError(
                f"{type(self).__name__} was made without envs: pass a creator and num_envs to "
                "super().__init__(), or define the methods that you call in the class itself"
            )
        return self._vec

    def seed(self, seed: int | Sequence[int | None]) -> None:
        """Set the seed of the next reset: env i gets ``seed + i``."""
        self.vec.seed(seed)

    def reset(self, seed: int | None = None) -> Any:
        """Reset all envs and return the observations of a batch."""
        self.async_reset(seed)
        return self.recv()[0]

    def step(self, actions: Any) -> Classic:
        """Step the envs of the last batch and return the next batch.

        Both batches have the same envs, unless the vec is asynchronous. Then ``batch.env_ids`` has the env of
        each row.

        Args:
            actions: One action for each env; with several agents, a dict of such arrays by agent.

        Returns:
            Observations, rewards, dones and infos.
        """
        self.send(actions)
        return self.recv()

    def async_reset(self, seed: int | None = None) -> None:
        """Begin a reset of all envs. `recv` returns the first batch."""
        self.vec.async_reset(seed=seed)

    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step: the first half of `step`.

        Args:
            actions: As for `step`.
            env_ids: ``batch.env_ids`` of the batch that the actions are for; by default the last batch.
        """
        if self._agents and isinstance(actions, Mapping):
            actions = self.vec.from_agents(actions)
        self.vec.send(actions, env_ids)

    def recv(self) -> Classic:
        """Receive a batch and return it as `step` does: the second half of `step`."""
        batch = self.batch = self.vec.recv()
        dones, infos = batch.terminations | batch.truncations, _infos_of(batch)
        if not self._agents:
            return batch.obs, batch.rewards, dones, infos
        by_env: list[dict[Any, Any]] = [{} for _ in range(self.num_envs)]
        for row, info in enumerate(infos):
            if info:
                env, agent = divmod(row, len(self._agents))
                by_env[env][self._agents[agent]] = info
        split = self.vec.by_agent
        return split(batch.obs), split(batch.rewards), split(dones), by_env

    def close(self) -> None:
        """Close every env and release all resources. May be called twice."""
        if self._vec is not None:
            self._vec.close()

    def __enter__(self) -> Self:
        """Return the vector env itself; the end of the ``with`` block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the vector env."""
        self.close()

    def __repr__(self) -> str:
        """Return the name of the class with that of the vec."""
        return f"<{type(self).__name__}: {self._vec or 'empty'}>"


class Serial(VectorEnv):
    """A vector env with all envs in this process. Its arguments are those of `VectorEnv`, without workers."""

    _backend = "serial"


class Multiprocessing(VectorEnv):
    """A vector env with envs in worker processes. Its arguments are those of `VectorEnv`."""

    _backend = "multiprocessing"


def make_vec(
    env: Any,
    num_envs: int | None,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    **kwargs: Any,
) -> shoal.VectorEnv:
    """Call `shoal.make` with the settings of the classic form.

    Raises:
        ArgumentError: If an argument cannot work, alone or together with another.
    """
    for name in kwargs:
        if name == "autoreset_mode":
            raise ArgumentError("autoreset_mode: the classic form has only SAME_STEP. Leave it out")
        if name not in inspect.signature(shoal.make).parameters:
            raise ArgumentTypeError(
                f"{name}: expected an argument of shoal.make(), got an unknown one. Pass arguments of the "
                f"env in env_kwargs={{{name!r}: ...}}"
            )
    surplus = kwargs.get("surplus_envs", 0)
    count = num_envs if num_envs is not None else len(env) if isinstance(env, Sequence) else 1
    if num_workers is not None and envs_per_worker is not None:
        if num_workers * envs_per_worker not in (count, count + surplus):
            raise ArgumentError(
                f"envs_per_worker: expected a number that divides {count} envs among {num_workers} workers, "
                f"got {envs_per_worker}. Leave out one of the two arguments"
            )
        envs_per_worker = None
    batch_size = kwargs.get("batch_size")
    if kwargs.get("mode") == "async" or surplus or (batch_size is not None and batch_size < count):
        kwargs.setdefault("order", "ready")
    vec = shoal.make(
        _wrapped(env),
        num_envs,
        num_workers=num_workers,
        envs_per_worker=envs_per_worker,
        autoreset_mode=AutoresetMode.SAME_STEP,
        **kwargs,
    )
    if isinstance(env, str):
        vec.env_name = env
    return vec


def _wrapped(env: Any) -> Any:
    if isinstance(env, str):
        source = find(env)
        return env if source.steps_many else ClassicCreator(source.create)
    if callable(env) and not is_env(env):
        return ClassicCreator(env)
    if isinstance(env, Sequence):
        return [_wrapped(each) for each in env]
    return env  # not a creator: shoal.make raises the error


class ClassicCreator:
    """A creator that may import `pufferlib` in a worker, and may return a vector env in the classic form.

    Args:
        create: The creator itself.
    """

    def __init__(self, create: Any) -> None:
        self._create = create

    def __call__(self, **kwargs: Any) -> Any:
        """Make the env. Return Shoal's vec instead of a vector env in the classic form.

        Raises:
            ArgumentTypeError: If the env is a vector env that overrides methods of `VectorEnv`.
        """
        env = self._create(**kwargs)
        if not isinstance(env, VectorEnv):
            return env
        for verb in ("reset", "step", "async_reset", "send", "recv"):
            if getattr(type(env), verb) is not getattr(VectorEnv, verb):
                raise ArgumentTypeError(
                    f"env_creator: {type(env).__name__} overrides {verb}(), which a vector env around it "
                    "would not call. Override it in the outer vector env instead"
                )
        return env.vec

    def __reduce__(self) -> Any:
        """Pickle the installation of `pufferlib` first, because unpickling the creator may need it."""
        return _unpickled, (_Installation(), self._create)


class _Installation:
    """Installs `pufferlib` in the process that unpickles it, if it is installed in this process."""

    def __reduce__(self) -> Any:
        from shoal.compat.pufferlib import is_installed

        return (install_as_pufferlib if is_installed() else bool), ()


def _unpickled(_: Any, create: Any) -> ClassicCreator:
    return ClassicCreator(create)


def _infos_of(batch: Batch) -> list[dict[str, Any]]:
    """Return one dict for each row: the info of its last step."""
    infos: list[dict[str, Any]] = [{} for _ in range(len(batch.rewards))]
    if batch.infos:
        for row, info in split_infos(batch.infos, len(infos)):
            if "final_info" in info:  # the other keys are those of the reset after it
                ended = {key: info[key] for key in _OF_THE_END if key in info}
                info = {**info["final_info"], **ended}
            infos[row] = info
    for row in np.flatnonzero(batch.truncations).tolist():
        infos[row]["TimeLimit.truncated"] = not batch.terminations[row]
    return infos
