"""shoal/CartPole-v1: Gymnasium's CartPole, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.native import NativeEnv
from shoal.native.drawing import BLACK, BLUE, GREY, ORANGE, Canvas
from shoal.native.math import cos, sin

GRAVITY, LENGTH, FORCE, TAU = 9.8, 0.5, 10.0, 0.02  # LENGTH is half the length of the pole
POLE_MASS, TOTAL_MASS = 0.1, 1.1
PER_MASS = 1 / TOTAL_MASS  # multiplied with, because a division takes several times as long
POLE_MOMENT = POLE_MASS * LENGTH
FARTHEST = 2.4
STEEPEST = 12 * 2 * math.pi / 360

_HIGH = np.array([2 * FARTHEST, np.inf, 2 * STEEPEST, np.inf], np.float32)


def _observe(state, obs):
    obs[0] = state.x
    obs[1] = state.x_dot
    obs[2] = state.theta
    obs[3] = state.theta_dot


class CartPole(NativeEnv):
    """A pole stands on a cart, which is pushed left or right. Each step gives 1.

    The episode terminates when the pole falls or the cart leaves the track. The dynamics are those of
    Gymnasium's CartPole-v1, in double precision. With the constant `sutton_barto_reward`, as in Gymnasium,
    the step that terminates gives -1 and all others give 0.
    """

    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Discrete(2)
    state = np.dtype(
        [("x", np.float64), ("x_dot", np.float64), ("theta", np.float64), ("theta_dot", np.float64)]
    )
    bounds = dict.fromkeys(("x", "x_dot", "theta", "theta_dot"), (-np.inf, np.inf))
    max_episode_steps = 500
    constants = {"sutton_barto_reward": False}
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    @staticmethod
    def reset(state, rng, obs):  # noqa: D102
        state.x = rng.uniform(-0.05, 0.05)
        state.x_dot = rng.uniform(-0.05, 0.05)
        state.theta = rng.uniform(-0.05, 0.05)
        state.theta_dot = rng.uniform(-0.05, 0.05)
        _observe(state, obs)

    @staticmethod
    def step(state, action, obs, config):  # noqa: D102
        force = FORCE if action == 1 else -FORCE
        cosine, sine = cos(state.theta), sin(state.theta)
        push = (force + POLE_MOMENT * state.theta_dot * state.theta_dot * sine) * PER_MASS
        turn = (GRAVITY * sine - cosine * push) / (
            LENGTH * (4.0 / 3.0) - (LENGTH * POLE_MASS * PER_MASS) * cosine * cosine
        )
        pull = push - (POLE_MOMENT * PER_MASS) * turn * cosine
        state.x += TAU * state.x_dot
        state.x_dot += TAU * pull
        state.theta += TAU * state.theta_dot
        state.theta_dot += TAU * turn
        _observe(state, obs)
        terminated = (abs(state.x) > FARTHEST) | (abs(state.theta) > STEEPEST)
        if config.sutton_barto_reward:
            return -1.0 if terminated else 0.0, terminated
        return 1.0, terminated

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the cart, the pole and the track."""
        canvas = Canvas(width=2 * FARTHEST + 0.6, center=(0.0, 0.9))
        canvas.line((-FARTHEST, 0.0), (FARTHEST, 0.0), 0.02, GREY)
        for end in (-FARTHEST, FARTHEST):
            canvas.line((end, -0.1), (end, 0.1), 0.02, GREY)
        x, theta = float(state.x), float(state.theta)
        canvas.rectangle((x - 0.25, -0.12), (x + 0.25, 0.12), BLACK)
        tip = x + 2 * LENGTH * math.sin(theta), 0.1 + 2 * LENGTH * math.cos(theta)
        canvas.line((x, 0.1), tip, 0.09, ORANGE)
        canvas.disc((x, 0.1), 0.045, BLUE)
        return canvas.frame
