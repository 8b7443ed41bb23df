"""Evaluation of a policy: many games at once against a bot, on both sides of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.hockey.envs import HockeyOne
from shoal.hockey.settings import mode_of, settings
from shoal.vector.native import Native

MOST_ENVS = 256
LONGEST_GAME = 251  # steps


@dataclass(frozen=True)
class Score:
    """Results of games."""

    winners: NDArray[np.int64]
    """Of each game: 1 if the policy has won, -1 if it has lost, 0 for a draw."""
    rewards: NDArray[np.float64]
    """Of each game: the sum of the rewards of the original game."""
    steps: NDArray[np.int64]
    """Of each game: the number of steps."""

    @property
    def games(self) -> int:
        """Number of games."""
        return len(self.winners)

    @property
    def wins(self) -> int:
        """Number of games won."""
        return int((self.winners == 1).sum())

    @property
    def losses(self) -> int:
        """Number of games lost."""
        return int((self.winners == -1).sum())

    @property
    def draws(self) -> int:
        """Number of games without a winner."""
        return self.games - self.wins - self.losses

    @property
    def win_rate(self) -> float:
        """Part of the games that were won. A draw is not a win."""
        return self.wins / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval that holds the win rate with a confidence of 95 %."""
        z, n, p = 1.96, self.games, self.win_rate
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))

    def __str__(self) -> str:
        """Return win rate, interval and counts in one line."""
        low, high = self.interval
        return (
            f"win rate {self.win_rate:.3f} ({low:.3f} to {high:.3f}), {self.wins} won, {self.draws} drawn, "
            f"{self.losses} lost"
        )


def play_bot(
    policy: Any,
    opponent: str = "weak",
    games: int = 200,
    *,
    seed: int = 0,
    deterministic: bool = True,
    mode: Any = "NORMAL",
    max_steps: int | None = None,
) -> Score:
    """Play games against a bot, all at once. Half of them are played on each side.

    Every env plays the same number of games, or one more: counting the games that end first would favour
    short ones.

    Args:
        policy: Policy to evaluate, of `shoal.learn.load` or a learner.
        opponent: ``"weak"``, ``"strong"`` or ``"none"``.
        games: Number of games.
        seed: Seed of games and actions.
        deterministic: Whether to take the likeliest actions instead of drawing.
        mode: A `Mode`, its name or number. In the training modes all games are played on the left.
        max_steps: Number of steps after which a game is cut off, if that is before its end.

    Raises:
        ArgumentError: If an argument is not as described.

    Example:
        >>> import shoal
        >>> from shoal.hockey import play_bot
        >>> from shoal.learn import SACPolicy
        >>> with shoal.make("shoal/HockeyOne-v0", num_envs=1) as vec:
        ...     policy = SACPolicy(vec.observation_layout, vec.single_action_space)
        >>> play_bot(policy, "weak", games=8).games
        8
    """
    if games < 1:
        raise ArgumentError(f"games: expected at least 1, got {games}")
    if max_steps is not None and max_steps < 1:
        raise ArgumentError(f"max_steps: expected at least 1, got {max_steps}")
    import torch

    from shoal.learn.threads import use_torch_threads

    envs = min(games, MOST_ENVS)
    left = np.full(envs, games // envs)
    left[: games % envs] += 1
    both = {"side": np.arange(envs) % 2, "start": np.arange(envs) // 2 % 2}
    chosen = {**settings(mode=mode_of(mode), opponent=opponent), **both}
    if max_steps is not None and max_steps < LONGEST_GAME:
        chosen["max_episode_steps"] = max_steps
    random = torch.Generator(policy.device).manual_seed(seed)
    winners: list[int] = []
    rewards: list[float] = []
    steps: list[int] = []
    memory = policy.initial_state(envs)
    with (
        Native(HockeyOne, envs, env_kwargs=chosen, num_workers=1, flat=True, copy=False) as vec,
        use_torch_threads(1),
    ):
        vec.async_reset(seed=seed)
        while left.any():
            batch = vec.recv()
            ended = batch.terminations | batch.truncations
            if ended.any():
                state = {name: vec.get_attr(name) for name in ("own_player", "winner", "returns", "time")}
                for env in np.flatnonzero(ended & (left > 0)).tolist():
                    side = int(state["own_player"][env])
                    winners.append(int(state["winner"][env]) * (1 - 2 * side))
                    rewards.append(float(state["returns"][env][side]))
                    steps.append(int(state["time"][env]))
                    left[env] -= 1
            if memory is not None:
                memory[:, torch.from_numpy(batch.resets).to(memory.device)] = 0
            vec.send(policy.act_batch(batch.obs, deterministic, memory, generator=random))
        vec.recv()
    return Score(np.array(winners), np.array(rewards), np.array(steps))
