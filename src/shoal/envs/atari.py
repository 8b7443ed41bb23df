"""The family "atari": Atari games, such as "atari-breakout", with the preprocessing of CleanRL's ppo_atari.

    game -> no-ops at reset -> four frames a step, max of the last two -> 84x84 grey -> a life is an episode
         -> FIRE at reset -> sign of the reward -> four frames stacked

The frames differ from CleanRL's in one point: they are turned grey first and not last, which takes a third of
the time. Nearly all pixels are equal; pixels of flickering sprites may differ. There are no sticky actions
unless ``repeat_action_probability`` is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from ale_py import ALEInterface, LoggerMode
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward
from numpy.typing import NDArray

from shoal.errors import ArgumentError

NOOP, FIRE = 0, 1

# The games that have an id in Gymnasium. Other ROMs need more players, and loading one would end the process.
GAMES: dict[str, str] = {
    game.replace("_", "-"): game
    for game in sorted(spec.kwargs["game"] for spec in gymnasium.registry.values() if spec.namespace == "ALE")
}


def names() -> list[str]:
    """Return the names of the envs without the prefix "atari-"."""
    return list(GAMES)


def create(
    name: str,
    *,
    frame_skip: int = 4,
    noop_max: int = 30,
    episodic_life: bool = True,
    fire_reset: bool = True,
    clip_rewards: bool = True,
    size: int | tuple[int, int] = 84,
    greyscale: bool = True,
    stack: int = 4,
    render_mode: Literal["human", "rgb_array"] | None = None,
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Make an env of one game.

    Args:
        name: The name of the game.
        frame_skip: The number of frames for which an action is held. The observation is the maximum of the
            last two frames.
        noop_max: The largest number of no-ops at the start of a game. Their number is random, from 1 on.
            Games without a no-op action take none.
        episodic_life: Whether a lost life ends the episode; see `EpisodicLife`.
        fire_reset: Whether a reset presses FIRE, if the game has it; see `FireReset`.
        clip_rewards: Whether to return only the sign of a reward.
        size: The size of a frame in pixels: one number, or width and height.
        greyscale: Whether frames are grey. Otherwise a frame has a last axis for colours.
        stack: The number of frames of an observation, the newest last.
        render_mode: None, "rgb_array" or "human".
        **kwargs: Other arguments of `ale_py.env.AtariEnv`. ``repeat_action_probability`` is 0 and
            ``max_num_frames_per_episode`` 108000 by default.

    Example:
        >>> import shoal
        >>> with shoal.make("atari-breakout", num_envs=2, backend="serial") as vec:
        ...     obs, infos = vec.reset(seed=0)
        >>> obs.shape, obs.dtype, infos["lives"].tolist()
        ((2, 4, 84, 84), dtype('uint8'), [5, 5])
    """
    check_names(kwargs, AtariEnv, taken={"game", "frameskip", "obs_type"}, own=create)
    if kwargs.get("continuous"):
        raise ArgumentError("continuous: expected False, because a reset uses discrete actions (no-op, FIRE)")
    ALEInterface.setLoggerMode(LoggerMode.Error)  # AtariEnv does this too, but after its banner
    env: gymnasium.Env[Any, Any] = Game(
        GAMES[name],
        frameskip=1,
        obs_type="grayscale" if greyscale else "rgb",
        render_mode=render_mode,
        **{"repeat_action_probability": 0.0, "max_num_frames_per_episode": 108_000, **kwargs},
    )
    meanings = env.get_action_meanings()  # type: ignore[attr-defined]
    env = AtariPreprocessing(
        env,
        noop_max=noop_max if meanings[NOOP] == "NOOP" else 0,
        frame_skip=frame_skip,
        screen_size=size,
        grayscale_obs=greyscale,
    )
    env = Score(env)
    if episodic_life:
        env = EpisodicLife(env)
    if fire_reset and meanings[FIRE] == "FIRE":
        env = FireReset(env)
    if clip_rewards:
        env = TransformReward(env, sign)
    return FrameStackObservation(env, stack)


def check_names(kwargs: dict[str, Any], kind: type, *, taken: set[str], own: Callable[..., Any]) -> None:
    """Refuse arguments that an env does not take, or that Shoal sets itself, before the env is made.

    Raises:
        ArgumentError: If there is such an argument.
    """
    names = set(inspect.signature(own).parameters) - {"name", "num_envs", "autoreset_mode", "kwargs"}
    more = set(inspect.signature(kind).parameters) - taken - names
    if wrong := set(kwargs) - more:
        raise ArgumentError(
            f"{', '.join(sorted(wrong))}: expected {', '.join(sorted(names))}, or for {kind.__name__} "
            f"{', '.join(sorted(more))}"
        )


def sign(reward: Any) -> float:
    """Return the sign of a reward: -1, 0 or 1."""
    return float((reward > 0) - (reward < 0))


class Game(AtariEnv):
    """A game, frame by frame. It returns no frames: `AtariPreprocessing` reads the frames that it needs."""

    _unseen = np.zeros(0, np.uint8)

    def _get_obs(self) -> NDArray[np.uint8]:
        return self._unseen


class Score(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts the score into ``info["score"]`` when a game ends: over all lives, with unclipped rewards."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self._score = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._score += float(reward)
        if terminated or truncated:
            info["score"] = self._score
        return obs, reward, terminated, truncated, info


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes each life an episode, while the game goes on.

    A reset after a lost life takes one no-op step. A reset after the end of the game, during a life, or with
    a seed begins a new game.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._goes_on = False  # a life was lost, and the game goes on

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game. The loss of a life terminates the episode."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        # Some games, such as Qbert, go on for a few frames at 0 lives. They report their end later.
        lost = 0 < info["lives"] < self._lives
        self._lives = info["lives"]
        self._goes_on = lost and not (terminated or truncated)
        return obs, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next life, or a new game."""
        if self._goes_on and seed is None:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if not (terminated or truncated):
                return self._begin(obs, info)
        return self._begin(*self.env.reset(seed=seed, options=options))

    def _begin(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._lives, self._goes_on = info["lives"], False
        return obs, info


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE at each reset, because some games wait for it. Then takes the action after FIRE.

    The second step has no use in the game. It is kept because published results were made with it.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and reset it again if the two steps end the episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        for action in (FIRE, FIRE + 1):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info
