"""The curriculum of a run: which phase, opponents and rewards hold for each game.

    batch --(games that ended)--> GameResult, and settings of the next games --> parameters of the envs

A game keeps the mode, opponent and rewards that it began with. So a phase begins in each env with its next
game: no env is made anew, and no transition is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.batch import Batch
from shoal.hockey.settings import change
from shoal.hockey.training.config import Phase
from shoal.vector.vec import VectorEnv

WIN = 10.0  # the original game's reward for a goal


@dataclass(frozen=True)
class GameResult:
    """A game that has ended."""

    number: int
    """1 for the first game of the run."""
    phase: int
    """Index of the phase that the game counts for."""
    score: float
    """Sum of the rewards of the original game: without shaping, and not scaled."""
    winner: int
    """1 if the agent has won, -1 if it has lost, 0 for a draw."""
    steps: int
    """Number of steps."""


class Curriculum:
    """The director of a run's games. Let `Learner.watch` call it.

    Args:
        vec: Vec of `HockeyOne`.
        phases: Phases, one after another.
        reward_scale: Factor of all rewards.
        games: Number of games that have ended before, if the run was resumed.
        goes_on: Whether the games under way go on with the rewards that they have.
        begin_phase: Function that sets the opponents of the games of a phase; by default they are bots, which
            the engine plays.
        on_game: Function to call with each game that has ended.
        on_phase: Function to call with the index of a phase when it begins, but not for the first one.

    Attributes:
        games: Number of games that have ended.
    """

    def __init__(
        self,
        vec: VectorEnv,
        phases: Sequence[Phase],
        reward_scale: float,
        games: int = 0,
        *,
        goes_on: bool = False,
        begin_phase: Callable[[Phase], None] | None = None,
        on_game: Callable[[GameResult], None],
        on_phase: Callable[[int], None],
    ) -> None:
        self._vec, self._phases, self._scale = vec, phases, reward_scale
        self._on_game, self._on_phase, self._begin = on_game, on_phase, begin_phase
        self.games = games
        self._ends = np.cumsum([phase.episodes for phase in phases])
        self._weights = {
            name: np.array(vec.get_attr(f"reward_{name}"), np.float64)
            for name in ("win", "closeness", "touch", "direction")
        }
        self._phase = self.phase
        self._set_games(self._phase)
        if not goes_on:
            self._set_rewards(np.arange(vec.num_envs))

    @property
    def is_done(self) -> bool:
        """Whether all games of all phases have ended."""
        return self.games >= int(self._ends[-1])

    @property
    def phase(self) -> int:
        """Index of the phase that the next game counts for; of the last one when all have ended."""
        return min(int(np.searchsorted(self._ends, self.games, "right")), len(self._phases) - 1)

    @property
    def games_of_phase(self) -> int:
        """Number of games of the phase that have ended."""
        return self.games - int(self._ends[self.phase]) + self._phases[self.phase].episodes

    def __call__(self, batch: Batch) -> None:
        """Note the games that have ended in a batch, and choose settings for the next ones."""
        ended = batch.env_ids[batch.terminations | batch.truncations]
        if not len(ended):
            return
        state = {name: self._vec.get_attr(name) for name in ("own_player", "winner", "returns", "time")}
        for env in ended.tolist():
            if self.is_done:  # games of other envs that have ended in the same step
                return
            phase, side = self.phase, int(state["own_player"][env])
            self.games += 1
            self._on_game(
                GameResult(
                    self.games,
                    phase,
                    float(state["returns"][env][side]),
                    int(state["winner"][env]) * (1 - 2 * side),
                    int(state["time"][env]),
                )
            )
        if self.phase != self._phase:
            self._phase = self.phase
            self._set_games(self._phase)
            self._on_phase(self._phase)
        self._set_rewards(ended)

    def _set_games(self, index: int) -> None:
        """Set modes and opponents of the games that begin from now on."""
        phase = self._phases[index]
        change(self._vec, mode=phase.modes)
        if self._begin is None:
            change(self._vec, opponent=phase.opponents)
        else:
            self._begin(phase)

    def _set_rewards(self, envs: NDArray[Any]) -> None:
        """Set the rewards of the next game of some envs."""
        shaping = self._phases[self._phase].shaping
        extra = {} if shaping is None else shaping.weights(self.games_of_phase)
        new = {
            "win": WIN,
            "closeness": 1.0 + extra.get("closeness", 0.0),
            "touch": extra.get("touch", 0.0),
            "direction": extra.get("direction", 0.0),
        }
        changed = {}
        for name, weight in new.items():
            if (self._weights[name][envs] != self._scale * weight).any():
                self._weights[name][envs] = self._scale * weight
                changed[name] = self._weights[name]
        if changed:
            change(self._vec, **changed)
