"""classic-cartpole and the like: Gymnasium's classic control and toy text, in their newest versions."""

from __future__ import annotations

from typing import Any

import gymnasium

from shoal.envs._gymnasium import newest_in

_IDS = newest_in("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")


def names() -> list[str]:
    """What follows "classic-"."""
    return list(_IDS)


def create(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One env, as Gymnasium makes it."""
    return gymnasium.make(_IDS[name], **kwargs)
