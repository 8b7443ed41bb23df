"""pettingzoo-knights-archers-zombies and the like: games of many agents, in the newest versions.

Those of classic take turns, and say by ``action_mask`` in each observation what may be played.
"""

from __future__ import annotations

from typing import Any, Literal

from pettingzoo import aec_registry, make, parallel_registry
from pettingzoo.env_registry.exceptions import FailedToImport

from shoal.errors import MissingExtra


def _newest() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for spec in {**aec_registry, **parallel_registry}.values():
        short = spec.name.replace("_", "-")
        if short not in found or (spec.version or 0) >= (found[short].version or 0):
            found[short] = spec
    return dict(sorted(found.items()))


def names() -> list[str]:
    """What follows "pettingzoo-": "knights-archers-zombies" for butterfly/knights_archers_zombies-v11."""
    return list(_newest())


def create(name: str, **kwargs: Any) -> Any:
    """One env: parallel if PettingZoo has it so, else AEC.

    Args:
        name: Which.
        **kwargs: As PettingZoo's env takes them.

    Raises:
        MissingExtra: If the game needs another package, as Atari and most of classic do.
    """
    spec = _newest()[name]
    kind: Literal["parallel", "aec"] = "parallel" if spec.id in parallel_registry else "aec"
    try:
        return make(kind, spec.id, **kwargs)
    except (FailedToImport, ImportError) as error:
        group = spec.namespace or "all"
        raise MissingExtra(
            f'pettingzoo-{name} needs packages that are not installed: pip install "pettingzoo[{group}]"'
        ) from error
