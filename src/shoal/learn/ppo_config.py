"""What PPO can be told."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.encoder import ACTIVATIONS
from shoal.learn.presets import preset_for


@dataclass(frozen=True)
class PPOConfig:
    """How PPO learns. The defaults suit small envs that are fast to step."""

    total_steps: int = 100_000
    """Transitions to learn from; steps in which an env is reset are not counted."""
    seed: int = 1
    """Of weights, actions, minibatches and envs: the same seed gives the same result."""
    num_envs: int = 64
    """Envs side by side, if the learner makes them."""
    backend: Literal["auto", "serial", "multiprocessing", "native"] = "auto"
    """Where they are stepped, as in `shoal.make`. A few quick envs in Python are quickest in this process:
    serial."""
    num_workers: int | None = None
    """Processes or threads that step them; by default one for each core."""
    mode: Literal["sync", "overlap", "async"] = "sync"
    """sync: step, then learn. overlap: learn from one rollout while the policy before makes the next; it
    reproduces itself. async: rows are taken as they arrive, so that nobody waits for the slowest env."""
    horizon: int | None = None
    """Steps of each row in a rollout; by default as many as make four minibatches, and at least 32."""
    epochs: int = 8
    """Passes over each rollout."""
    minibatch_size: int = 512
    """Transitions to a gradient step. How often a transition is learnt from, and how many gradient steps that
    takes, does not depend on the number of envs."""
    learning_rate: float = 2.5e-3
    """Of Adam, at the beginning."""
    anneal: bool = True
    """Let the learning rate fall to 0, in a straight line."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 one step, 1 to the end."""
    clip: float = 0.2
    """How far probabilities may move in an update."""
    clip_value: float = 0.0
    """How far values may move in an update; 0: as far as they like."""
    entropy: float = 0.005
    """Weight of the entropy, which keeps a policy from settling early."""
    value_weight: float = 0.5
    """Weight of the error of values."""
    max_grad_norm: float = 0.5
    """Longer gradients are cut to this length."""
    target_kl: float = 0.0
    """End an update early if the policy has moved 1.5 times as far as this; 0: never."""
    normalize_observations: bool = True
    """Bring vectors in observations to mean 0 and deviation 1. The scale is saved with the policy."""
    normalize_returns: bool = True
    """Divide rewards by the deviation of returns, as seen so far. They are not cut off."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers."""
    lstm: bool = False
    """Let the first layer be an LSTM."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Of the layers."""
    device: str = "cpu"
    """Where to learn."""
    torch_threads: int | None = None
    """Threads of torch. By default one for each core where a batch is worth sharing and nobody else needs the
    cores, and else 1."""

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
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(f"activation: expected one of {sorted(ACTIVATIONS)}, got {self.activation!r}")

    def _check_types(self) -> None:
        """Of numbers, and of widths, which may be any sequence; 1e5 is as good as 100_000."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" or (one.type == "int | None" and value is not None):
                good = _is_number(value) and float(value) % 1 == 0
                wanted, value = "a whole number", int(value) if good else value
            elif one.type == "float":
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
        """The horizon with so many rows."""
        if self.horizon is not None:
            return self.horizon
        enough = max(32, math.ceil(4 * self.minibatch_size / rows))
        return min(enough, self.minibatch_size) if self.lstm else enough  # whole columns make minibatches

    @classmethod
    def for_env(cls, env: str, **settings: Any) -> Self:
        """The preset for an env, if there is one, with some settings of your own."""
        return cls.of({**preset_for(env)[1], **settings})

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From a dict, as in ``config.json``.

        Raises:
            ArgumentError: If a key is not the name of a field.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f": did you mean {near[0]}?" if near else ""
                raise ArgumentError(f"{name}: PPO has no such setting{hint}")
        return cls(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
