"""The family "nethack": the tasks of the NetHack Learning Environment, such as "nethack-score"."""

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
    """Return the names of the envs: "score" is NetHackScore-v0, "base" is NetHack-v0."""
    return list(_IDS)


def create(
    name: str, *, observation_keys: Sequence[str] | None = None, fix_moon_phase: bool = True, **kwargs: Any
) -> Game:
    """Make an env whose ``reset(seed=...)`` decides its games. Infos come at the end of an episode.

    Two limits come from nle. "challenge" allows no seeds: a seed only gives a warning. Some details, such as
    the names of shopkeepers, follow the clock and not the seed.

    Args:
        name: The name of the env.
        observation_keys: The parts of the observation, by nle's names. The default is all parts of the env
            except ``screen_descriptions``, which takes 130 KB in a row; the others together take 17 KB.
        fix_moon_phase: Whether a seeded game takes the moon and the hour from the seed, not from the clock.
        **kwargs: Other arguments of nle's env.
    """
    if observation_keys is None:
        observation_keys = _usual_keys(_IDS[name])
    return Game(_IDS[name], observation_keys=tuple(observation_keys), fix_moon_phase=fix_moon_phase, **kwargs)


def _usual_keys(gymnasium_id: str) -> list[str]:
    task: Any = load_env_creator(str(gymnasium.spec(gymnasium_id).entry_point))
    for ancestor in task.__mro__:  # most classes pass it on without their own default
        parameter = inspect.signature(ancestor).parameters.get("observation_keys")
        if parameter is not None:
            return [key for key in parameter.default if key != "screen_descriptions"]
    raise AssertionError(f"{task} takes no observation_keys")
