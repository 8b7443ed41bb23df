"""shoal/Acrobot-v1: Gymnasium's Acrobot, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.native import NativeEnv
from shoal.native.drawing import BLACK, BLUE, GREY, ORANGE, Canvas
from shoal.native.math import ROUND, cos, sin

# Both links are 1 m long, of 1 kg in their middle, with a moment of inertia of 1 kg m².
GRAVITY, TAU = 9.8, 0.2
FASTEST_1, FASTEST_2 = 4 * math.pi, 9 * math.pi
TURN, PER_TURN = 2 * math.pi, 1 / (2 * math.pi)

_HIGH = np.array([1.0, 1.0, 1.0, 1.0, FASTEST_1, FASTEST_2], np.float32)


def _accelerations(theta_1, theta_2, theta_1_dot, theta_2_dot, torque):
    """Return the accelerations of both joints, by the equations of Sutton and Barto's book."""
    sine_1, cosine_1, sine_2, cosine_2 = sin(theta_1), cos(theta_1), sin(theta_2), cos(theta_2)
    inertia_1, inertia_2 = 3.5 + cosine_2, 1.25 + 0.5 * cosine_2
    pull_2 = 0.5 * GRAVITY * (sine_1 * cosine_2 + cosine_1 * sine_2)  # the sine of the sum of both angles
    pull_1 = pull_2 + 1.5 * GRAVITY * sine_1 - (0.5 * theta_2_dot + theta_1_dot) * theta_2_dot * sine_2
    push = torque - 0.5 * theta_1_dot * theta_1_dot * sine_2 - pull_2
    # The book's equations for the accelerations a and b, which Cramer's rule solves with a single division:
    #   inertia_1 * a + inertia_2 * b = -pull_1
    #   inertia_2 * a +      1.25 * b = push
    scale = 1.0 / (2.8125 - 0.25 * cosine_2 * cosine_2)  # 1 / (1.25 * inertia_1 - inertia_2 ** 2)
    return -scale * (inertia_2 * push + 1.25 * pull_1), scale * (inertia_1 * push + inertia_2 * pull_1)


def _wrapped(angle):
    """Wrap an angle to the range from -pi to pi."""
    return angle - TURN * (angle * PER_TURN + ROUND - ROUND)


def _observe(state, obs):
    obs[0] = cos(state.theta_1)
    obs[1] = sin(state.theta_1)
    obs[2] = cos(state.theta_2)
    obs[3] = sin(state.theta_2)
    obs[4] = state.theta_1_dot
    obs[5] = state.theta_2_dot


def _height(state):
    """Return the height of the free end above the bar."""
    cosine = cos(state.theta_1)
    both = cosine * cos(state.theta_2) - sin(state.theta_1) * sin(state.theta_2)
    return -cosine - both


class Acrobot(NativeEnv):
    """Two links hang on a bar; a motor drives the joint between them. The goal is to swing the end up.

    Each step gives -1 until the end is 1 m above the bar. The dynamics are those of Gymnasium's Acrobot-v1:
    the equations of the book, integrated by the fourth-order Runge-Kutta method.
    """

    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Discrete(3)
    state = np.dtype(
        [
            ("theta_1", np.float64),  # angle of the upper link; 0 hangs down
            ("theta_2", np.float64),  # angle of the lower link, relative to the upper link
            ("theta_1_dot", np.float64),
            ("theta_2_dot", np.float64),
        ]
    )
    bounds = {
        "theta_1": (-math.pi, math.pi),
        "theta_2": (-math.pi, math.pi),
        "theta_1_dot": (-FASTEST_1, FASTEST_1),
        "theta_2_dot": (-FASTEST_2, FASTEST_2),
    }
    max_episode_steps = 500
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    @staticmethod
    def reset(state, rng, obs):  # noqa: D102
        state.theta_1 = rng.uniform(-0.1, 0.1)
        state.theta_2 = rng.uniform(-0.1, 0.1)
        state.theta_1_dot = rng.uniform(-0.1, 0.1)
        state.theta_2_dot = rng.uniform(-0.1, 0.1)
        _observe(state, obs)

    @staticmethod
    def step(state, action, obs):  # noqa: D102
        torque = action - 1.0
        half = 0.5 * TAU
        p1, q1, v1, w1 = state.theta_1, state.theta_2, state.theta_1_dot, state.theta_2_dot
        a1, b1 = _accelerations(p1, q1, v1, w1, torque)
        v2, w2 = v1 + half * a1, w1 + half * b1
        a2, b2 = _accelerations(p1 + half * v1, q1 + half * w1, v2, w2, torque)
        v3, w3 = v1 + half * a2, w1 + half * b2
        a3, b3 = _accelerations(p1 + half * v2, q1 + half * w2, v3, w3, torque)
        v4, w4 = v1 + TAU * a3, w1 + TAU * b3
        a4, b4 = _accelerations(p1 + TAU * v3, q1 + TAU * w3, v4, w4, torque)
        sixth = TAU / 6.0
        state.theta_1 = _wrapped(p1 + sixth * (v1 + 2.0 * v2 + 2.0 * v3 + v4))
        state.theta_2 = _wrapped(q1 + sixth * (w1 + 2.0 * w2 + 2.0 * w3 + w4))
        state.theta_1_dot = min(max(v1 + sixth * (a1 + 2.0 * a2 + 2.0 * a3 + a4), -FASTEST_1), FASTEST_1)
        state.theta_2_dot = min(max(w1 + sixth * (b1 + 2.0 * b2 + 2.0 * b3 + b4), -FASTEST_2), FASTEST_2)
        _observe(state, obs)
        terminated = _height(state) > 1.0
        return 0.0 if terminated else -1.0, terminated

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw both links, and the height that the end must reach."""
        canvas = Canvas(width=6.6)
        first, both = float(state.theta_1), float(state.theta_1) + float(state.theta_2)
        elbow = math.sin(first), -math.cos(first)
        end = elbow[0] + math.sin(both), elbow[1] - math.cos(both)
        canvas.line((-3.3, 1.0), (3.3, 1.0), 0.02, GREY)
        canvas.line((0.0, 0.0), elbow, 0.2, BLUE)
        canvas.line(elbow, end, 0.2, ORANGE)
        for joint in ((0.0, 0.0), elbow):
            canvas.disc(joint, 0.06, BLACK)
        return canvas.frame
