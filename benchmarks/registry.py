"""All contestants by name, as their adapters define them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# The order in which tables list them.
ADAPTERS = ("bare", "shoal", "native", "gymnasium", "sb3", "pufferlib", "tianshou", "envpool")


@dataclass(frozen=True)
class Contestant:
    """A vector env in one configuration; see `adapters` for what its fields mean."""

    name: str
    adapter: str
    venv: str
    processes: int
    envs: tuple[str, ...] | None

    def runs(self, env: str) -> bool:
        return self.envs is None or env in self.envs


class UnknownName(Exception):
    """A name that nothing has; the message lists the nearest ones."""


def load() -> dict[str, Contestant]:
    found = {}
    for adapter in ADAPTERS:
        if not (Path(__file__).parent / "adapters" / f"{adapter}.py").exists():
            continue
        module = importlib.import_module(f"adapters.{adapter}")
        processes, envs = getattr(module, "PROCESSES", {}), getattr(module, "ENVS", None)
        for name in module.CONTESTANTS:
            found[name] = Contestant(name, adapter, module.VENV, processes.get(name, 1), envs)
    return found


CONTESTANTS = load()


def choose(wanted: str) -> list[str]:
    """The contestant of that name, or all of an adapter."""
    folded = {name.casefold(): name for name in CONTESTANTS}
    if wanted.casefold() in folded:
        return [folded[wanted.casefold()]]
    if wanted.casefold() in ADAPTERS:
        return [name for name, found in CONTESTANTS.items() if found.adapter == wanted.casefold()]
    raise unknown("contestant", wanted, [*CONTESTANTS, *ADAPTERS])


def unknown(kind: str, wanted: str, names: Iterable[str]) -> UnknownName:
    names = list(dict.fromkeys(names))
    folded = {name.casefold(): name for name in names}
    near = [folded[match] for match in difflib.get_close_matches(wanted.casefold(), folded, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of {', '.join(names)}"
    return UnknownName(f"no {kind} {wanted!r}: {hint}")
