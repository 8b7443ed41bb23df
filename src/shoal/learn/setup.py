"""Setup of a learner: make or check its vec, and check its device."""

from __future__ import annotations

from typing import Any

import torch

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.configs.base import LearnerConfig
from shoal.vector import make
from shoal.vector.vec import VectorEnv


def make_vec(env: Any, config: LearnerConfig, env_kwargs: dict[str, Any] | None) -> VectorEnv:
    """Make a vec of an env with the settings of a config."""
    asynchronous: dict[str, Any] = {}
    if config.mode == "async":
        if config.num_envs < 2:
            raise ArgumentError("num_envs: expected at least 2 with mode='async', got 1")
        asynchronous = {"batch_size": config.num_envs // 2, "order": "ready"}
    return make(
        env,
        config.num_envs,
        env_kwargs=env_kwargs,
        backend=config.backend,
        num_workers=config.num_workers,
        timeout=config.timeout,
        on_error=config.on_error,
        flat=True,
        copy=False,
        **asynchronous,
    )


def check_vec(vec: VectorEnv, config: LearnerConfig) -> VectorEnv:
    """Return the vec if a learner can learn on it with this config.

    Raises:
        ArgumentError: If the vec and the config do not fit.
    """
    layout = vec.observation_layout
    layout.require_bytes("A learner")
    vec.action_layout.require_bytes("A learner")
    if not vec.flat and vec.single_observation_space.shape != tuple(layout.flat_shape):
        raise ArgumentTypeError(
            f"env: expected flat observations, got {layout.space}: make the vec with flat=True"
        )
    asynchronous = vec.batch_size < vec.num_envs
    if asynchronous and config.mode != "async":
        raise ArgumentError(
            f"mode: expected 'async', because a batch of the vec lacks some rows, got {config.mode!r}"
        )
    return vec


def check_device(device: str) -> None:
    """Check that torch can use a device.

    Raises:
        ArgumentError: If it cannot.
    """
    try:  # the learner needs double precision and a generator on the device
        torch.zeros(1, dtype=torch.float64, device=device)
        torch.Generator(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise ArgumentError(f"device: expected a device that torch can use, got {device!r}: {why}") from None
