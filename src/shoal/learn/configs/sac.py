"""Settings of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.learn.configs.replay import ReplayConfig


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Settings of SAC. The defaults suit small envs.

    Where the usual name of a setting is another, it is given in brackets.
    """

    temperature: float | None = None
    """Weight of the entropy; by default it is learnt, so that the entropy is `target_entropy`. (`alpha`,
    `ent_coef`)"""
    target_entropy: float | None = None
    """Entropy to aim for, if the temperature is learnt; by default minus the number of numbers in an
    action."""
    noise: Literal["white", "pink", "red"] = "white"
    """Noise of actions while exploring: white is independent from step to step; pink and red change slowly.
    Each row has its own."""
    noise_steps: int = 1000
    """Number of steps that pink and red noise is made for at once: about the length of an episode."""

    ALGORITHM: ClassVar[str] = "sac"

    CHANGEABLE: ClassVar[frozenset[str]] = ReplayConfig.CHANGEABLE | {"target_entropy"}

    RANGES: ClassVar[dict[str, tuple[float, float | None]]] = {
        **ReplayConfig.RANGES,
        "temperature": (0, None),
        "noise_steps": (2, None),
    }

    USUAL_NAMES: ClassVar[dict[str, str]] = {
        **ReplayConfig.USUAL_NAMES,
        "alpha": "temperature",
        "ent_coef": "temperature",
        "policy_lr": "learning_rate",
        "q_lr": "learning_rate",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("noise", "white", "pink", "red")
