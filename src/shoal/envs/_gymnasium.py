"""Short names for envs of Gymnasium: "cartpole" is the newest version of CartPole."""

from __future__ import annotations

import gymnasium


def newest_in(*modules: str) -> dict[str, str]:
    """Return the short name of each env of these modules, with the id of its newest version."""
    found: dict[str, tuple[int, str]] = {}
    for name, spec in gymnasium.registry.items():
        if not str(spec.entry_point).startswith(modules) or spec.namespace is not None:
            continue
        short = name.rpartition("-v")[0].casefold()
        found[short] = max(found.get(short, (-1, "")), (spec.version or 0, name))
    return {short: name for short, (_, name) in sorted(found.items())}
