"""Compare contestants that run in this interpreter, for the scripts that measure one thing each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.progress import track

from shoal.cli._turns import Outcome, end


def compare(contestants: Mapping[str, Any], seconds: float, turns: Iterable[int]) -> Outcome:
    """Warm up the contestants, let each run a slice in each turn, and close them.

    Raises:
        SystemExit: If a contestant fails.
    """
    outcome = Outcome()
    try:
        for contestant in contestants.values():
            contestant.warm_up()
        for _ in turns:
            outcome.take_turn(contestants, seconds)
            if outcome.failures:
                raise SystemExit("\n".join(f"{name} failed: {why}" for name, why in outcome.failures.items()))
    finally:
        for contestant in contestants.values():
            end(contestant.close)
    return outcome


def shown(turns: int, doing: str = "taking turns") -> Iterable[int]:
    """Count turns, and show a progress bar."""
    return track(range(turns), doing, transient=True)
