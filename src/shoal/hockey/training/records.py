"""What a training run leaves beside its checkpoint: csvs, plots, saved policies, and their names.

configs/<run>.json            the configuration file
csvs/<run>_rewards.csv        episode, reward, phase
csvs/<run>_losses.csv         step, loss
csvs/<run>_evaluation.csv     step, episode, win_rate, mean_reward, std_reward, wins, losses, draws
plots/<run>_rewards.png       and _losses.png, _evaluation.png
models/<run>_ep000500.safetensors, <run>_ep000500_metadata.json, <run>.safetensors
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import MissingExtra, RunError
from shoal.hockey.training.config import Config
from shoal.learn.runs.files import file_errors_in_words, write_file

COLUMNS = {
    "rewards": ("episode", "reward", "phase"),
    "losses": ("step", "loss"),
    "evaluation": (
        *("step", "episode", "win_rate", "mean_reward", "std_reward"),
        *("wins", "losses", "draws"),
    ),
}
FOLDERS = ("configs", "csvs", "plots", "models")


def check_plots() -> None:
    """Raise `MissingExtra` if plots cannot be drawn, before hours of training."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'plots of a training run need matplotlib ({error}). Install it: pip install "shoal[cli]"'
        ) from error


def new_folder(base: Path) -> Path:
    """Make the folder of a run, named by the time."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        path = base / (stamp if number == 1 else f"{stamp}-{number}")
        with file_errors_in_words(path):
            base.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                continue
        return path
    raise RunError(f"{base}: has 1000 folders of this second")


def name_of(config: Config, num_envs: int) -> str:
    """Make the name of a run of its main settings, the time and the number of envs."""
    rate = f"{config.learning_rate:.0e}".replace("-", "").replace("+", "")
    widths = "_".join(map(str, config.agent.hyperparameters.get("hidden_dim", (256, 256))))
    digest = hashlib.md5(
        json.dumps(config.source, sort_keys=True).encode(), usedforsecurity=False
    ).hexdigest()
    several = f"_vec{num_envs}" if num_envs > 1 else ""
    stamp = time.strftime("%Y%m%d_%H%M%S")
    return f"run_lr{rate}_bs{config.batch_size}_h{widths}_{digest[:8]}_{stamp}{several}"


class Records:
    """Writer of the files of a run.

    Args:
        folder: Folder of the run.
        name: Name of the run.
        games: Number of games so far. Later lines are removed, because training repeats them.
        steps: Number of steps so far, likewise.
    """

    def __init__(self, folder: Path, name: str, games: int = 0, steps: int = 0) -> None:
        self.folder, self.name = folder, name
        for each in FOLDERS:
            with file_errors_in_words(folder / each):
                (folder / each).mkdir(exist_ok=True)
        self._files = {}
        for kind, columns in COLUMNS.items():
            path = self._csv(kind)
            last = {"rewards": games, "losses": steps, "evaluation": steps}[kind]
            kept = [line for line in read_csv(path, len(columns)) if _number(line[0]) <= last]
            lines = [columns, *kept]
            written = io.StringIO()
            csv.writer(written, lineterminator="\n").writerows(lines)
            write_file(path, written.getvalue().encode())
            self._files[kind] = path.open("a", newline="")
        self._writers = {kind: csv.writer(file, lineterminator="\n") for kind, file in self._files.items()}

    def _csv(self, kind: str) -> Path:
        return self.folder / "csvs" / f"{self.name}_{kind}.csv"

    def add(self, kind: str, *values: Any) -> None:
        """Append a line to a csv."""
        self._writers[kind].writerow(values)

    def flush(self) -> None:
        """Write all lines to the files."""
        for file in self._files.values():
            with file_errors_in_words(Path(file.name)):
                file.flush()

    def model(self, games: int | None = None) -> Path:
        """Return the path of the policy after a number of games; of the last one by default."""
        suffix = "" if games is None else f"_ep{games:06d}"
        return self.folder / "models" / f"{self.name}{suffix}.safetensors"

    def remove_models_after(self, games: int) -> None:
        """Remove policies that were saved after a number of games, because training repeats these games."""
        for path in (self.folder / "models").glob(f"{self.name}_ep*"):
            number = path.name.removeprefix(f"{self.name}_ep")[:6]
            if number.isdigit() and int(number) > games:
                path.unlink()

    def write_metadata(self, games: int, values: dict[str, Any]) -> None:
        """Write what belongs to the policy after a number of games."""
        path = self.model(games)
        write_file(
            path.with_name(f"{path.stem}_metadata.json"), json.dumps(values, indent=2).encode() + b"\n"
        )

    def rewards(self) -> list[float]:
        """Return the rewards of all games."""
        self.flush()
        return [_number(line[1]) for line in read_csv(self._csv("rewards"), 3)]

    def evaluations(self) -> list[dict[str, Any]]:
        """Return all evaluations."""
        self.flush()
        columns = COLUMNS["evaluation"]
        whole = {"step", "episode", "wins", "losses", "draws"}
        return [
            {
                name: int(value) if name in whole else _number(value)
                for name, value in zip(columns, line, strict=True)
            }
            for line in read_csv(self._csv("evaluation"), len(columns))
        ]

    def draw(self) -> None:
        """Draw all plots."""
        self.flush()
        rewards = np.array(
            [[_number(part) for part in line[:2]] for line in read_csv(self._csv("rewards"), 3)]
        )
        losses = np.array([[_number(part) for part in line] for line in read_csv(self._csv("losses"), 2)])
        self._draw_curve("rewards", rewards, "episode", "reward of a game", 10)
        self._draw_curve("losses", losses, "step", "loss of the values", 100)
        self._draw_evaluations(self.evaluations())

    def _draw_curve(self, kind: str, points: Any, xlabel: str, ylabel: str, window: int) -> None:
        if not len(points):
            return
        figure, axes = _picture(self.name, xlabel, ylabel)
        axes.plot(points[:, 0], points[:, 1], linewidth=0.7, alpha=0.4, label="each")
        if len(points) >= window:
            means = np.convolve(points[:, 1], np.full(window, 1 / window), "valid")
            axes.plot(points[window - 1 :, 0], means, linewidth=2, label=f"mean of {window}")
        axes.legend(frameon=False)
        self._write(kind, figure)

    def _draw_evaluations(self, found: Sequence[dict[str, Any]]) -> None:
        if not found:
            return
        figure, axes = _picture(self.name, "step", "win rate", rows=2)
        steps = [each["step"] for each in found]
        axes[0].plot(steps, [each["win_rate"] for each in found], marker="o", linewidth=2)
        axes[0].axhline(0.5, linestyle="--", linewidth=1, color="0.5")
        axes[0].set_ylim(0, 1)
        means = [each["mean_reward"] for each in found]
        axes[1].errorbar(steps, means, [each["std_reward"] for each in found], marker="o", capsize=3)
        axes[1].set(ylabel="reward of a game", xlabel="step")
        self._write("evaluation", figure)

    def _write(self, kind: str, figure: Any) -> None:
        picture = io.BytesIO()
        figure.savefig(picture, dpi=120)
        write_file(self.folder / "plots" / f"{self.name}_{kind}.png", picture.getvalue())

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def read_csv(path: Path, columns: int) -> list[list[str]]:
    """Return the lines of a csv without its header; a line that a kill has cut off is left out."""
    if not path.exists():
        return []
    with file_errors_in_words(path):
        whole = path.read_text(errors="replace").rpartition("\n")[0]
    lines = csv.reader(io.StringIO(whole))
    return [line for place, line in enumerate(lines) if place and len(line) == columns]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _picture(title: str, xlabel: str, ylabel: str, rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.0 * rows), layout="constrained")
    axes: Any = figure.subplots(rows)
    for each in np.atleast_1d(axes):
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    first = axes if rows == 1 else axes[0]
    first.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return figure, axes
