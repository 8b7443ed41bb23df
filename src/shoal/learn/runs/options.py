"""Settings of a run that do not change what is learnt."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import ArgumentError


@dataclass(frozen=True)
class RunOptions:
    """Settings of a run that do not change what is learnt."""

    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints. One is also written after the first update and at the end."""
    eval_every: int = 0
    """Number of steps between two evaluations with the likeliest actions, on envs of their own; 0 for none.
    The policy with the largest mean return is kept."""
    eval_episodes: int = 20
    """Number of episodes of an evaluation."""

    def __post_init__(self) -> None:
        for name, least in (("checkpoint_seconds", 0), ("eval_every", 0), ("eval_episodes", 1)):
            if not getattr(self, name) >= least:
                raise ArgumentError(f"{name}: expected at least {least}, got {getattr(self, name)!r}")
