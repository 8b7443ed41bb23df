"""What a learner tells: after each update, and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Update:
    """How it stands after an update."""

    steps: int
    """Transitions so far."""
    total_steps: int
    updates: int
    seconds: float
    """Of training, those before a resume included."""
    steps_per_second: float
    """In this update."""
    episodes: int
    """Finished so far."""
    mean_return: float
    """Of the last 100 episodes; not a number if there are none."""
    mean_length: float
    learning_rate: float
    losses: dict[str, float]
    """policy, value, entropy, approx_kl, clip_fraction, explained_variance, grad_norm."""
    split: dict[str, float] = field(default_factory=dict)
    """Seconds of this update by hop: wait, act, store, send, learn."""


@dataclass(frozen=True)
class Result:
    """What came of training."""

    steps: int
    updates: int
    episodes: int
    seconds: float
    mean_return: float
    """Of the last 100 episodes."""
    stopped: bool
    """Whether somebody ended it early."""
