"""What is measured: the two sets, and a choice of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interleave import Case, Entry, Settings
from registry import CONTESTANTS, choose, unknown

from envs import ENVS

SETTINGS = {
    "quick": Settings(rounds=2, cycles=6, slice_seconds=0.08),
    "full": Settings(rounds=3, cycles=8, slice_seconds=0.08),
    "custom": Settings(rounds=2, cycles=6, slice_seconds=0.08),
}
LONGEST_SLICE_MS = 100
HERE_ONLY = ("nethack", "minihack")  # need packages that only the interpreter of the tests has: not in a set

# No installs but Gymnasium's, and no process-based peers, whose start takes longer than their slices.
QUICK = (
    "bare",
    "bare x2",
    "shoal.Serial",
    "shoal.Serial copy",
    "shoal.Serial stats",
    "shoal.Multiprocessing",
    "shoal.Multiprocessing parent",
    "gymnasium Sync",
)
# Only where what is copied weighs something, or what it costs is to be known.
COPIES = ("gymnasium Sync copy",)
# Beside the same contestants without infos, in the same cycles, so that the difference can be taken.
INFOS = ("shoal.Serial@null-info", "gymnasium Sync@null-info")

QUICK_CASES = (
    ("null", 64),
    ("null", 256),
    ("null-info", 64),
    ("nested", 64),
    ("frame", 64),
    ("cartpole", 64),
)
FULL_CASES = (
    *QUICK_CASES,
    ("frame", 256),
    ("cartpole", 256),
    ("cartpole", 8),
    ("lunarlander", 64),
    ("busy", 64),
    ("busy", 8),
    ("variable", 64),
    ("breakout", 64),
)


def entries(env: str, wanted: Iterable[str]) -> tuple[Entry, ...]:
    """Contestants by name, by adapter, or as `name@env` for another env than the case's."""
    found: dict[str, Entry] = {}
    for item in wanted:
        name, _, other = item.partition("@")
        if other and other not in ENVS:
            raise unknown("env", other, ENVS)
        for chosen in choose(name):
            label = f"{chosen}@{other}" if other else chosen
            found[label] = Entry(chosen, other or env, label)
    return tuple(found.values())


def contestants_of(set_name: str, env: str, num_envs: int) -> list[str]:
    """Those a set runs on an env, in the order of the tables."""
    names = [name for name in CONTESTANTS if name not in COPIES] if set_name == "full" else list(QUICK)
    if env == "frame" or (env, num_envs) == ("null", 64):
        names[names.index("gymnasium Sync") + 1 : 0] = COPIES
    if (env, num_envs) == ("null", 64):
        names += INFOS
    return names


def select(
    set_name: str | None,
    envs: Sequence[str] = (),
    num_envs: Sequence[int] = (),
    contestants: Sequence[str] = (),
) -> list[Case]:
    """The cases of a set, narrowed to what was asked for; without a set, all of what was asked for.

    Raises:
        UnknownName: If an env or a contestant does not exist.
    """
    for env in envs:
        if env not in ENVS:
            raise unknown("env", env, ENVS)
    if set_name is None:
        pairs = [(env, number) for env in envs or ["null"] for number in num_envs or [64]]
    else:
        pairs = [
            (env, number)
            for env, number in (FULL_CASES if set_name == "full" else QUICK_CASES)
            if (not envs or env in envs) and (not num_envs or number in num_envs)
        ]
    return [
        Case(env, number, entries(env, contestants or contestants_of(set_name or "quick", env, number)))
        for env, number in pairs
    ]
