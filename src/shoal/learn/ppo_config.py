"""Settings of PPO."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.policy import ACTIVATIONS
from shoal.learn.presets import preset_for

# The names that CleanRL, Stable-Baselines3 and others give to settings, and ours.
USUAL_NAMES = {
    "anneal_lr": "anneal",
    "batch_size": "minibatch_size",
    "clip_coef": "clip",
    "clip_range": "clip",
    "clip_range_vf": "clip_value",
    "clip_vloss": "clip_value",
    "ent_coef": "entropy",
    "entropy_coef": "entropy",
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "n_epochs": "epochs",
    "n_steps": "horizon",
    "num_epochs": "epochs",
    "num_minibatches": "minibatch_size",
    "num_steps": "horizon",
    "total_timesteps": "total_steps",
    "update_epochs": "epochs",
    "value_coef": "value_weight",
    "vf_coef": "value_weight",
}


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO. The defaults suit small envs that are fast to step.

    Where the usual name of a setting is another, it is given in brackets.
    """

    total_steps: int = 100_000
    """Number of transitions to learn from. Steps that reset an env do not count. (`total_timesteps`)"""
    seed: int = 1
    """Seed of weights, actions, minibatches and envs. The same seed gives the same result."""
    num_envs: int = 64
    """Number of envs, if the learner makes them. (`n_envs`)"""
    backend: Literal["auto", "serial", "multiprocessing", "native"] = "auto"
    """Backend of the envs, as in `shoal.make`. For a few fast envs in Python, serial is fastest."""
    num_workers: int | None = None
    """Number of processes or threads that step the envs; by default one for each core."""
    mode: Literal["sync", "overlap", "async"] = "sync"
    """sync: step, then learn. overlap: learn from one rollout while the previous policy collects the next;
    reproducible. async: take rows as they arrive, so that the learner does not wait for the slowest env."""
    horizon: int | None = None
    """Number of steps of each row in a rollout; by default enough for four minibatches, and at least 32.
    (`num_steps`, `n_steps`)"""
    epochs: int = 8
    """Number of passes over each rollout. (`update_epochs`, `n_epochs`)"""
    minibatch_size: int = 512
    """Number of transitions in a gradient step. The number of gradient steps per transition does not
    depend on the number of envs. (`batch_size`)"""
    learning_rate: float = 2.5e-3
    """Learning rate of Adam at the beginning. (`lr`)"""
    anneal: bool = True
    """Decrease the learning rate linearly to 0. (`anneal_lr`)"""
    gamma: float = 0.99
    """Discount of future rewards."""
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
    normalize_observations: bool = True
    """Normalise vectors in observations to mean 0 and deviation 1. Both are saved with the policy."""
    normalize_returns: bool = True
    """Divide rewards by the running deviation of returns. Rewards are not clipped."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers."""
    lstm: bool = False
    """Make the first layer an LSTM."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function of the layers."""
    device: str = "cpu"
    """Torch device to learn on."""
    timeout: float | None = None
    """Seconds that a worker process may take for a step before it counts as hanging; by default no limit.
    With a timeout, the envs run in worker processes."""
    on_error: Literal["raise", "restart"] = "raise"
    """Reaction to a worker process that dies or hangs, or to an env that raises. raise: training ends.
    restart: a new process takes the place of the old one, and its envs begin new episodes."""
    torch_threads: int | None = None
    """Number of torch threads. By default one for each core if a batch is large enough and no process that
    steps envs needs the cores, else 1."""

    CHANGEABLE: ClassVar[frozenset[str]] = frozenset(
        (
            *("total_steps", "epochs", "minibatch_size", "learning_rate", "anneal", "gamma", "gae_lambda"),
            *("clip", "clip_value", "entropy", "value_weight", "max_grad_norm", "target_kl"),
            *("timeout", "on_error", "torch_threads"),
        )
    )
    """Settings that may change when a run is resumed. The others shape the networks, the envs or what is
    already stored."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, low, high in (
            *((name, 1, None) for name in ("total_steps", "num_envs", "horizon", "epochs")),
            *((name, 0, 1) for name in ("gamma", "gae_lambda")),
            *((name, 0, None) for name in ("learning_rate", "clip", "clip_value", "entropy", "value_weight")),
            *((name, 0, None) for name in ("max_grad_norm", "target_kl")),
            ("minibatch_size", 2, None),
            ("seed", 0, 2**62),
            ("torch_threads", 1, None),
            ("num_workers", 1, None),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not value >= low or (high is not None and value > high):
                most = "" if high is None else f" and at most {high}"
                raise ArgumentError(f"{name}: expected at least {low}{most}, got {value!r}")
        if self.mode not in ("sync", "overlap", "async"):
            raise ArgumentError(f"mode: expected 'sync', 'overlap' or 'async', got {self.mode!r}")
        if self.on_error not in ("raise", "restart"):
            raise ArgumentError(f"on_error: expected 'raise' or 'restart', got {self.on_error!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ArgumentError(f"timeout: expected more than 0 seconds, got {self.timeout!r}")
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(f"activation: expected one of {sorted(ACTIVATIONS)}, got {self.activation!r}")

    def _check_types(self) -> None:
        """Check the types of fields, and convert values: 1e5 to 100_000, a list of widths to a tuple."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" or (one.type == "int | None" and value is not None):
                good = _is_number(value) and float(value) % 1 == 0
                wanted, value = "a whole number", int(value) if good else value
            elif one.type == "float" or (one.type == "float | None" and value is not None):
                good, wanted = _is_number(value), "a number"
                value = float(value) if good else value
            elif one.type == "bool":
                good, wanted = isinstance(value, (bool, np.bool_)), "True or False"
                value = bool(value) if good else value
            elif one.name == "hidden":
                good = isinstance(value, (tuple, list)) and all(isinstance(n, int) and n > 0 for n in value)
                wanted, value = "widths, such as (64, 64)", tuple(value) if good else value
            else:
                continue
            if not good:
                raise ArgumentTypeError(f"{one.name}: expected {wanted}, got {value!r}")
            object.__setattr__(self, one.name, value)

    def horizon_of(self, rows: int) -> int:
        """Return the horizon for a number of rows."""
        if self.horizon is not None:
            return self.horizon
        enough = max(32, math.ceil(4 * self.minibatch_size / rows))
        return min(enough, self.minibatch_size) if self.lstm else enough  # minibatches are whole columns

    def settled(self, rows: int) -> Self:
        """Return the config with the horizon that it has for a number of rows."""
        return replace(self, horizon=self.horizon_of(rows))

    @classmethod
    def for_env(cls, env: str, **settings: Any) -> Self:
        """Make a config from the preset of an env, if it has one, with `settings` instead of the preset's."""
        return cls.of({**preset_for(env)[1], **settings})

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Make a config from a dict, such as the one in ``config.json``.

        Raises:
            ArgumentError: If a key is not the name of a field.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                near = USUAL_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), "")
                hint = f": did you mean {near}?" if near else ""
                raise ArgumentError(f"{name}: PPO has no such setting{hint}")
        return cls(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
