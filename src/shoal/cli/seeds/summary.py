"""Results of several runs: a table, ``summary.json`` and ``curve.png``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.cli._curve import begin_picture, read_curve, write_picture
from shoal.cli._format import number
from shoal.cli.seeds.side_by_side import SeedRun, Status
from shoal.learn.runs.files import write_file
from shoal.learn.runs.metrics import EVALUATIONS, UPDATES, read_lines

SUMMARY, CURVE = "summary.json", "curve.png"
POINTS = 300  # of the mean curve


@dataclass(frozen=True)
class Outcome:
    """Result of one seed. A figure that does not exist is None."""

    seed: int
    status: str
    """done, failed, stopped or waiting."""
    steps: int
    """Number of transitions."""
    mean_return: float | None
    """Mean return of the last 100 episodes of training."""
    best_evaluation: float | None
    """Largest mean return of an evaluation."""
    seconds: float
    """Seconds of training, including those before a resume."""
    folder: str


@dataclass(frozen=True)
class Spread:
    """A figure over all seeds that are done."""

    seeds: int
    """Number of seeds."""
    mean: float
    std: float | None
    """Standard deviation of a sample (divided by the number of seeds minus 1); None for one seed."""
    min: float
    max: float


def outcome_of(run: SeedRun) -> Outcome:
    """Read what a run came to from its folder."""
    lines = read_lines(run.folder / UPDATES)[0]
    last = lines[-1] if lines else {}
    evaluations = [_figure(line.get("mean_return")) for line in read_lines(run.folder / EVALUATIONS)[0]]
    return Outcome(
        seed=run.seed,
        status=run.status.value,
        steps=last.get("steps", 0),
        mean_return=_figure(last.get("mean_return")),
        best_evaluation=max((each for each in evaluations if each is not None), default=None),
        seconds=_figure(last.get("seconds")) or 0.0,
        folder=run.folder.name,
    )


def _figure(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def spread(outcomes: Sequence[Outcome], figure: str) -> Spread | None:
    """Return mean and deviation of a figure over the seeds that are done; None if no seed has it."""
    found = [getattr(each, figure) for each in outcomes if each.status == Status.DONE.value]
    values = [value for value in found if value is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(len(values), statistics.fmean(values), deviation, min(values), max(values))


def write_summary(folder: Path, algorithm: str, env: str, outcomes: Sequence[Outcome]) -> None:
    """Write ``summary.json``."""
    figures = {name: spread(outcomes, name) for name in ("mean_return", "best_evaluation")}
    content = {
        "algorithm": algorithm,
        "env": env,
        "seeds": [asdict(each) for each in outcomes],
        "over_seeds": {name: None if found is None else asdict(found) for name, found in figures.items()},
    }
    write_file(folder / SUMMARY, json.dumps(content, indent=2).encode())


def print_table(outcomes: Sequence[Outcome], console: Console | None = None) -> None:
    """Print a line for each seed, and below them mean, standard deviation, minimum and maximum."""
    console = Console(highlight=False, markup=False) if console is None else console
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    evaluated = any(each.best_evaluation is not None for each in outcomes)
    names = ["mean_return", *(["best_evaluation"] if evaluated else [])]
    table.add_column("seed")
    for name in ("", "steps", *(name.replace("_", " ") for name in names), "seconds"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for each in outcomes:
        cells = [_cell(getattr(each, name)) for name in names]
        table.add_row(str(each.seed), each.status, f"{each.steps:,}", *cells, f"{each.seconds:.1f}")
    spreads = [spread(outcomes, name) for name in names]
    if any(spreads):
        for place, name in enumerate(("mean", "std", "min", "max")):
            cells = [_cell(None if found is None else getattr(found, name)) for found in spreads]
            if not place:
                table.add_row()
            table.add_row(name, "", "", *cells, "")
    console.print(table)
    done = sum(each.status == Status.DONE.value for each in outcomes)
    if 0 < done < len(outcomes):
        console.print(f"mean to max: over the {done} of {len(outcomes)} seeds that are done")


def _cell(value: float | None) -> str:
    return "-" if value is None else number(value)


def draw_curves(folder: Path, title: str, runs: Sequence[SeedRun]) -> bool:
    """Draw ``curve.png`` with the curve of each seed and their mean; return False if there are no returns.

    The mean is that of the seeds that are done, over the steps that all of them have. If none is done, it is
    that of all seeds that have not failed.
    """
    curves = {run.seed: _curve(run.folder) for run in runs}
    if not any(len(steps) for steps, _ in curves.values()):
        return False
    figure, axes = begin_picture(title, "mean return, last 100 episodes")
    label = "each seed"
    for steps, returns in curves.values():
        if len(steps):
            axes.plot(steps, returns, linewidth=0.8, alpha=0.5, color="C0", label=label)
            label = "_"  # one entry in the legend
    done = [run for run in runs if run.status is Status.DONE]
    others = [run for run in runs if run.status is not Status.FAILED]
    kept = [curves[run.seed] for run in done or others if len(curves[run.seed][0])]
    steps, mean = mean_curve(kept)
    if len(steps):
        axes.plot(
            steps,
            mean,
            linewidth=2.5,
            color="C0",
            label=f"mean of {len(kept)} seeds" if len(kept) > 1 else "mean of 1 seed",
        )
    axes.legend(frameon=False)
    write_picture(folder / CURVE, figure)
    return True


Curve = tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]


def _curve(folder: Path) -> Curve:
    """Return steps and mean returns of a run."""
    table = np.array(read_curve(folder / UPDATES), np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of curves, interpolated on steps that all of them have; empty if there are none."""
    begin = max((steps[0] for steps, _ in curves), default=0.0)
    end = min((steps[-1] for steps, _ in curves), default=-1.0)
    if begin > end:
        return np.empty(0), np.empty(0)
    common = np.linspace(begin, end, POINTS)
    return common, np.mean([np.interp(common, steps, returns) for steps, returns in curves], axis=0)
