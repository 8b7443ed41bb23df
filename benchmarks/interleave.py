"""Run a measurement in rounds of cycles.

A round starts fresh processes. A cycle is a slice of each contestant; ratios are taken within a cycle only.
`shoal.cli._turns` runs the cycles, as it does for `shoal bench`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from guard import Guard
from process import ContestantFailed, Runner
from progress import Progress
from registry import CONTESTANTS

from shoal.cli._turns import Outcome


@dataclass(frozen=True)
class Entry:
    """A contestant in a case. It may run another env than the rest, to show what the difference costs."""

    contestant: str
    env: str
    label: str


@dataclass(frozen=True)
class Case:
    """An env, a number of envs, and the contestants that are measured together with them."""

    env: str
    num_envs: int
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"{self.num_envs} x {self.env}"

    @property
    def running(self) -> list[Entry]:
        """Return the entries whose contestant can run its env."""
        return [entry for entry in self.entries if CONTESTANTS[entry.contestant].runs(entry.env)]


@dataclass(frozen=True)
class Settings:
    rounds: int
    cycles: int
    slice_seconds: float


@dataclass
class Measured:
    """The result of a case: its slices, failures and facts, by the label of the entry."""

    case: Case
    cycles: int
    outcome: Outcome = field(default_factory=Outcome)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        slices = [
            {"round": turn // self.cycles, "cycle": turn % self.cycles, "contestant": label, **asdict(piece)}
            for turn, pieces in enumerate(self.outcome.turns)
            for label, piece in pieces.items()
        ]
        return {
            "env": self.case.env,
            "num_envs": self.case.num_envs,
            "contestants": [entry.label for entry in self.case.entries],
            "facts": self.facts,
            "errors": self.outcome.failures,
            "slices": slices,
        }


def measure(
    case: Case,
    settings: Settings,
    pythons: Callable[[str], tuple[Path, list[str]]],
    guard: Guard,
    progress: Progress,
) -> Measured:
    """Measure a case.

    Args:
        case: What to measure.
        settings: Rounds, cycles and the length of a slice.
        pythons: Returns the interpreter of an environment, and folders with further packages for it.
        guard: Kills the processes if this process is killed.
        progress: Called before each start and each slice.
    """
    measured = Measured(case, settings.cycles)
    outcome = measured.outcome
    for round_ in range(settings.rounds):
        runners: dict[str, Runner] = {}
        try:
            for entry in case.running:
                progress(case, round_, None, f"starting {entry.label}")
                try:
                    if entry.label not in outcome.failures:
                        runners[entry.label] = _start(entry, case.num_envs, pythons, guard)
                        measured.facts[entry.label] = runners[entry.label].facts
                except ContestantFailed as error:
                    outcome.fail(entry.label, error)
                if entry.label not in runners:
                    progress.turn += settings.cycles  # the slices that it will not run
            for cycle in range(settings.cycles):
                outcome.take_turn(
                    runners, settings.slice_seconds, show=partial(progress, case, round_, cycle)
                )
        finally:
            for runner in runners.values():
                runner.close()
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
