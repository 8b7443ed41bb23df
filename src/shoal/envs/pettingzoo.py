"""The family "pettingzoo": games of several agents, in the newest versions.

In the "classic" games agents take turns. Each observation has an ``action_mask`` with the legal actions.
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
    """Return the names of the envs: "knights-archers-zombies" is butterfly/knights_archers_zombies-v11."""
    return list(_newest())


def create(name: str, **kwargs: Any) -> Any:
    """Make an env: a parallel env if PettingZoo has one, else an AEC env.

    Args:
        name: The name of the env.
        **kwargs: The arguments of PettingZoo's env.

    Raises:
        MissingExtra: If the game needs another package, as Atari and most classic games do.
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
