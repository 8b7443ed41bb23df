"""The game as compiled envs: `Hockey` with two agents, `HockeyOne` with one agent and a bot."""

# Compiled functions have no annotations, and spaces are functions of the constants.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.hockey.drawing import draw_state
from shoal.hockey.physics import WORKSPACE
from shoal.hockey.rules import (
    AGENT,
    INFOS,
    NONE,
    NORMAL,
    STATE,
    STRONG,
    begin,
    bot,
    draw,
    observe,
    play,
    reward_of,
)
from shoal.native import NativeEnv

PARAMETERS = {
    "mode_normal": 1.0,
    "mode_shooting": 0.0,
    "mode_defense": 0.0,
    "opponent_none": 0.0,
    "opponent_weak": 0.0,
    "opponent_strong": 0.0,
    "opponent_agent": 0.0,
    "start": -1,
    "reward_win": 10.0,
    "reward_closeness": 1.0,
    "reward_touch": 0.0,
    "reward_direction": 0.0,
}
MOST = 1e9
BOUNDS = {
    **{name: (0.0, MOST) for name in PARAMETERS if name.startswith(("mode", "opponent"))},
    "start": (-1, 1),
    **{name: (-MOST, MOST) for name in PARAMETERS if name.startswith("reward")},
}


def _mode(rng, config):
    return draw(rng, config.mode_normal, config.mode_shooting, config.mode_defense, 0.0)


def _opponent(rng, config):
    return draw(
        rng, config.opponent_none, config.opponent_weak, config.opponent_strong, config.opponent_agent
    )


def _act(state, player, rng, kind, w):
    """Write the action of a player that no agent plays for."""
    if kind == NONE:
        w.actions[player, :] = 0.0
    else:
        bot(state, player, rng, kind == STRONG, w.actions[player])


class _Game(NativeEnv):
    """What both envs have in common."""

    state = STATE
    infos = INFOS
    workspace = WORKSPACE
    constants = {"keep_mode": True}
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the table as player one sees it."""
        return draw_state(state)


def _observation_space(config) -> Box:
    return Box(-np.inf, np.inf, (18 if config.keep_mode else 16,), np.float32)


def _action_space(config) -> Box:
    return Box(-1.0, 1.0, (4 if config.keep_mode else 3,), np.float32)


class HockeyOne(_Game):
    """One agent against nobody or a bot. It is player one, unless the setting `side` makes it player two."""

    observation_space = _observation_space
    action_space = _action_space
    parameters = {**PARAMETERS, "opponent_weak": 1.0, "played_by": 0, "side": 0}
    bounds = {**BOUNDS, "played_by": (0, 2), "side": (-1, 1), "opponent_agent": (0.0, 0.0)}

    @staticmethod
    def reset(state, rng, obs, config):
        mode = _mode(rng, config)
        opponent = _opponent(rng, config)
        begin(state, rng, mode, opponent, config.start)
        state.own_player = 0
        if mode == NORMAL and config.side != 0 and (config.side > 0 or rng.uniform() < 0.5):
            state.own_player = 1
        observe(state, state.own_player, config.keep_mode, obs)

    @staticmethod
    def step(state, action, rng, obs, config, info, workspace):
        own = state.own_player
        if config.played_by == 0:
            for i in range(len(action)):
                workspace.actions[own, i] = action[i]
        else:
            _act(state, own, rng, config.played_by, workspace)
        _act(state, 1 - own, rng, state.opponent, workspace)
        late = play(state, workspace, config.keep_mode)
        observe(state, own, config.keep_mode, obs)
        reward = reward_of(state, own, config, info)
        return reward, state.winner != 0, late and state.winner == 0


class Hockey(_Game):
    """Two agents. In games that a bot plays, player two is masked."""

    observation_space = _observation_space
    action_space = _action_space
    num_agents = 2
    parameters = {**PARAMETERS, "opponent_agent": 1.0}
    bounds = BOUNDS

    @staticmethod
    def reset(state, rng, obs, alive, config):
        mode = _mode(rng, config)
        opponent = _opponent(rng, config)
        begin(state, rng, mode, opponent, config.start)
        alive[1] = opponent == AGENT
        for player in range(2):
            observe(state, player, config.keep_mode, obs[player])

    @staticmethod
    def step(state, actions, rng, obs, rewards, terminated, alive, config, infos, workspace):
        for player in range(2):
            for i in range(len(actions[player])):
                workspace.actions[player, i] = actions[player, i]
        if state.opponent != AGENT:
            _act(state, 1, rng, state.opponent, workspace)
        late = play(state, workspace, config.keep_mode)
        for player in range(2):
            observe(state, player, config.keep_mode, obs[player])
            reward = reward_of(state, player, config, infos[player])
            if player == 0 or state.opponent == AGENT:
                rewards[player] = reward
                terminated[player] = state.winner != 0
                if late:
                    alive[player] = False
