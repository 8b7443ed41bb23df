"""Many hockey games at once, in the form of rl_hockey's vectorized envs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import cloudpickle
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import ActionError, ArgumentError, CallError
from shoal.hockey.course import HockeyEnv
from shoal.hockey.envs import Hockey
from shoal.hockey.settings import settings
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.native import Native

Steps = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]]


class VectorizedHockeyEnv:
    """Many games of two players, whose actions have both players' numbers.

    The games run on Shoal's compiled engine. Those of a foreign `env_fn`, such as the original package, run
    in worker processes.

    What differs from rl_hockey: after the end of a game, `step` returns the first observation of the next
    one, and ``infos[i]["terminal_obs"]`` has the last one. A game that runs out of time is truncated.

    Args:
        num_envs: Number of games.
        env_fn: Function that makes one env; by default a whole game with keep mode. If it makes a
            `shoal.hockey.HockeyEnv`, its games run on the compiled engine, with its mode.
        seed: Seed of the games; by default another one each time.

    Attributes:
        num_envs: Number of games.
        observation_space: Observation space of one player.
        action_space: Action space of both players.

    Example:
        >>> import numpy as np
        >>> from shoal.compat.rl_hockey import VectorizedHockeyEnv
        >>> with VectorizedHockeyEnv(3, seed=0) as envs:
        ...     obs = envs.reset()
        ...     obs, rewards, dones, truncs, infos = envs.step(np.zeros((3, 8)))
        ...     two = envs.obs_agent_two()
        >>> obs.shape, two.shape, rewards.shape, len(infos)
        ((3, 18), (3, 18), (3,), 3)
    """

    _dtype: Any = np.float64

    def __init__(
        self, num_envs: int, env_fn: Callable[[], Any] | None = None, *, seed: int | None = None
    ) -> None:
        if num_envs < 1:
            raise ArgumentError(f"num_envs: expected 1 or more, got {num_envs}")
        self.num_envs, self._seed = num_envs, seed
        self._games: _Games = (
            _EngineGames(num_envs, "NORMAL", keep_mode=True)
            if env_fn is None
            else (_games_of(num_envs, env_fn))
        )
        self.observation_space, self.action_space = self._games.spaces

    def reset(self) -> NDArray[Any]:
        """Begin a game in each env; return the observations of player one, [games, numbers]."""
        seed, self._seed = self._seed, None
        return self._games.reset(seed).astype(self._dtype)

    def step(self, actions: Any) -> Steps:
        """Step all games.

        Args:
            actions: Numbers of player one, then of player two: [games, 8].

        Returns:
            Observations, rewards, whether a goal was scored, whether the time is up, and infos, all of player
            one.

        Raises:
            ActionError: If the actions have another shape.
        """
        wanted = (self.num_envs, *(self.action_space.shape or ()))
        found = np.asarray(actions, np.float32)
        if found.shape != wanted:
            raise ActionError(f"actions: expected shape {wanted}, got {found.shape}")
        obs, rewards, terminated, truncated, infos = self._games.step(found)
        return obs.astype(self._dtype), rewards, terminated, truncated, infos

    def obs_agent_two(self) -> NDArray[Any]:
        """Return the observations of player two, [games, numbers]."""
        return self._games.obs_agent_two().astype(self._dtype)

    def close(self) -> None:
        """End all games. May be called twice."""
        self._games.close()

    def __enter__(self) -> Self:
        """Return the envs themselves."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the envs."""
        self.close()


class VectorizedHockeyEnvOptimized(VectorizedHockeyEnv):
    """The same with observations of type float32."""

    _dtype = np.float32


def _games_of(num_envs: int, env_fn: Callable[[], Any]) -> _Games:
    made = env_fn()
    env = getattr(made, "unwrapped", made)
    is_ours = type(env) is HockeyEnv and made is env
    mode, keeps = (env.mode, env.keep_mode) if is_ours else (None, True)
    made.close()
    return _EngineGames(num_envs, mode, keep_mode=keeps) if is_ours else _ForeignGames(num_envs, env_fn)


class _Games:
    """Games of either kind."""

    spaces: tuple[Any, Any]

    def reset(self, seed: int | None) -> NDArray[Any]:
        raise NotImplementedError

    def step(self, actions: NDArray[np.float32]) -> Steps:
        raise NotImplementedError

    def obs_agent_two(self) -> NDArray[Any]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class _EngineGames(_Games):
    """Games on the compiled engine: two rows for each, of player one and player two."""

    def __init__(self, num_envs: int, mode: Any, *, keep_mode: bool) -> None:
        chosen = {**settings(mode=mode, opponent="agent"), "keep_mode": keep_mode}
        self._vec = Native(
            Hockey, num_envs, env_kwargs=chosen, infos=True, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._obs: NDArray[Any] | None = None
        width = int(self._vec.single_action_space.shape[0])  # type: ignore[index]
        self.spaces = self._vec.single_observation_space, Box(-1.0, 1.0, (2 * width,), np.float32)

    def reset(self, seed: int | None) -> NDArray[Any]:
        self._obs, _ = self._vec.reset(seed=seed)
        found: NDArray[Any] = self._obs[::2]
        return found

    def step(self, actions: NDArray[np.float32]) -> Steps:
        if np.isnan(actions).any():
            raise ActionError("actions: expected numbers from -1 to 1, got NaN")
        players = actions.clip(-1, 1).reshape(2 * len(actions), -1)
        self._obs, rewards, terminated, truncated, infos = self._vec.step(players)
        names = ("winner", "reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")
        ended = (terminated | truncated)[::2]
        lasting = {name: np.array(infos[name][::2]) for name in names if name in infos}
        found = [
            {name: values[place].item() for name, values in lasting.items()} for place in range(len(actions))
        ]
        for place in np.flatnonzero(ended).tolist():
            last = infos["final_info"]
            found[place] = {name: last[name][2 * place].item() for name in names}
            found[place]["terminal_obs"] = np.asarray(infos["final_obs"][2 * place])
        return self._obs[::2], rewards[::2].copy(), terminated[::2].copy(), truncated[::2].copy(), found

    def obs_agent_two(self) -> NDArray[Any]:
        if self._obs is None:
            raise CallError("obs_agent_two() before the first reset(): call reset()")
        found: NDArray[Any] = self._obs[1::2]
        return found

    def close(self) -> None:
        self._vec.close()


def _info_of(infos: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the info of one env, of infos in Gymnasium's form."""
    return {
        name: values[place]
        for name, values in infos.items()
        if not name.startswith(("_", "final_")) and infos[f"_{name}"][place]
    }


def _make_foreign(env_fn: bytes) -> Any:
    """Make an env in a worker. Its code may import rl_hockey when it is unpickled."""
    from shoal.compat import install_as_rl_hockey

    with suppress(CallError):  # the real one is installed
        install_as_rl_hockey()
    return cloudpickle.loads(env_fn)()


class _ForeignGames(_Games):
    """Games of the original's kind, in worker processes."""

    def __init__(self, num_envs: int, env_fn: Callable[[], Any]) -> None:
        creator = partial(_make_foreign, cloudpickle.dumps(env_fn))
        self._vec = Multiprocessing(creator, num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.spaces = self._vec.single_observation_space, self._vec.single_action_space

    def reset(self, seed: int | None) -> NDArray[Any]:
        found: NDArray[Any] = self._vec.reset(seed=seed)[0]
        return found

    def step(self, actions: NDArray[np.float32]) -> Steps:
        obs, rewards, terminated, truncated, infos = self._vec.step(actions)
        found: list[dict[str, Any]] = []
        ended = terminated | truncated
        for place in range(self._vec.num_envs):
            found.append(_info_of(infos["final_info"] if ended[place] else infos, place))
            if ended[place]:
                found[place]["terminal_obs"] = np.asarray(infos["final_obs"][place])
        return obs, rewards, terminated, truncated, found

    def obs_agent_two(self) -> NDArray[Any]:
        return np.array(self._vec.call("obs_agent_two"))

    def close(self) -> None:
        self._vec.close()
