"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.errors import ArgumentTypeError
from shoal.learn.configs.replay import ReplayConfig


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN. The defaults suit small envs.

    Where the usual name of a setting is another, it is given in brackets.
    """

    double: bool = True
    """Choose the next action by the learning network, and judge it by the target network."""
    dueling: bool = True
    """Predict the value of an observation and the advantages of actions apart."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of an error: its square, or with huber its size where it is larger than 1."""
    epsilon_start: float = 1.0
    """Chance of a random action at first. (`start_e`, `exploration_initial_eps`)"""
    epsilon_end: float = 0.05
    """Chance of a random action at last. (`end_e`, `exploration_final_eps`)"""
    exploration: float = 0.1
    """Part of all steps in which epsilon falls, linearly. (`exploration_fraction`)"""
    epsilon_decay: float | None = None
    """Factor of epsilon at the end of each episode; epsilon then does not depend on steps. By default it
    does, and falls linearly."""
    action_table: tuple[tuple[float, ...], ...] = ()
    """Actions to choose among, where an env has continuous ones: a tuple of numbers for each action."""

    ALGORITHM: ClassVar[str] = "dqn"

    CHANGEABLE: ClassVar[frozenset[str]] = ReplayConfig.CHANGEABLE | {
        *("double", "loss", "epsilon_start", "epsilon_end", "exploration", "epsilon_decay"),
    }

    RANGES: ClassVar[dict[str, tuple[float, float | None]]] = {
        **ReplayConfig.RANGES,
        **dict.fromkeys(("epsilon_start", "epsilon_end", "exploration", "epsilon_decay"), (0, 1)),
    }

    USUAL_NAMES: ClassVar[dict[str, str]] = {
        **ReplayConfig.USUAL_NAMES,
        "end_e": "epsilon_end",
        "epsilon": "epsilon_start",
        "exploration_final_eps": "epsilon_end",
        "exploration_fraction": "exploration",
        "exploration_initial_eps": "epsilon_start",
        "start_e": "epsilon_start",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("loss", "huber", "squared")
        try:
            table = tuple(tuple(map(float, line)) for line in self.action_table)
        except (TypeError, ValueError):
            raise ArgumentTypeError(
                f"action_table: expected lines of numbers, got {self.action_table!r}"
            ) from None
        object.__setattr__(self, "action_table", table)

    def epsilon_at(self, steps: int, episodes: int) -> float:
        """Return the chance of a random action after a number of transitions and finished episodes."""
        if self.epsilon_decay is not None:
            return max(self.epsilon_end, self.epsilon_start * self.epsilon_decay**episodes)
        part = min(1.0, steps / max(1.0, self.exploration * self.total_steps))
        return self.epsilon_start + part * (self.epsilon_end - self.epsilon_start)
