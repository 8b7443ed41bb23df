"""Evaluation of a policy on whole episodes, the same number from every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.learn.actions import masks_from_infos
from shoal.learn.base_policy import BasePolicy
from shoal.learn.threads import acting_threads, use_torch_threads
from shoal.vector import make
from shoal.vector.vec import VectorEnv

MAX_ENVS = 32


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes that a policy played."""

    returns: NDArray[np.float64]
    """Return of each episode."""
    lengths: NDArray[np.int64]
    """Number of steps of each episode."""

    @property
    def mean_return(self) -> float:
        """Mean return of all episodes."""
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """Standard deviation of the returns."""
        return float(self.returns.std())

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.returns)


def evaluate(
    policy: BasePolicy,
    env: Any,
    episodes: int = 20,
    *,
    deterministic: bool = True,
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    max_steps: int = 1_000_000,
    on_step: Callable[[VectorEnv], None] | None = None,
) -> Evaluation:
    """Play whole episodes with a policy.

    All rows play the same number of episodes, or one more. Counting the first episodes that end would favour
    short ones.

    Args:
        policy: Policy to evaluate.
        env: Vec, or any env that `shoal.make` takes. A vec is reset, so do not pass a learner's.
        episodes: Number of episodes.
        deterministic: Whether to take the likeliest actions instead of drawing.
        seed: Seed of envs and actions.
        env_kwargs: Arguments for the envs, if `env` is not a vec.
        max_steps: Largest length of an episode; a longer one is an error, because it may never end.
        on_step: Function to call with the vec after the reset and after each step.

    Raises:
        ArgumentError: If an episode is longer than `max_steps`.

    Example:
        >>> from shoal.learn import PPO, PPOConfig, evaluate
        >>> with PPO("shoal/CartPole-v1", PPOConfig(total_steps=2048)) as ppo:
        ...     result = ppo.train()
        >>> evaluate(ppo.policy, "shoal/CartPole-v1", episodes=8).episodes
        8
    """
    if episodes < 1:
        raise ArgumentError(f"episodes: expected at least 1, got {episodes}")
    if not 0 <= seed < 1 << 62:
        raise ArgumentError(f"seed: expected at least 0 and less than 2**62, got {seed}")
    if max_steps < 1:
        raise ArgumentError(f"max_steps: expected at least 1, got {max_steps}")
    if not isinstance(env, VectorEnv):
        envs = min(episodes, MAX_ENVS)
        with (
            make(env, envs, env_kwargs=env_kwargs, flat=True) as vec,
            use_torch_threads(acting_threads(policy, vec)),
        ):
            check_fits(policy, vec)
            return _play(policy, vec, episodes, deterministic, seed, max_steps, on_step)
    if env.batch_size < env.num_envs:
        raise ArgumentError("env: expected a vec whose batches have all rows, got an asynchronous one")
    check_fits(policy, env)
    with use_torch_threads(acting_threads(policy, env)):
        return _play(policy, env, episodes, deterministic, seed, max_steps, on_step)


def check_fits(policy: BasePolicy, vec: VectorEnv) -> None:
    """Raise an `ArgumentError` if the policy was trained on other observations than these envs have."""
    ours, theirs = policy.layout, vec.observation_layout
    if (ours.flat_shape, ours.flat_dtype) != (theirs.flat_shape, theirs.flat_dtype):
        raise ArgumentError(
            f"env: the policy was trained on observations {ours.space}, and this env has {theirs.space}"
        )


def _play(
    policy: BasePolicy,
    env: VectorEnv,
    episodes: int,
    deterministic: bool,
    seed: int,
    max_steps: int,
    on_step: Callable[[VectorEnv], None] | None,
) -> Evaluation:
    rows = env.num_rows
    quota = np.full(rows, episodes // rows)
    quota[: episodes % rows] += 1
    random = torch.Generator(policy.device).manual_seed(seed)
    state = policy.initial_state(rows)
    sums, counts = np.zeros(rows), np.zeros(rows, np.int64)
    agents, waited = env.agents_per_env, 0  # steps since the last counted episode ended
    took_part, begun = np.zeros(rows, np.bool_), np.zeros(rows // agents, np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    env.async_reset(seed=seed)
    while quota.any():
        batch = env.recv()
        if on_step is not None:
            on_step(env)
        sums += batch.rewards
        counts += ~batch.resets
        ends, waited = batch.terminations | batch.truncations, waited + 1
        took_part |= batch.mask | ends
        begun += batch.resets.reshape(-1, agents).all(1)
        _move_quota(quota.reshape(-1, agents), took_part.reshape(-1, agents), begun)
        for row in np.flatnonzero(ends & (quota > 0)).tolist():
            returns.append(float(sums[row]))
            lengths.append(int(counts[row]))
            quota[row] -= 1
            waited = 0
        sums[ends], counts[ends] = 0.0, 0
        if waited > max_steps:
            raise ArgumentError(
                f"max_steps: expected episodes of at most {max_steps} steps, got one in row "
                f"{np.flatnonzero(quota)[0]} that has not ended yet. Give the env a time limit, or use a "
                "larger max_steps"
            )
        if state is not None:
            state[:, torch.from_numpy(batch.resets).to(state.device)] = 0
        masks = None if policy.has_masks else masks_from_infos(batch.infos, rows, policy.actions.num_logits)
        env.send(policy.act_batch(batch.obs, deterministic, state, action_mask=masks, generator=random))
    env.recv()
    return Evaluation(np.array(returns), np.array(lengths))


def _move_quota(quota: NDArray[np.int64], took_part: NDArray[np.bool_], begun: NDArray[np.int64]) -> None:
    """Move the quota of agents that were absent for a whole episode to an agent that was present.

    Args:
        quota: Episodes left to play, [envs, agents]; updated in place.
        took_part: Whether an agent has been present, [envs, agents].
        begun: Number of episodes begun, [envs].
    """
    absent = (quota > 0) & ~took_part & (begun > 1)[:, None] & took_part.any(1, keepdims=True)
    for env in np.flatnonzero(absent.any(1)).tolist():
        quota[env, took_part[env].argmax()] += quota[env, absent[env]].sum()
        quota[env, absent[env]] = 0
