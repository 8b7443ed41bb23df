"""nethack-score and the like: the tasks of the NetHack Learning Environment."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium
import nle  # noqa: F401 - registers its envs
from gymnasium.envs.registration import load_env_creator

from shoal.envs._gymnasium import newest_in
from shoal.envs._nle import Game

_IDS = {name.removeprefix("nethack") or "base": full for name, full in newest_in("nle.").items()}


def names() -> list[str]:
    """What follows "nethack-": "score" for NetHackScore-v0, and "base" for NetHack-v0."""
    return list(_IDS)


def create(
    name: str, *, observation_keys: Sequence[str] | None = None, fix_moon_phase: bool = True, **kwargs: Any
) -> Game:
    """One env, whose ``reset(seed=...)`` decides its games and whose infos come at the end of an episode.

    Two things are as nle has them. "challenge" allows no seeds: it warns, and plays on. Whatever the seed,
    NetHack takes a little from the clock, such as the names of shopkeepers.

    Args:
        name: Which.
        observation_keys: Parts of the observation, by nle's names; by default what the env has without
            ``screen_descriptions``, because they take 130 KB in a row and all others together 17.
        fix_moon_phase: If seeded, take the moon and the hour from the seed, and not from the clock.
        **kwargs: As nle's env takes them.
    """
    if observation_keys is None:
        observation_keys = _usual_keys(_IDS[name])
    return Game(_IDS[name], observation_keys=tuple(observation_keys), fix_moon_phase=fix_moon_phase, **kwargs)


def _usual_keys(gymnasium_id: str) -> list[str]:
    task: Any = load_env_creator(str(gymnasium.spec(gymnasium_id).entry_point))
    for ancestor in task.__mro__:  # most pass it on without a default of their own
        parameter = inspect.signature(ancestor).parameters.get("observation_keys")
        if parameter is not None:
            return [key for key in parameter.default if key != "screen_descriptions"]
    raise AssertionError(f"{task} takes no observation_keys")
