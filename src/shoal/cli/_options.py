"""Options as the user wrote them: which settings were given, and which values belong to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def name_of(option: str) -> str:
    """Return the name of the field that an option sets; "" for a value."""
    if not option.startswith("--"):
        return ""
    return option.partition("=")[0][2:].replace("-", "_").removeprefix("no_")


def names_in(options: Sequence[str]) -> set[str]:
    """Return the names of all fields that options set."""
    return {name for option in options if (name := name_of(option))}


def without(options: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the options except those with some names, and without their values."""
    kept, keeps = [], True
    for option in options:
        if name := name_of(option):
            keeps = name not in names
        if keeps:
            kept.append(option)
    return kept
