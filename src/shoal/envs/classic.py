"""The family "classic": Gymnasium's classic control and toy text envs, in their newest versions."""

from __future__ import annotations

from typing import Any

import gymnasium

from shoal.envs._gymnasium import newest_in

_IDS = newest_in("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")


def names() -> list[str]:
    """Return the names of the envs without the prefix "classic-"."""
    return list(_IDS)


def create(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make an env with `gymnasium.make`."""
    return gymnasium.make(_IDS[name], **kwargs)
