"""Settings that all learners with a replay have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.errors import ArgumentError
from shoal.learn.configs.base import LearnerConfig


@dataclass(frozen=True)
class ReplayConfig(LearnerConfig):
    """Settings that all learners with a replay have."""

    num_envs: int = 8
    """Number of envs, if the learner makes them. (`n_envs`)"""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the layers."""
    replay_size: int = 1_000_000
    """Number of transitions to keep; then the oldest go. Memory is taken as they arrive. (`buffer_size`)"""
    batch_size: int = 256
    """Number of transitions in a gradient step."""
    warmup_steps: int = 1000
    """Number of transitions with random actions, before learning begins. (`learning_starts`)"""
    updates_per_step: float = 1.0
    """Number of gradient steps for each transition; 0.125 (or 1/8 on the command line) is one for eight
    transitions. It does not depend on the number of envs. (`gradient_steps` / `train_freq`)"""
    target_rate: float = 0.005
    """How far the target network moves towards the learning one; 1 copies it. (`tau`)"""
    target_every: int = 1
    """Number of gradient steps from one move of the target network to the next.
    (`target_update_interval`, `target_network_frequency`)"""
    n_step: int = 1
    """Number of steps whose rewards a target sums up, before it relies on a prediction."""
    prioritized: bool = False
    """Sample transitions more often that were predicted badly."""
    priority_exponent: float = 0.6
    """How much priorities depend on errors, from 0 (all are equal) to 1. (`alpha`)"""
    priority_correction: float = 0.4
    """How much the loss corrects for priorities at first, from 0 to 1; it grows to 1 until the end.
    (`beta`)"""
    frame_stack: int = 0
    """Number of frames that an observation is a stack of, as in Atari: each frame is then stored once. 0 to
    store observations whole."""

    CHANGEABLE: ClassVar[frozenset[str]] = LearnerConfig.CHANGEABLE | {
        *("batch_size", "updates_per_step", "target_rate", "target_every", "n_step"),
        *("priority_exponent", "priority_correction"),
    }

    RANGES: ClassVar[dict[str, tuple[float, float | None]]] = {
        **LearnerConfig.RANGES,
        **dict.fromkeys(("batch_size", "replay_size", "target_every", "n_step"), (1, None)),
        **dict.fromkeys(("warmup_steps", "updates_per_step", "frame_stack"), (0, None)),
        **dict.fromkeys(("target_rate", "priority_exponent", "priority_correction"), (0, 1)),
    }

    USUAL_NAMES: ClassVar[dict[str, str]] = {
        **LearnerConfig.USUAL_NAMES,
        "alpha": "priority_exponent",
        "beta": "priority_correction",
        "buffer_size": "replay_size",
        "gradient_steps": "updates_per_step",
        "learning_starts": "warmup_steps",
        "n_steps": "n_step",
        "target_network_frequency": "target_every",
        "target_update_interval": "target_every",
        "tau": "target_rate",
        "train_freq": "updates_per_step",
        "train_frequency": "updates_per_step",
        "utd": "updates_per_step",
        "warmup": "warmup_steps",
    }

    def check_rows(self, rows: int) -> None:
        """Check that the replay is large enough, and that something is learnt.

        Raises:
            ArgumentError: If it is not.
        """
        if self.updates_per_step and self.warmup_steps >= self.total_steps:
            raise ArgumentError(
                f"warmup_steps: expected less than total_steps, {self.total_steps:,}, got "
                f"{self.warmup_steps:,}: nothing would be learnt"
            )
        least = max(self.batch_size, 2 * rows, (self.n_step + 1) * rows)
        if self.replay_size < least:
            raise ArgumentError(
                f"replay_size: expected at least {least:,} (a batch of {self.batch_size:,}, and {rows} rows "
                f"times {max(2, self.n_step + 1)}), got {self.replay_size:,}"
            )
