"""check_env: check that an env keeps the contract that a vec relies on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal import _core
from shoal.errors import UndeclaredKeyWarning
from shoal.native import is_native
from shoal.native.single import SingleNative
from shoal.testing.contract import ContractViolation, require, require_equal

# How many compiled envs run in plain Python, and for how long: several episodes, to reach late events too.
UNCOMPILED_ENVS, UNCOMPILED_STEPS = 3, 1000


def check_env(creator: Callable[[], Any], *, steps: int = 200, seed: int = 0) -> None:
    """Check one env: its spaces, methods, values and seeds. The env may have any style that a vec takes.

    A compiled env runs in plain Python first: three envs for at least a thousand steps. Then it runs compiled
    with ``check=True``. There an index outside its array raises an error with the line. Without the check the
    env would read or write other memory.

    Args:
        creator: A class, or a function that makes the env.
        steps: The number of random steps to take.
        seed: The seed for resets and actions.

    Raises:
        ContractViolation: If the env breaks a promise; the message says which.
        SpaceError: If a compiled env has a space without bytes.
        NativeError: If a compiled env raises only when it is compiled.

    Example:
        >>> import gymnasium, shoal
        >>> shoal.testing.check_env(lambda: gymnasium.make("CartPole-v1"))
    """
    if is_native(creator):
        _run_checked(creator, steps, seed)

    def meet(vec: Any) -> None:
        inner = getattr(vec.envs[0], "unwrapped", None) if not is_native(creator) else None
        if isinstance(inner, SingleNative):
            _run_checked(partial(inner.native_class, **inner.native_kwargs), steps, seed)

    with _no_undeclared_keys():
        first, second = _trajectory(creator, steps, seed, meet), _trajectory(creator, steps, seed)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        require_equal(one, other, f"the same seed must give the same trajectory; moment {number} differs")


@contextmanager
def _no_undeclared_keys() -> Iterator[None]:
    """Make the warning about undeclared keys a ContractViolation."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UndeclaredKeyWarning)
        try:
            yield
        except UndeclaredKeyWarning as warning:
            raise ContractViolation(
                f"observations must have only keys that the observation_space declares: {warning}"
            ) from None


def _trajectory(
    creator: Callable[[], Any],
    steps: int,
    seed: int,
    meet: Callable[[Any], None] = lambda vec: None,
    **options: Any,
) -> list[Any]:
    """Run random actions and return the checked results. `meet` gets the vec before the first step."""
    from shoal.vector.native import Native
    from shoal.vector.serial import Serial

    moments: list[Any] = []
    backend: Any = Native if is_native(creator) else Serial
    with backend(creator, 1, autoreset_mode=AutoresetMode.DISABLED, copy=True, **options) as vec:
        meet(vec)
        actions = vec.action_space
        actions.seed(seed)

        def record(obs: Any, *rest: Any) -> None:
            _require_inside(vec, obs)
            moments.append(deepcopy((obs, *rest)))

        record(vec.reset(seed=seed)[0])
        for _ in range(steps):
            obs, rewards, terminations, truncations, _ = vec.step(actions.sample())
            record(obs, rewards, terminations, truncations)
            require(np.isfinite(rewards).all(), "rewards must be finite numbers", rewards)
            if not vec.mask.any():
                record(vec.reset()[0])
    return moments


def _run_checked(creator: Callable[[], Any], steps: int, seed: int) -> None:
    """Run compiled envs in plain Python, where errors raise; then run the compiled kernel with checks."""
    from shoal.vector.native import Native

    with Native(creator, UNCOMPILED_ENVS, debug=True) as vec:
        vec.action_space.seed(seed)
        _require_inside(vec, vec.reset(seed=seed)[0])
        for _ in range(max(steps, UNCOMPILED_STEPS)):
            obs, rewards, *_ = vec.step(vec.action_space.sample())
            _require_inside(vec, obs)
            require(np.isfinite(rewards).all(), "rewards must be finite numbers", rewards)
    if _core.NAME == "native":
        _trajectory(creator, steps, seed, check=True)


def _require_inside(vec: Any, obs: Any) -> None:
    require(
        obs in vec.observation_space,
        f"observations must be in the env's observation_space {vec.single_observation_space}",
        obs,
    )
