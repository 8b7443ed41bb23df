"""The family "box2d": Gymnasium's Box2D envs, such as "box2d-lunarlander", in their newest versions."""

from __future__ import annotations

from typing import Any

import gymnasium

from shoal.envs._gymnasium import newest_in

_IDS = newest_in("gymnasium.envs.box2d")


def names() -> list[str]:
    """Return the names of the envs without the prefix "box2d-"."""
    return list(_IDS)


def create(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make an env with `gymnasium.make`."""
    return gymnasium.make(_IDS[name], **kwargs)
