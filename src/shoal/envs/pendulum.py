"""shoal/Pendulum-v1: Gymnasium's Pendulum, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.native import NativeEnv
from shoal.native.drawing import BLACK, GREY, ORANGE, Canvas
from shoal.native.math import ROUND, cos, sin

STRONGEST, FASTEST, TAU = 2.0, 8.0, 0.05
TURN, PER_TURN = 2 * math.pi, 1 / (2 * math.pi)
# Gymnasium multiplies these with the action, so they become float32 there.
THRUST, EFFORT = np.float32(3.0), np.float32(0.001)

_HIGH = np.array([1.0, 1.0, FASTEST], np.float32)


def _observe(state, obs):
    obs[0] = cos(state.theta)
    obs[1] = sin(state.theta)
    obs[2] = state.theta_dot


class Pendulum(NativeEnv):
    """A pendulum to swing up and hold. Each step costs the weighted squares of angle, speed and torque.

    The dynamics are those of Gymnasium's Pendulum-v1, in double precision. The constant `g` is gravity.
    """

    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Box(-STRONGEST, STRONGEST, (1,), np.float32)
    state = np.dtype(
        [("theta", np.float64), ("theta_dot", np.float64)]
    )  # theta is 0 when upright, and is not wrapped
    bounds = {"theta": (-1e6, 1e6), "theta_dot": (-FASTEST, FASTEST)}
    max_episode_steps = 200
    constants = {"g": 10.0}

    @staticmethod
    def reset(state, rng, obs):  # noqa: D102
        state.theta = rng.uniform(-math.pi, math.pi)
        state.theta_dot = rng.uniform(-1.0, 1.0)
        _observe(state, obs)

    @staticmethod
    def step(state, action, obs, config):  # noqa: D102
        torque = min(max(action[0], np.float32(-STRONGEST)), np.float32(STRONGEST))
        angle = state.theta - TURN * (state.theta * PER_TURN + ROUND - ROUND)  # from -pi to pi
        cost = angle * angle + 0.1 * (state.theta_dot * state.theta_dot) + EFFORT * (torque * torque)
        speed = state.theta_dot + (1.5 * config.g * sin(state.theta) + THRUST * torque) * TAU
        state.theta_dot = min(max(speed, -FASTEST), FASTEST)
        state.theta += state.theta_dot * TAU
        _observe(state, obs)
        return -cost, False

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the pendulum and its axle."""
        canvas = Canvas(width=3.6)
        theta = float(state.theta)
        canvas.disc((0.0, 0.0), 1.1, (238, 238, 240))
        canvas.line((0.0, 1.0), (0.0, 1.1), 0.015, GREY)  # the goal
        canvas.line((0.0, 0.0), (-math.sin(theta), math.cos(theta)), 0.2, ORANGE)
        canvas.disc((0.0, 0.0), 0.05, BLACK)
        return canvas.frame
