"""Metrics of a run: one JSON line for each update in ``metrics.jsonl``, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shoal.learn.progress import Update
from shoal.learn.runs.files import file_errors_in_words, write_file

UPDATES, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"

SCALARS = {  # CleanRL's names for TensorBoard
    "policy": "losses/policy_loss",
    "value": "losses/value_loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "grad_norm": "losses/grad_norm",
    "explained_variance": "losses/explained_variance",
}
FIGURES = {  # fields of `Update` that are written, with the number of digits that matter
    "steps": None,
    "updates": None,
    "seconds": 4,
    "steps_per_second": 1,
    "episodes": None,
    "mean_return": None,
    "mean_length": None,
    "learning_rate": None,
}


class Lines:
    """An append-only file of JSON lines, one for each update or evaluation.

    Args:
        path: The file.
        updates: The number of updates so far. Later lines are removed, because training repeats them.
        steps: The number of transitions so far.

    Attributes:
        damaged: The number of lines that were not JSON, and were removed.
    """

    def __init__(self, path: Path, updates: int, steps: int) -> None:
        self._path = path
        kept, self.damaged = read_lines(path)
        kept = [line for line in kept if line["updates"] <= updates and line["steps"] <= steps]
        write_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file: IO[str] = path.open("a")
        self._flush_due = 0.0

    def append(self, figures: Mapping[str, Any]) -> None:
        """Append a line. Lines are flushed at most once a second."""
        with file_errors_in_words(self._path):
            self._file.write(json.dumps({name: _finite(value) for name, value in figures.items()}) + "\n")
            if (now := time.monotonic()) >= self._flush_due:
                self._file.flush()
                self._flush_due = now + 1

    def flush(self) -> None:
        """Write all lines to the file."""
        with file_errors_in_words(self._path):
            self._file.flush()

    def sync(self) -> None:
        """Write all lines to the disk."""
        self.flush()
        with file_errors_in_words(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with file_errors_in_words(self._path):
            self._file.close()


def read_lines(path: Path, tail: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a file, and the number of damaged ones.

    Args:
        path: The file. It may be missing, and a process may be writing to it.
        tail: The number of bytes to read from the end of the file; None for all.
    """
    if not path.exists():
        return [], 0
    with file_errors_in_words(path), path.open("rb") as file:
        begin = 0 if tail is None else max(0, file.seek(0, os.SEEK_END) - tail)
        file.seek(begin)
        content = file.read()
    found, damaged = [], 0
    for line in content.split(b"\n")[1 if begin else 0 :]:  # the first may be a part of a line
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):  # undecodable bytes are a ValueError too
            value = "damaged"
        if isinstance(value, dict) and _has_figures(value):
            found.append(value)
        elif value is not None:
            damaged += 1
    return found, damaged


def _has_figures(line: dict[str, Any]) -> bool:
    """Return whether a line has whole numbers of updates and steps, and no number that is absurdly large."""
    numbers = [value for value in line.values() if isinstance(value, int)]
    counts = [line.get(name) for name in ("updates", "steps")]
    return all(isinstance(count, int) for count in counts) and all(abs(each) < 1 << 62 for each in numbers)


def figures_of(update: Update) -> dict[str, Any]:
    """Return the figures of an update that its line has."""
    figures = {name: getattr(update, name) for name in FIGURES}
    for name, digits in FIGURES.items():
        if digits is not None:
            figures[name] = round(figures[name], digits)
    return {**figures, **update.losses}


def update_from(figures: Mapping[str, Any], total_steps: int) -> Update | None:
    """Return the update that a line describes; None if the line lacks something."""
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in figures.items()}
    with suppress(KeyError):
        fields: dict[str, Any] = {name: known.pop(name) for name in FIGURES}
        if all(isinstance(value, (int, float)) for value in (*fields.values(), *known.values())):
            return Update(total_steps=total_steps, losses=known, **fields)
    return None


class Board:
    """TensorBoard's events of a run; nothing if TensorBoard is not installed.

    Args:
        folder: The run's folder.
        steps: The number of transitions so far: later events are hidden. None for a new run.
    """

    def __init__(self, folder: Path, steps: int | None) -> None:
        self._folder = folder
        self._writer: Any = None
        self._last: Update | None = None
        self._due = 0.0
        with suppress(ImportError), file_errors_in_words(folder):
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=steps)

    def update(self, update: Update) -> None:
        """Write an update, unless the last one was written a moment ago.

        TensorBoard may take at most a quarter of a percent of the time, also if updates are short.
        """
        now, self._last = time.monotonic(), update
        if now >= self._due:
            self._write()
            self._due = now + 400 * (time.monotonic() - now)

    def _write(self) -> None:
        update, self._last = self._last, None
        if update is None:
            return
        scalars = {SCALARS.get(name, f"losses/{name}"): value for name, value in update.losses.items()}
        scalars["charts/SPS"] = update.steps_per_second
        scalars["charts/learning_rate"] = update.learning_rate
        scalars["charts/episodic_return"] = update.mean_return
        scalars["charts/episodic_length"] = update.mean_length
        self.add(scalars, update.steps)

    def add(self, scalars: Mapping[str, float], steps: int) -> None:
        """Write scalars by name."""
        if self._writer is None:
            return
        with file_errors_in_words(self._folder):
            for name, value in scalars.items():
                if math.isfinite(value):
                    self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        """Write the last update, and close the file."""
        try:
            self._write()
        finally:
            writer, self._writer = self._writer, None
            if writer is not None:
                with file_errors_in_words(self._folder):
                    writer.close()


def _finite(value: Any) -> Any:
    """Replace NaN and inf by None, because JSON has neither."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
