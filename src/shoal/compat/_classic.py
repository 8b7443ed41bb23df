"""Vector envs in the classic form: ``reset() -> obs``, ``step() -> obs, rewards, dones, infos``.

A face only: a `shoal.VectorEnv` does the work, and these classes turn its batches around.
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
from shoal.vector.batching import is_async
from shoal.vector.infos import split_infos

Classic = tuple[Any, Any, Any, list[dict[Any, Any]]]
"""Observations, rewards, dones and infos."""

# In the info of a row that has ended, beside ``final_info``: not said by the reset that followed.
_OF_THE_END = ("final_obs", "episode", "restarted")


class VectorEnv:
    """Many envs as one, in the classic form; also a base for a vector env of your own.

    Without arguments it is empty: a subclass then brings envs and verbs of its own. With arguments it works,
    and a subclass may override what it likes.

    A finished env is reset in the same step: its ``obs`` begins the next episode, and its info has the last
    observation of the old one as ``final_obs``. ``dones`` is terminated or truncated; where an episode was
    truncated, the info has ``TimeLimit.truncated``, as old gym has it. ``infos`` is a list with one dict for
    each env of the batch, empty if its step had nothing to say.

    If an env has several agents, observations, rewards, dones, actions and both batched spaces are dicts by
    agent, and so is each env's info.

    Args:
        env_creator: A class or function that makes envs, a list of them, or a name that `shoal.make` knows.
        num_envs: How many. With ``surplus_envs``, that many more are simulated.
        **kwargs: As `shoal.make` takes them, all but ``autoreset_mode``. ``num_workers`` and
            ``envs_per_worker`` may both be given, if they agree. If a batch has less than all envs, or with
            ``mode="async"``, it has those that were ready first, unless ``order`` says otherwise.

    Attributes:
        num_envs: Envs in a batch.
        num_workers: Processes that step envs; 1 if it is this one.
        envs_per_worker: That the busiest of them has.
        single_observation_space: Of one agent in one env.
        observation_space: Of a batch.
        single_action_space: Of one agent in one env.
        action_space: Of a batch; `step` takes what it samples.
        batch: What was received last, as a `shoal.Batch`: it also knows ``env_ids``, ``mask`` and how an
            episode ended.
        envs: The envs themselves, if they are in this process.

    Raises:
        ArgumentError: If an argument cannot work, or not together with another.

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
    _agents: tuple[Any, ...] = ()  # if there are several

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
        """Shoal's own vec, which does the work and offers the rest: ``stats()``, ``render()``, ``call()``...

        Raises:
            CallError: If there is none, because no env was given.
        """
        if self._vec is None:
            raise CallError(
                f"{type(self).__name__} was made without envs: pass a creator and num_envs to "
                "super().__init__(), or define in the class itself what you call"
            )
        return self._vec

    def seed(self, seed: int | Sequence[int | None]) -> None:
        """Seed the next reset: env i by ``seed + i``."""
        self.vec.seed(seed)

    def reset(self, seed: int | None = None) -> Any:
        """Reset all envs; returns the observations of a batch."""
        self.async_reset(seed)
        return self.recv()[0]

    def step(self, actions: Any) -> Classic:
        """Step the envs of the batch last returned; returns the next one.

        Both are of the same envs, unless it is asynchronous: then ``batch.env_ids`` says whose rows they are.

        Args:
            actions: One for each env; for several agents, a dict of them by agent.

        Returns:
            Observations, rewards, dones and infos.
        """
        self.send(actions)
        return self.recv()

    def async_reset(self, seed: int | None = None) -> None:
        """Begin a reset of all envs; `recv` gives the first batch."""
        self.vec.async_reset(seed=seed)

    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step: the first half of `step`.

        Args:
            actions: As for `step`.
            env_ids: ``batch.env_ids`` of the batch they are for, if not the one last received.
        """
        if self._agents and isinstance(actions, Mapping):
            actions = self.vec.from_agents(actions)
        self.vec.send(actions, env_ids)

    def recv(self) -> Classic:
        """Receive a batch: the second half of `step`, and what it returns."""
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
        """Close every env and release everything. May be called twice."""
        if self._vec is not None:
            self._vec.close()

    def __enter__(self) -> Self:
        """``with Serial(...) as env:`` closes it at the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The vec beneath says the rest."""
        return f"<{type(self).__name__}: {self._vec or 'empty'}>"


class Serial(VectorEnv):
    """All envs in this process; arguments as for `VectorEnv`, but for those that only processes have."""

    _backend = "serial"


class Multiprocessing(VectorEnv):
    """Envs in worker processes; arguments as for `VectorEnv`."""

    _backend = "multiprocessing"


def make_vec(
    env: Any,
    num_envs: int | None,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    **kwargs: Any,
) -> shoal.VectorEnv:
    """`shoal.make`, with what the classic form asks for.

    Raises:
        ArgumentError: If an argument cannot work, or not together with another.
    """
    for name in kwargs:
        if name == "autoreset_mode":
            raise ArgumentError("autoreset_mode: the classic form has only SAME_STEP. Leave it away")
        if name not in inspect.signature(shoal.make).parameters:
            raise ArgumentTypeError(
                f"{name}: expected an argument of shoal.make(), got one that it has not. What is for the env "
                f"itself goes into env_kwargs={{{name!r}: ...}}"
            )
    surplus = kwargs.get("surplus_envs", 0)
    if num_workers is not None and envs_per_worker is not None:
        count = num_envs if num_envs is not None else len(env) if isinstance(env, Sequence) else 1
        if num_workers * envs_per_worker not in (count, count + surplus):
            raise ArgumentError(
                f"envs_per_worker: expected what shares {count} envs out among {num_workers} workers, got "
                f"{envs_per_worker}. Leave one of the two away"
            )
        envs_per_worker = None
    if is_async(env, num_envs, kwargs.get("batch_size"), surplus, kwargs.get("mode")):
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
    return env  # nothing that makes envs, as shoal.make will say


class ClassicCreator:
    """A creator that may import `pufferlib` in a worker, and may return a vector env in the classic form.

    Args:
        create: The creator itself.
    """

    def __init__(self, create: Any) -> None:
        self._create = create

    def __call__(self, **kwargs: Any) -> Any:
        """What it makes, as Shoal knows it.

        Raises:
            ArgumentTypeError: If it is a vector env whose verbs are not Shoal's.
        """
        env = self._create(**kwargs)
        if not isinstance(env, VectorEnv):
            return env
        for verb in ("reset", "step", "async_reset", "send", "recv"):
            if getattr(type(env), verb) is not getattr(VectorEnv, verb):
                raise ArgumentTypeError(
                    f"env_creator: {type(env).__name__} has a {verb}() of its own, which a vector env around "
                    "it would not call. Give the outer one that method instead"
                )
        return env.vec

    def __reduce__(self) -> Any:
        """In this order: the creator may need `pufferlib` to be unpickled at all."""
        return _unpickled, (_Installation(), self._create)


class _Installation:
    """Has this process's `pufferlib` installed where it is unpickled."""

    def __reduce__(self) -> Any:
        from shoal.compat.pufferlib import is_installed

        return (install_as_pufferlib if is_installed() else bool), ()


def _unpickled(_: Any, create: Any) -> ClassicCreator:
    return ClassicCreator(create)


def _infos_of(batch: Batch) -> list[dict[str, Any]]:
    """One dict for each row: what its last step said."""
    infos: list[dict[str, Any]] = [{} for _ in range(len(batch.rewards))]
    if batch.infos:
        for row, info in split_infos(batch.infos, len(infos)):
            if "final_info" in info:  # the rest was said by the reset that followed
                ended = {key: info[key] for key in _OF_THE_END if key in info}
                info = {**info["final_info"], **ended}
            infos[row] = info
    for row in np.flatnonzero(batch.truncations).tolist():
        infos[row]["TimeLimit.truncated"] = not batch.terminations[row]
    return infos
