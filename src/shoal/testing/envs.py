"""Envs for tests: sentinels, which reveal any mix-up of rows, and envs that fail on purpose."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from shoal.adapters.env import Env

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class SentinelEnv(gymnasium.Env[NDArray[np.int64], np.int64]):
    """An env whose observation identifies the env, the episode and the step.

    The observation is ``[env_id, episode, step, last action, seed]``, always in the same buffer. Episodes
    last 1 to `max_length` steps, depending on the seed, and end terminated, truncated or both. The reward is
    a function of the same numbers, and some steps have infos.

    Args:
        env_id: The number of this env.
        max_length: The largest number of steps of an episode.
    """

    observation_space = Box(-(2**62), 2**62, (5,), np.int64)
    action_space = Discrete(1000)

    def __init__(self, env_id: int = 0, max_length: int = 7) -> None:
        self.env_id, self.max_length = env_id, max_length
        self.episode = -1
        self.count = 0
        self.seed_used = -1
        self.closed = 0
        self._buffer = np.zeros(5, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Begin an episode. A new seed restarts the count of episodes."""
        super().reset(seed=seed)
        if seed is not None:
            self.episode, self.seed_used = -1, seed
        self.episode += 1
        self.count = 0
        self.length = int(self.np_random.integers(1, self.max_length + 1))
        info: dict[str, Any] = {"begun": self.episode}
        if options:
            info["options"] = dict(options)
        return self._observe(0), info

    def step(self, action: np.int64) -> Step:
        """Do one step."""
        if self.count >= self.length:
            raise RuntimeError(f"env {self.env_id} was stepped after its episode had ended")
        self.count += 1
        over = self.count == self.length
        ending = (self.episode + self.env_id) % 3
        info: dict[str, Any] = {}
        if over:
            info = {"last": {"env": self.env_id, "text": f"episode {self.episode}"}}
        elif self.count % 2:
            info = {"odd": self.count}
        obs = self._observe(int(action))
        return obs, self.reward_of(obs), over and ending != 1, over and ending != 0, info

    def _observe(self, action: int) -> NDArray[np.int64]:
        self._buffer[:] = self.env_id, self.episode, self.count, action, self.seed_used
        return self._buffer

    @staticmethod
    def reward_of(obs: NDArray[np.int64]) -> float:
        """Return the reward that belongs to an observation."""
        env_id, episode, count, action, _ = obs.tolist()
        return float(env_id + 0.5 * episode + 0.25 * count + 0.125 * action)

    def close(self) -> None:
        """Count the calls of close."""
        self.closed += 1


class SentinelRows(Env):
    """A sentinel as a `shoal.Env`: it returns the same values, but writes them into its row.

    Args:
        env_id: As for `SentinelEnv`.
        max_length: As for `SentinelEnv`.
    """

    observation_space = SentinelEnv.observation_space
    action_space = SentinelEnv.action_space

    def __init__(self, env_id: int = 0, max_length: int = 7) -> None:
        super().__init__()
        self.sentinel = SentinelEnv(env_id, max_length)
        self.env_id = env_id

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Begin an episode."""
        obs, info = self.sentinel.reset(seed=seed, options=options)
        self.observations[0] = obs
        # Clears everything, as some authors do. Results that the vec has yet to report must not be lost.
        self.rewards[:], self.terminations[:], self.truncations[:] = 0.0, False, False
        return info

    def step(self, actions: Any) -> dict[str, Any]:
        """Do one step."""
        moment = self.sentinel.step(actions[0])
        self.observations[0], self.rewards[0], self.terminations[0], self.truncations[0], info = moment
        return info


class SentinelAgent:
    """A sentinel as a PettingZoo env of one agent. It returns the same values.

    Args:
        env_id: As for `SentinelEnv`.
        max_length: As for `SentinelEnv`.
    """

    possible_agents = ("sentinel",)

    def __init__(self, env_id: int = 0, max_length: int = 7) -> None:
        self.sentinel = SentinelEnv(env_id, max_length)
        self.env_id = env_id
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the observation space of the agent."""
        return SentinelEnv.observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """Return the action space of the agent."""
        return SentinelEnv.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], ...]:
        """Begin an episode."""
        self.agents = list(self.possible_agents)
        return tuple({"sentinel": part} for part in self.sentinel.reset(seed=seed, options=options))

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Do one step."""
        moment = self.sentinel.step(actions["sentinel"])
        if moment[2] or moment[3]:
            self.agents = []
        return tuple({"sentinel": part} for part in moment)


class SampleEnv(gymnasium.Env[Any, Any]):
    """An env with any spaces. Observations are samples; actions are checked against their space.

    Args:
        observation_space: The space from which observations are sampled.
        action_space: The space that actions must be in.
        length: The number of steps per episode.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], length: int = 5) -> None:
        self.observation_space, self.action_space, self.length = observation_space, action_space, length
        self.actions: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Step:
        """Check the action, store it, and sample the next observation."""
        with warnings.catch_warnings():
            # Gymnasium passes the action of a Box without dimensions as a scalar, and then warns about it.
            warnings.simplefilter("ignore")
            fits = self.action_space.contains(action)
        if not fits:
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.actions.append(action)
        self.count += 1
        return self.observation_space.sample(), 1.0, self.count == self.length, False, {}


class SlowEnv(SentinelEnv):
    """A sentinel whose steps take time.

    Args:
        env_id: As for `SentinelEnv`.
        seconds: The mean time of a step.
        busy: Whether to keep the core busy instead of sleeping.
        spread: 0 for steps of equal time; 1 for exponentially distributed times.
        **sentinel: As for `SentinelEnv`.
    """

    def __init__(
        self,
        env_id: int = 0,
        seconds: float = 0.001,
        *,
        busy: bool = False,
        spread: float = 0.0,
        **sentinel: Any,
    ) -> None:
        super().__init__(env_id, **sentinel)
        self.seconds, self.busy, self.spread = seconds, busy, spread
        self._pace = np.random.default_rng(env_id)

    def step(self, action: np.int64) -> Step:
        """Wait, then step."""
        wait = self.seconds * (1 - self.spread + self.spread * self._pace.exponential())
        if self.busy:
            end = time.perf_counter() + wait
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(wait)
        return super().step(action)


class UnpicklableError(Exception):
    """An exception that cannot be pickled and takes several arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.handle = (n for n in range(code))  # a generator cannot be pickled


class CrashEnv(SentinelEnv):
    """A sentinel that fails.

    Args:
        env_id: As for `SentinelEnv`.
        at: The step at which it fails, counted over all episodes from 1; 0 to fail in `reset`.
        how: The kind of failure: ``"raise"`` raises a ValueError, ``"unpicklable"`` an exception that cannot
            be pickled; ``"exit"`` ends the process, ``"kill"`` kills it by SIGKILL, ``"segfault"`` crashes
            it.
        **sentinel: As for `SentinelEnv`.
    """

    def __init__(self, env_id: int = 0, at: int = 3, how: str = "raise", **sentinel: Any) -> None:
        super().__init__(env_id, **sentinel)
        self.at, self.how, self.life = at, how, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Begin an episode, or fail."""
        if self.at == 0:
            self._fail()
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Step:
        """Step, or fail."""
        self.life += 1
        if self.life == self.at:
            self._fail()
        return super().step(action)

    def _fail(self) -> None:
        if self.how == "raise":
            raise ValueError(f"env {self.env_id} failed as told")
        if self.how == "unpicklable":
            raise UnpicklableError(self.env_id, "failed as told")
        if self.how == "exit":
            os._exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "segfault":
            ctypes.string_at(0)
        raise NotImplementedError(f"how={self.how!r}")


class HangEnv(SentinelEnv):
    """A sentinel that stops answering.

    Args:
        env_id: As for `SentinelEnv`.
        at: The step at which it hangs, counted over all episodes from 1.
        seconds: The time for which it hangs.
        **sentinel: As for `SentinelEnv`.
    """

    def __init__(self, env_id: int = 0, at: int = 3, seconds: float = 3600.0, **sentinel: Any) -> None:
        super().__init__(env_id, **sentinel)
        self.at, self.seconds, self.life = at, seconds, 0

    def step(self, action: np.int64) -> Step:
        """Step, or hang."""
        self.life += 1
        if self.life == self.at:
            time.sleep(self.seconds)
        return super().step(action)
