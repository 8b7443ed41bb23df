"""The learning curve of a run, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 7.0, 4.0  # inches


def draw_curve(folder: Path) -> bool:
    """Draw it as ``curve.png`` in the run's folder; False if no episode has ended."""
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shown = [line for line in lines if line["mean_return"] is not None]
    if not shown:
        return False
    config = json.loads((folder / "config.json").read_text())
    env = Path(config["env"]).name if ".py:" in config["env"] else config["env"]
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot([line["steps"] for line in shown], [line["mean_return"] for line in shown], linewidth=2)
    axes.set(
        xlabel="steps",
        ylabel="mean return of the last 100 episodes",
        title=f"{config['algorithm'].upper()} on {env}",
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    figure.savefig(folder / "curve.png", dpi=120)
    return True
