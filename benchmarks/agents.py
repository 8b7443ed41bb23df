"""Knights, archers and zombies: a vec of many agents beside two processes that step the game alone, in turns.

    .venv/bin/python benchmarks/agents.py

Counted are steps of the game. Episodes end in the same step in which they begin anew, in all of them.
"""

from __future__ import annotations

import time
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import pettingzoo
from rich.console import Console
from rich.progress import track
from rich.table import Table

import shoal

GAME, NAME, CHOICES = "butterfly/knights_archers_zombies-v11", "pettingzoo-knights-archers-zombies", 6
NUM_ENVS, AGENTS, TURNS, SECONDS = 16, 4, 30, 0.3
VECS: dict[str, dict[str, Any]] = {
    "shoal.Multiprocessing": {"num_workers": 2},
    "shoal.Multiprocessing parent": {"num_workers": 1, "parent_steps": True},
    "shoal async fifo": {"num_workers": 2, "batch_size": 8},
    "shoal async ready": {"num_workers": 2, "batch_size": 8, "order": "ready"},
}


def bare(seed: int, line: Connection) -> None:
    """One game, without a vec: steps for a while whenever it is told to."""
    env = pettingzoo.make("parallel", GAME)
    env.reset(seed=seed)
    choices = np.random.default_rng(seed).integers(CHOICES, size=(10_000, AGENTS))
    count = 0
    while line.recv():
        begun, before = time.perf_counter(), count
        while time.perf_counter() < begun + SECONDS:
            env.step(dict(zip(env.agents, choices[count % 10_000], strict=False)))
            count += 1
            if not env.agents:
                env.reset()
        line.send((count - before) / (time.perf_counter() - begun))


def rate(vec: shoal.VectorEnv, actions: np.ndarray) -> float:
    """Steps of the game per second, for a while."""
    begun, count = time.perf_counter(), 0
    step = vec.step if vec.batch_size == vec.num_envs else lambda chosen: (vec.recv(), vec.send(chosen))
    while time.perf_counter() < begun + SECONDS:
        step(actions[count % len(actions)])
        count += 1
    return count * vec.batch_size / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    lines, workers = [], []
    for seed in range(2):
        ours, theirs = Pipe()
        workers.append(Process(target=bare, args=(seed, theirs), daemon=True))
        workers[-1].start()
        lines.append(ours)
    vecs, actions = {}, {}
    for name, options in VECS.items():
        vec = shoal.make(NAME, NUM_ENVS, autoreset_mode="SameStep", copy=False, **options)
        rows = vec.batch_size * vec.agents_per_env
        vecs[name] = vec
        actions[name] = np.random.default_rng(0).integers(CHOICES, size=(1000, rows))
        (vec.async_reset if vec.batch_size < NUM_ENVS else vec.reset)(seed=0)
    found: dict[str, list[float]] = {"two bare processes": [], **{name: [] for name in VECS}}
    for _ in track(range(TURNS), "taking turns", transient=True):
        for line in lines:
            line.send(True)
        found["two bare processes"].append(sum(line.recv() for line in lines))
        for name, vec in vecs.items():
            found[name].append(rate(vec, actions[name]))
    for line in lines:
        line.send(False)
    for vec in vecs.values():
        vec.close()
    table = Table("contestant", "steps/s", "of two bare processes")
    limit = found["two bare processes"]
    for name, rates in found.items():
        share = median(ours / theirs for ours, theirs in zip(rates, limit, strict=True))
        table.add_row(name, f"{median(rates):,.0f}", f"{share:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
