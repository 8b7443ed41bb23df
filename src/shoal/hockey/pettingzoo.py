"""The game of two players as a parallel env of PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.errors import ActionPartMissing, EpisodeOver, MissingExtra
from shoal.hockey.course import HockeyEnv
from shoal.hockey.opponents import action_of
from shoal.hockey.settings import Mode
from shoal.hockey.table import FPS

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f'shoal.hockey.pettingzoo needs PettingZoo ({missing}). Install it: pip install "shoal[pettingzoo]"'
    ) from missing

PLAYERS = ("player_1", "player_2")


def parallel_env(
    *,
    keep_mode: bool = True,
    mode: Mode | str | int = Mode.NORMAL,
    render_mode: str | None = None,
    debug: bool = False,
) -> ParallelHockey:
    """Make the game with the agents ``"player_1"`` and ``"player_2"``.

    For speed, use ``shoal.make("shoal/Hockey-v0", num_envs=...)``.

    Args:
        keep_mode: As for `HockeyEnv`.
        mode: As for `HockeyEnv`.
        render_mode: As for `HockeyEnv`.
        debug: As for `HockeyEnv`.

    Example:
        >>> from shoal.hockey.pettingzoo import parallel_env
        >>> env = parallel_env()
        >>> obs, infos = env.reset(seed=0)
        >>> actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        >>> obs, rewards, terminations, truncations, infos = env.step(actions)
        >>> sorted(rewards), obs["player_2"].shape
        (['player_1', 'player_2'], (18,))
    """
    return ParallelHockey(HockeyEnv(keep_mode, mode, render_mode=render_mode, debug=debug))


class ParallelHockey(ParallelEnv[str, NDArray[np.float32], Any]):  # type: ignore[misc, unused-ignore]
    """A `HockeyEnv` whose players are agents of their own.

    Args:
        game: The env.
    """

    metadata = {"name": "hockey_v0", "render_modes": ["human", "rgb_array"], "render_fps": FPS}

    def __init__(self, game: HockeyEnv) -> None:
        self.game, self.render_mode = game, game.render_mode
        self.possible_agents, self.agents = list(PLAYERS), list[str]()
        seen, actions = game.observation_space.shape, (game.num_actions,)
        self.observation_spaces = {agent: Box(-np.inf, np.inf, seen, np.float32) for agent in PLAYERS}
        self.action_spaces = {agent: Box(-1.0, 1.0, actions, np.float32) for agent in PLAYERS}

    def observation_space(self, agent: str) -> Box:
        """Return the observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Box:
        """Return the action space of an agent."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Begin a game.

        Args:
            seed: The seed of this game and of all games after it.
            options: ``one_starting`` and ``mode`` of `HockeyEnv.reset`. Others are ignored.
        """
        known = {name: value for name, value in (options or {}).items() if name in ("one_starting", "mode")}
        obs, info = self.game.reset(seed=seed, options=known)
        self.agents = list(PLAYERS)
        return self._of_both(obs), {PLAYERS[0]: info, PLAYERS[1]: self.game.get_info_agent_two()}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, NDArray[np.float32]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Do one step with the actions of both agents.

        Raises:
            ActionPartMissing: If an action is missing. Nothing has moved then.
            ActionError: If an action has a wrong shape or a NaN. Nothing has moved then.
            EpisodeOver: If the game is over and there are actions.
        """
        if not self.agents:
            if actions:
                raise EpisodeOver("actions: expected none, because the game is over: call reset() first")
            return {}, {}, {}, {}, {}
        for agent in PLAYERS:
            if agent not in actions:
                raise ActionPartMissing(f"actions: expected one of {agent!r} too, got {sorted(actions)}")
        both = np.hstack([action_of(actions[agent], self.game.num_actions) for agent in PLAYERS])
        obs, reward, terminated, truncated, info = self.game.step(both)
        if terminated or truncated:
            self.agents = []
        info_two = self.game.get_info_agent_two()
        return (
            self._of_both(obs),
            {PLAYERS[0]: reward, PLAYERS[1]: self.game.get_reward_agent_two(info_two)},
            dict.fromkeys(PLAYERS, terminated),
            dict.fromkeys(PLAYERS, truncated),
            {PLAYERS[0]: info, PLAYERS[1]: info_two},
        )

    def _of_both(self, obs: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
        both = obs, self.game.obs_agent_two()
        return {agent: seen.astype(np.float32) for agent, seen in zip(PLAYERS, both, strict=True)}

    def render(self) -> Any:
        """Draw the table; see `HockeyEnv.render`."""
        return self.game.render()

    def close(self) -> None:
        """Close the game."""
        self.game.close()
