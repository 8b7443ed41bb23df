"""atari-breakout and the like: Atari games with the preprocessing of CleanRL's ppo_atari.

    game -> no-ops at reset -> four frames a step, max of the last two -> 84x84 grey -> a life is an episode
         -> FIRE at reset -> sign of the reward -> four frames stacked

In one thing the frames differ: they are turned grey first and not last, which takes a third of the time.
Nearly all pixels come out the same; those of sprites that flicker may not. There are no sticky actions unless
``repeat_action_probability`` is given.
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

# As in Gymnasium's ids. A ROM that has none cannot be played alone, and to load it would end the process.
GAMES: dict[str, str] = {
    game.replace("_", "-"): game
    for game in sorted(spec.kwargs["game"] for spec in gymnasium.registry.values() if spec.namespace == "ALE")
}


def names() -> list[str]:
    """What follows "atari-"."""
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
    """One game.

    Args:
        name: Which.
        frame_skip: Frames for which an action is held. The last two are seen, the brighter pixel of both.
        noop_max: A new game begins with 1 to so many no-ops, if the game has a no-op.
        episodic_life: A lost life ends the episode; see `EpisodicLife`.
        fire_reset: A reset presses FIRE, if the game has it; see `FireReset`.
        clip_rewards: Give only the sign of a reward.
        size: Of a frame, in pixels: one number, or width and height.
        greyscale: Without colours; else a frame has a last axis for them.
        stack: How many frames an observation has, the newest last.
        render_mode: None, "rgb_array" or "human".
        **kwargs: As `ale_py.env.AtariEnv` takes them; ``repeat_action_probability`` is 0 and
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
        raise ArgumentError("continuous: no-ops and FIRE at reset are discrete actions, so all must be")
    ALEInterface.setLoggerMode(LoggerMode.Error)  # AtariEnv does so too, but after the banner
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
    """Refuse what an env does not take, or takes from arguments of ours, before it is made.

    Raises:
        ArgumentError: If there is any.
    """
    names = set(inspect.signature(own).parameters) - {"name", "num_envs", "autoreset_mode", "kwargs"}
    more = set(inspect.signature(kind).parameters) - taken - names
    if wrong := set(kwargs) - more:
        raise ArgumentError(
            f"{', '.join(sorted(wrong))}: expected {', '.join(sorted(names))}, or of {kind.__name__} "
            f"{', '.join(sorted(more))}"
        )


def sign(reward: Any) -> float:
    """-1, 0 or 1."""
    return float((reward > 0) - (reward < 0))


class Game(AtariEnv):
    """A game, frame by frame. It draws none unasked: `AtariPreprocessing` reads those that are seen."""

    _unseen = np.zeros(0, np.uint8)

    def _get_obs(self) -> NDArray[np.uint8]:
        return self._unseen


class Score(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in ``info["score"]`` what a game came to, when it ends: all lives, and rewards as they are."""

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
    """Each life is an episode of its own, but the game goes on.

    A reset after a lost life takes one no-op step. A reset after the end of the game, amid a life, or with a
    seed begins a new game.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._goes_on = False  # a life was lost, and there are others

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the loss of a life terminates."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        # At 0 lives some games, Qbert for one, go on for a few frames: their end is still to come.
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
    """Presses FIRE at each reset, as some games wait for it, and then takes the action after it.

    The second step is there because everybody's results were made with it.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and again if the two steps end the episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        for action in (FIRE, FIRE + 1):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info
