"""box2d-lunarlander and the like: Gymnasium's Box2D envs, in their newest versions."""

from __future__ import annotations

from typing import Any

import gymnasium

from shoal.envs._gymnasium import newest_in

_IDS = newest_in("gymnasium.envs.box2d")


def names() -> list[str]:
    """What follows "box2d-"."""
    return list(_IDS)


def create(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One env, as Gymnasium makes it."""
    return gymnasium.make(_IDS[name], **kwargs)
