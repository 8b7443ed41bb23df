"""Configuration files of runs of half a second."""

import csv
import json
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from shoal.hockey import train_run

RECORDS = "shoal.hockey.training.records.Records"

NAME = "small"


def phase(name="shoot", episodes=6, mode="TRAIN_SHOOTING", opponent="none", **more):
    environment = {"mode": mode} if isinstance(mode, str) else {"mixture": mode}
    return {
        "name": name,
        "episodes": episodes,
        "environment": environment,
        "opponent": {"type": opponent},
        **more,
    }


def config(*phases, agent="DDDQN", training=None, **hyperparameters):
    return {
        "curriculum": {"phases": list(phases) or [phase()]},
        "hyperparameters": {"learning_rate": 1e-3, "batch_size": 16},
        "training": {
            "warmup_steps": 100,
            "updates_per_step": 1 / 8,
            "checkpoint_save_freq": 2,
            **(training or {}),
        },
        "agent": {"type": agent, "hyperparameters": {"hidden_dim": [16], **hyperparameters}},
    }


def write(folder, content):
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def train(folder, content=None, *, draws=False, **options):
    """Train in a folder of that folder, without a word; returns the result. Plots take most of the time."""
    path = write(folder, config() if content is None else content)
    settings = {"verbose": False, "device": "cpu", "run_name": NAME, "run_dir": folder / "run", **options}
    with nullcontext() if draws else without_plots():
        return train_run(path, folder / "runs", **settings)


def without_plots():
    return patch(f"{RECORDS}.draw", lambda records: None)


def table(run, kind, name=NAME):
    """The rows of a csv of a run, as dicts."""
    with (Path(run) / "csvs" / f"{name}_{kind}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def contents(folder):
    """All files of a folder, but the lock and the files of TensorBoard, of which each process has its own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock" and "tfevents" not in path.name
    }
