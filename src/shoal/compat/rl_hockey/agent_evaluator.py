"""Evaluation of a saved agent, in the form of rl_hockey."""

from __future__ import annotations

import os
from typing import Any

from shoal.hockey.evaluation import play_bot
from shoal.hockey.players import load_policy
from shoal.hockey.training.train import device_of


def evaluate_agent(
    agent_path: str | os.PathLike[str],
    config_path: str | os.PathLike[str] | None = None,
    agent_config_dict: dict[str, Any] | None = None,
    num_games: int = 100,
    weak_opponent: bool = True,
    max_steps: int = 250,
    num_parallel: int | None = None,
    device: str | int | None = None,
) -> dict[str, Any]:
    """Play games with a saved agent against a bot, half of them on each side.

    Args:
        agent_path: The file of the agent, or the folder of its run.
        config_path: Not needed: the file of an agent describes it.
        agent_config_dict: Not needed, likewise.
        num_games: Number of games.
        weak_opponent: Whether to play against the weak bot; otherwise against the strong one.
        max_steps: Number of steps after which a game is cut off. A game ends after 251 steps anyway; the
            default of 250 counts them as the original does, from 0.
        num_parallel: Not needed: all games are played at once.
        device: See `shoal.hockey.train_run`.

    Returns:
        ``wins``, ``losses``, ``draws``, ``win_rate`` (a draw is not a win), ``mean_reward``, ``std_reward``,
        ``num_games``, ``weak_opponent``, ``all_rewards`` and ``all_winners``.

    Raises:
        ArgumentError: If there is no such agent, if it does not play hockey, or if an argument is wrong.
        RunError: If its file is damaged.
    """
    policy = load_policy(os.fspath(agent_path)).to(device_of(device))
    opponent = "weak" if weak_opponent else "strong"
    found = play_bot(policy, opponent, num_games, max_steps=max_steps + 1)
    return {
        "wins": found.wins,
        "losses": found.losses,
        "draws": found.draws,
        "win_rate": found.win_rate,
        "mean_reward": float(found.rewards.mean()),
        "std_reward": float(found.rewards.std()),
        "num_games": found.games,
        "weak_opponent": weak_opponent,
        "all_rewards": found.rewards.tolist(),
        "all_winners": found.winners.tolist(),
    }
