"""Settings of PPO."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from shoal.errors import ArgumentError
from shoal.learn.configs.base import LearnerConfig


@dataclass(frozen=True)
class PPOConfig(LearnerConfig):
    """Settings of PPO. The defaults suit small envs that are fast to step.

    Where the usual name of a setting is another, it is given in brackets.
    """

    learning_rate: float = 2.5e-3
    """Learning rate of Adam at the beginning. (`lr`)"""
    anneal: bool = True
    """Decrease the learning rate linearly to 0. (`anneal_lr`)"""
    horizon: int | None = None
    """Number of steps of each row in a rollout; by default enough for four minibatches, and at least 32.
    (`num_steps`, `n_steps`)"""
    epochs: int = 8
    """Number of passes over each rollout. (`update_epochs`, `n_epochs`)"""
    minibatch_size: int = 512
    """Number of transitions in a gradient step. The number of gradient steps per transition does not
    depend on the number of envs. (`batch_size`)"""
    gae_lambda: float = 0.95
    """Weight of long horizons in advantages, from 0 (one step) to 1 (the whole episode)."""
    clip: float = 0.2
    """Largest relative change of an action's probability in an update. (`clip_coef`, `clip_range`)"""
    clip_value: float = 0.0
    """Largest change of a value in an update; 0 for no limit. (`clip_range_vf`, `clip_vloss`)"""
    entropy: float = 0.005
    """Weight of the entropy, which keeps the policy exploring. (`ent_coef`)"""
    value_weight: float = 0.5
    """Weight of the value loss. (`vf_coef`)"""
    max_grad_norm: float = 0.5
    """Largest norm of a gradient; longer gradients are clipped."""
    target_kl: float = 0.02
    """Bound on the KL divergence of an update: it ends early when the policy has moved 1.5 times as far;
    0 for no bound."""
    normalize_returns: bool = True
    """Divide rewards by the running deviation of returns. Rewards are not clipped."""
    lstm: bool = False
    """Make the first layer an LSTM."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function of the layers."""

    ALGORITHM: ClassVar[str] = "ppo"

    CHANGEABLE: ClassVar[frozenset[str]] = LearnerConfig.CHANGEABLE | {
        *("epochs", "minibatch_size", "anneal", "gae_lambda", "clip", "clip_value"),
        *("entropy", "value_weight", "target_kl"),
    }

    RANGES: ClassVar[dict[str, tuple[float, float | None]]] = {
        **LearnerConfig.RANGES,
        **dict.fromkeys(("horizon", "epochs"), (1, None)),
        **dict.fromkeys(("clip", "clip_value", "entropy", "value_weight", "target_kl"), (0, None)),
        "gae_lambda": (0, 1),
        "minibatch_size": (2, None),
    }

    USUAL_NAMES: ClassVar[dict[str, str]] = {
        **LearnerConfig.USUAL_NAMES,
        "anneal_lr": "anneal",
        "batch_size": "minibatch_size",
        "clip_coef": "clip",
        "clip_range": "clip",
        "clip_range_vf": "clip_value",
        "clip_vloss": "clip_value",
        "ent_coef": "entropy",
        "entropy_coef": "entropy",
        "n_epochs": "epochs",
        "n_steps": "horizon",
        "num_epochs": "epochs",
        "num_minibatches": "minibatch_size",
        "num_steps": "horizon",
        "update_epochs": "epochs",
        "value_coef": "value_weight",
        "vf_coef": "value_weight",
    }

    def horizon_of(self, rows: int) -> int:
        """Return the horizon for a number of rows."""
        if self.horizon is not None:
            return self.horizon
        enough = max(32, math.ceil(4 * self.minibatch_size / rows))
        return min(enough, self.minibatch_size) if self.lstm else enough  # minibatches are whole columns

    def settled(self, rows: int) -> Self:
        """Return the config with the horizon that it has for a number of rows."""
        return replace(self, horizon=self.horizon_of(rows))

    def check_rows(self, rows: int) -> None:
        """Check that a rollout of `rows` rows can be split into minibatches.

        Raises:
            ArgumentError: If `minibatch_size` is too large, or with an LSTM too small.
        """
        horizon = self.horizon_of(rows)
        samples = rows * horizon
        if self.minibatch_size > samples:
            raise ArgumentError(
                f"minibatch_size: expected at most {samples}, {rows} rows times a horizon of "
                f"{horizon}, got {self.minibatch_size}. Use a longer horizon, more envs or smaller "
                "minibatches"
            )
        if self.lstm and self.minibatch_size < horizon:
            raise ArgumentError(
                f"minibatch_size: expected at least the horizon with lstm=True, {horizon}, because "
                f"minibatches are whole columns, got {self.minibatch_size}"
            )
