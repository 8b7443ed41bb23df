"""check_env: does an env keep the promises that a vec relies on?"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.testing.contract import require, require_equal


def check_env(creator: Callable[[], Any], *, steps: int = 200, seed: int = 0) -> None:
    """Check one env: spaces, verbs, values, seeds. Takes any style of env that a vec takes.

    Args:
        creator: A class, or a function that makes the env.
        steps: How many random steps to take.
        seed: For resets and actions.

    Raises:
        ContractViolation: If a promise is broken; the message says which.
        SpaceError: If a space has no layout.

    Example:
        >>> import gymnasium, shoal
        >>> shoal.testing.check_env(lambda: gymnasium.make("CartPole-v1"))
    """
    first, second = _trajectory(creator, steps, seed), _trajectory(creator, steps, seed)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        require_equal(one, other, f"the same seed must give the same trajectory; moment {number} differs")


def _trajectory(creator: Callable[[], Any], steps: int, seed: int) -> list[Any]:
    """Observations, rewards and flags of a random run, each checked."""
    from shoal.vector.serial import Serial

    moments: list[Any] = []
    with Serial(creator, autoreset_mode=AutoresetMode.DISABLED, copy=True) as vec:
        single, actions = vec.single_observation_space, vec.action_space
        actions.seed(seed)

        def record(obs: Any, *rest: Any) -> None:
            require(
                obs in vec.observation_space,
                f"observations must be in the env's observation_space {single}",
                obs,
            )
            moments.append(deepcopy((obs, *rest)))

        record(vec.reset(seed=seed)[0])
        for _ in range(steps):
            obs, rewards, terminations, truncations, _ = vec.step(actions.sample())
            record(obs, rewards, terminations, truncations)
            require(np.isfinite(rewards).all(), "rewards must be finite numbers", rewards)
            if not vec.mask.any():
                record(vec.reset()[0])
    return moments
