"""Reports of a learner: one after each update, one at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Update:
    """Progress of training after an update."""

    steps: int
    """Number of transitions so far."""
    total_steps: int
    """Number of transitions at the end of training."""
    updates: int
    """Number of updates so far."""
    seconds: float
    """Seconds of training so far, including those before a resume."""
    steps_per_second: float
    """Transitions per second in this update."""
    episodes: int
    """Number of finished episodes so far."""
    mean_return: float
    """Mean return of the last 100 episodes; NaN if none has finished."""
    mean_length: float
    """Mean length of the last 100 episodes; NaN if none has finished."""
    learning_rate: float
    """Learning rate of this update."""
    losses: dict[str, float]
    """Figures by name: policy, value, entropy, approx_kl, clip_fraction, explained_variance, grad_norm."""
    split: dict[str, float] = field(default_factory=dict)
    """Seconds of this update by hop: wait, act, store, send, learn."""
    passes: float = math.nan
    """Passes over the rollout; fewer than `epochs` if `target_kl` ended the update."""
    learning_threads: int = 1
    """Number of threads while learning: torch's, or those of the LSTM if they are more."""
    learning_cpu: float = math.nan
    """CPU seconds of this process per second of learning."""
    evaluation: float = math.nan
    """Mean return of the last evaluation; NaN if there was none. A run adds it."""


@dataclass(frozen=True)
class Result:
    """Result of training."""

    steps: int
    """Number of transitions."""
    updates: int
    """Number of updates."""
    episodes: int
    """Number of finished episodes."""
    seconds: float
    """Seconds of training, including those before a resume."""
    mean_return: float
    """Mean return of the last 100 episodes; NaN if none has finished."""
    stopped: bool
    """Whether training was stopped before `total_steps`."""
