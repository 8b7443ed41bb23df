"""shoal/MountainCar-v0 and shoal/MountainCarContinuous-v0: Gymnasium's envs, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.native import NativeEnv
from shoal.native.drawing import BLACK, GREY, ORANGE, RED, Canvas
from shoal.native.math import cos

LEFTMOST, RIGHTMOST, FASTEST = -1.2, 0.6, 0.07
GOAL, CONTINUOUS_GOAL = 0.5, 0.45
FORCE, POWER, GRAVITY = 0.001, 0.0015, 0.0025

_STATE = np.dtype([("position", np.float64), ("velocity", np.float64)])
_BOUNDS = {"position": (LEFTMOST, RIGHTMOST), "velocity": (-FASTEST, FASTEST)}
_LOW, _HIGH = np.array([LEFTMOST, -FASTEST], np.float32), np.array([RIGHTMOST, FASTEST], np.float32)


def _begin(state, rng, obs):
    state.position = rng.uniform(-0.6, -0.4)
    _observe(state, obs)


def _drive(state, push):
    velocity = state.velocity + push - GRAVITY * cos(3.0 * state.position)
    velocity = min(max(velocity, -FASTEST), FASTEST)
    position = min(max(state.position + velocity, LEFTMOST), RIGHTMOST)
    state.position = position
    state.velocity = 0.0 if (position == LEFTMOST) & (velocity < 0.0) else velocity  # the wall stops it


def _observe(state, obs):
    obs[0] = state.position
    obs[1] = state.velocity


def _height(x: Any) -> Any:
    return np.sin(3 * x) * 0.45 + 0.55


def _picture(state: Any, goal: float) -> NDArray[np.uint8]:
    canvas = Canvas(width=RIGHTMOST - LEFTMOST, center=((LEFTMOST + RIGHTMOST) / 2, 0.6))
    canvas.below(_height(canvas.xs), GREY)
    foot, top = float(_height(goal)), float(_height(goal)) + 0.16
    canvas.line((goal, foot), (goal, top), 0.008, BLACK)
    canvas.polygon([(goal, top), (goal, top - 0.07), (goal + 0.08, top - 0.035)], RED)

    x = float(state.position)
    slope = math.atan(3 * 0.45 * math.cos(3 * x))

    def on_road(along: float, above: float) -> tuple[float, float]:
        """Convert a point relative to the car, which is tilted as the road, to a point of the frame."""
        return (
            x + along * math.cos(slope) - above * math.sin(slope),
            float(_height(x)) + along * math.sin(slope) + above * math.cos(slope),
        )

    canvas.polygon(
        [on_road(*corner) for corner in ((-0.08, 0.02), (0.08, 0.02), (0.08, 0.075), (-0.08, 0.075))], ORANGE
    )
    canvas.polygon(
        [on_road(*corner) for corner in ((-0.05, 0.07), (0.05, 0.07), (0.03, 0.11), (-0.03, 0.11))], ORANGE
    )
    for wheel in (-0.05, 0.05):
        canvas.disc(on_road(wheel, 0.025), 0.025, BLACK)
    return canvas.frame


class MountainCar(NativeEnv):
    """A car in a valley is too weak to drive straight up, so it must swing. Each step gives -1.

    The dynamics are those of Gymnasium's MountainCar-v0, in double precision. The constant `goal_velocity` is
    the velocity that the car must have at the flag.
    """

    observation_space = Box(_LOW, _HIGH, dtype=np.float32)
    action_space = Discrete(3)
    state = _STATE
    bounds = _BOUNDS
    max_episode_steps = 200
    constants = {"goal_velocity": 0.0}

    @staticmethod
    def reset(state, rng, obs):  # noqa: D102
        _begin(state, rng, obs)

    @staticmethod
    def step(state, action, obs, config):  # noqa: D102
        _drive(state, (action - 1) * FORCE)
        _observe(state, obs)
        return -1.0, (state.position >= GOAL) & (state.velocity >= config.goal_velocity)

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the valley, the car and the flag."""
        return _picture(state, GOAL)


class MountainCarContinuous(NativeEnv):
    """The car with continuous actions. The flag gives 100, and each action costs 0.1 times its square.

    The dynamics are those of Gymnasium's MountainCarContinuous-v0, but in double precision: Gymnasium rounds
    the state to single precision after every step. The constant `goal_velocity` is as for `MountainCar`.
    """

    observation_space = Box(_LOW, _HIGH, dtype=np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    state = _STATE
    bounds = _BOUNDS
    max_episode_steps = 999
    constants = {"goal_velocity": 0.0}

    @staticmethod
    def reset(state, rng, obs):  # noqa: D102
        _begin(state, rng, obs)

    @staticmethod
    def step(state, action, obs, config):  # noqa: D102
        pedal = np.float64(action[0])
        _drive(state, min(max(pedal, -1.0), 1.0) * POWER)
        _observe(state, obs)
        terminated = (state.position >= CONTINUOUS_GOAL) & (state.velocity >= config.goal_velocity)
        return (100.0 if terminated else 0.0) - 0.1 * (pedal * pedal), terminated

    @staticmethod
    def render(state: Any) -> NDArray[np.uint8]:
        """Draw the valley, the car and the flag."""
        return _picture(state, CONTINUOUS_GOAL)
