"""The envs that all contestants run.

This file is imported by every contestant's interpreter, from Gymnasium 0.29 with NumPy 1.23 up to the newest,
so it uses nothing but what they all have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space

BUSY = 100e-6  # seconds


class Nothing(gymnasium.Env):
    """Costs nothing and never ends: what is measured is the vector env around it."""

    action_space = Discrete(2)

    def __init__(self, observation_space: Space) -> None:
        self.observation_space = observation_space
        observation_space.seed(0)
        self.observation = observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation, 1.0, False, False, {}


class NothingWithInfo(Nothing):
    """The same, with an info at every step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation, 1.0, False, False, {"x": 1.0}


class Busy(Nothing):
    """Works for a fixed time."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        end = perf_counter() + BUSY
        while perf_counter() < end:
            pass
        return self.observation, 1.0, False, False, {}


class Variable(Nothing):
    """Works for a time that varies: exponential, and one step of a hundred takes 5 ms.

    All envs have the same hundred times, each in an order of its own: nobody is lucky, and they are not all
    slow at once.
    """

    def __init__(self, observation_space: Space, index: int) -> None:
        super().__init__(observation_space)
        exponential = -BUSY * np.log1p(-(np.arange(99) + 0.5) / 99)  # its quantiles
        times = np.append(exponential, 5e-3)
        self.times = np.random.default_rng(index).permutation(times).tolist()
        self.turn = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        end = perf_counter() + self.times[self.turn]
        self.turn = (self.turn + 1) % 100
        while perf_counter() < end:
            pass
        return self.observation, 1.0, False, False, {}


def small() -> Box:
    return Box(-1, 1, (4,), np.float32)


def frame() -> Box:
    return Box(0, 255, (84, 84, 4), np.uint8)


def nested() -> Dict:
    stats = Dict({"health": Box(0, 1, (3,), np.float32), "place": Discrete(9)})
    return Dict({"map": Box(0, 255, (5, 5), np.uint8), "stats": stats, "keys": MultiBinary(4)})


def lunar_lander_id() -> str:
    """The same dynamics under two names: Gymnasium 1.0 renamed it when it mended its resets and its wind."""
    return "LunarLander-v3" if "LunarLander-v3" in gymnasium.registry else "LunarLander-v2"


@dataclass(frozen=True)
class EnvSpec:
    """An env of the benchmark.

    Attributes:
        name: What the tables call it.
        about: What it costs and returns.
        create: Makes one, given its index among the envs of a vec.
        num_actions: Of its Discrete action space.
        endless: No episode ever ends, so every row of every vector step is a step.
        gymnasium_id: Names the registered env it is, if any.
        packaged: Makes it as its package does, if `create` differs.
    """

    name: str
    about: str
    create: Callable[[int], gymnasium.Env]
    num_actions: int = 2
    endless: bool = True
    gymnasium_id: str | None = None
    packaged: Callable[[int], gymnasium.Env] | None = None

    def creators(self, num_envs: int) -> list[Callable[[], gymnasium.Env]]:
        return [partial(self.create, index) for index in range(num_envs)]


# Functions of the module, not lambdas: forkserver and spawn send them by name.


def create_null(index: int) -> gymnasium.Env:
    return Nothing(small())


def create_null_info(index: int) -> gymnasium.Env:
    return NothingWithInfo(small())


def create_frame(index: int) -> gymnasium.Env:
    return Nothing(frame())


def create_nested(index: int) -> gymnasium.Env:
    return Nothing(nested())


def create_busy(index: int) -> gymnasium.Env:
    return Busy(small())


def create_variable(index: int) -> gymnasium.Env:
    return Variable(small(), index)


def create_cartpole(index: int) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def create_breakout(index: int) -> gymnasium.Env:
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def create_nethack(index: int) -> gymnasium.Env:
    from shoal.envs import nethack

    return nethack.create("score")


def package_nethack(index: int) -> gymnasium.Env:
    import nle  # noqa: F401 - registers its envs

    return gymnasium.make("NetHackScore-v0", disable_env_checker=True)


def create_minihack(index: int) -> gymnasium.Env:
    from shoal.envs import minihack

    return minihack.create("room-15x15")


def package_minihack(index: int) -> gymnasium.Env:
    import shoal.envs.minihack  # noqa: F401 - registers MiniHack's, without its warnings

    return gymnasium.make("MiniHack-Room-15x15-v0", disable_env_checker=True)


def create_lunar_lander(index: int) -> gymnasium.Env:
    return gymnasium.make(lunar_lander_id())


ENVS = {
    spec.name: spec
    for spec in (
        EnvSpec("null", "4 floats, at no cost", create_null),
        EnvSpec("null-info", "4 floats and an info at every step, at no cost", create_null_info),
        EnvSpec("frame", "84x84x4 bytes, at no cost", create_frame),
        EnvSpec("nested", "a nested Dict of 4 leaves, at no cost", create_nested),
        EnvSpec("busy", "4 floats after 100 us of work", create_busy),
        EnvSpec("variable", "4 floats after 150 us of work on average, 1 % of 5 ms", create_variable),
        EnvSpec("cartpole", "CartPole-v1", create_cartpole, endless=False, gymnasium_id="CartPole-v1"),
        EnvSpec(
            "lunarlander",
            "LunarLander, discrete",
            create_lunar_lander,
            num_actions=4,
            endless=False,
            gymnasium_id=lunar_lander_id(),
        ),
        EnvSpec("breakout", "Breakout, 84x84x4 grey", create_breakout, num_actions=4, endless=False),
        EnvSpec("nethack", "nethack-score of Shoal", create_nethack, 23, False, packaged=package_nethack),
        EnvSpec(
            "minihack",
            "minihack-room-15x15 of Shoal",
            create_minihack,
            num_actions=8,
            endless=False,
            packaged=package_minihack,
        ),
    )
}
