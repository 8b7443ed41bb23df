"""The order of a measurement: rounds of fresh processes, in them cycles, in those a slice of everybody.

The speed of a shared machine changes by a factor of two within seconds. Slices are short and a ratio is only
ever taken between slices of the same cycle, so that both sides have seen the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from guard import Guard
from process import ContestantFailed, Runner
from progress import Progress
from registry import CONTESTANTS


@dataclass(frozen=True)
class Entry:
    """A contestant in a case. It may run another env than the rest, to show what the difference costs."""

    contestant: str
    env: str
    label: str


@dataclass(frozen=True)
class Case:
    """What is measured together: an env, a number of envs, and who runs it."""

    env: str
    num_envs: int
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"{self.num_envs} x {self.env}"

    @property
    def running(self) -> list[Entry]:
        """Those that can run their env at all."""
        return [entry for entry in self.entries if CONTESTANTS[entry.contestant].runs(entry.env)]


@dataclass(frozen=True)
class Settings:
    rounds: int
    cycles: int
    slice_seconds: float


@dataclass
class Slice:
    """One timed slice: `rate` is the sum over a contestant's processes, each by its own clock."""

    round: int
    cycle: int
    contestant: str
    steps: int
    seconds: float
    rate: float


@dataclass
class Measured:
    """All of a case: its slices, and what went wrong, each by the label of its entry."""

    case: Case
    slices: list[Slice] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "env": self.case.env,
            "num_envs": self.case.num_envs,
            "contestants": [entry.label for entry in self.case.entries],
            "facts": self.facts,
            "errors": self.errors,
            "slices": [asdict(piece) for piece in self.slices],
        }


def rotated(entries: Sequence[Entry], cycle: int) -> list[Entry]:
    """Nobody runs always first, or always after the same one who leaves the caches cold."""
    direction = 1 if cycle % 2 == 0 else -1
    return [entries[(cycle + direction * turn) % len(entries)] for turn in range(len(entries))]


def measure(
    case: Case,
    settings: Settings,
    pythons: Callable[[str], tuple[Path, list[str]]],
    guard: Guard,
    progress: Progress,
) -> Measured:
    """Measure a case. `pythons` gives a contestant's interpreter and where further packages of it lie."""
    measured = Measured(case)
    entries = case.running
    for round_ in range(settings.rounds):
        runners: dict[str, Runner] = {}
        try:
            for entry in entries:
                progress(case, round_, None, f"starting {entry.label}")
                if entry.label in measured.errors:
                    continue
                try:
                    runners[entry.label] = _start(entry, case.num_envs, pythons, guard)
                    measured.facts[entry.label] = runners[entry.label].facts
                except ContestantFailed as error:
                    measured.errors[entry.label] = str(error)
            for cycle in range(settings.cycles):
                for entry in rotated(entries, cycle):
                    progress(case, round_, cycle, entry.label)
                    if entry.label not in runners:
                        continue
                    try:
                        parts = runners[entry.label].slice(settings.slice_seconds)
                    except ContestantFailed as error:
                        measured.errors[entry.label] = str(error)
                        runners.pop(entry.label).end()
                        continue
                    measured.slices.append(_slice(round_, cycle, entry.label, parts))
        finally:
            for runner in runners.values():
                runner.end()
    return measured


def _start(
    entry: Entry, num_envs: int, pythons: Callable[[str], tuple[Path, list[str]]], guard: Guard
) -> Runner:
    contestant = CONTESTANTS[entry.contestant]
    python, more_packages = pythons(contestant.venv)
    config = {
        "adapter": contestant.adapter,
        "contestant": contestant.name,
        "env": entry.env,
        "num_envs": num_envs,
        "more_packages": more_packages,
    }
    return Runner(python, config, contestant.processes, guard)


def _slice(round_: int, cycle: int, label: str, parts: list[tuple[int, float]]) -> Slice:
    steps = sum(steps for steps, _ in parts)
    rate = sum(steps / seconds for steps, seconds in parts)
    return Slice(round_, cycle, label, steps, max(seconds for _, seconds in parts), rate)
