"""The learning curve of a run, as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from shoal.learn.runs.files import write_file
from shoal.learn.runs.metrics import EVALUATIONS, UPDATES, read_lines

WIDTH, HEIGHT = 7.0, 4.0  # inches


def begin_picture(title: str, ylabel: str) -> tuple[Any, Any]:
    """Return a figure and its axes for curves over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes: Any = figure.subplots()
    axes.set(xlabel="steps", ylabel=ylabel, title=title.rpartition("/")[2] if ".py:" in title else title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    return figure, axes


def write_picture(path: Path, figure: Any) -> None:
    """Write a figure as a PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120)
    write_file(path, picture.getvalue())


def read_curve(path: Path) -> list[tuple[float, float]]:
    """Return steps and mean returns of a file of metrics, where there is a return."""
    return [
        (line["steps"], line["mean_return"])
        for line in read_lines(path)[0]
        if isinstance(line.get("mean_return"), (int, float))
    ]


def draw_curve(folder: Path, title: str) -> bool:
    """Draw ``curve.png`` in the run's folder, with the evaluations; return False if there are no returns."""
    figure, axes = begin_picture(title, "mean return")
    curves = {UPDATES: "training, last 100 episodes", EVALUATIONS: "evaluation, likeliest actions"}
    for name, label in curves.items():
        if points := read_curve(folder / name):
            marker = "o" if name == EVALUATIONS else ""
            axes.plot(*zip(*points, strict=True), linewidth=2, marker=marker, markersize=4, label=label)
    if not axes.lines:
        return False
    axes.legend(frameon=False)
    write_picture(folder / "curve.png", figure)
    return True
