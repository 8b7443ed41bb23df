"""Measure knights, archers and zombies: vecs of many agents beside two processes that step the game alone.

    .venv/bin/python benchmarks/agents.py

Steps of the game are counted. All contestants reset a game in the step in which it ends.
"""

from __future__ import annotations

from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import pettingzoo
from rich.console import Console
from rich.table import Table
from turns import compare, shown

import shoal
from shoal.cli._loops import Slice, Timed, Vector

GAME, NAME, CHOICES = "butterfly/knights_archers_zombies-v11", "pettingzoo-knights-archers-zombies", 6
NUM_ENVS, AGENTS, TURNS, SECONDS = 16, 4, 30, 0.3
LIMIT = "two bare processes"
VECS: dict[str, dict[str, Any]] = {
    "shoal.Multiprocessing": {"num_workers": 2},
    "shoal.Multiprocessing parent": {"num_workers": 1, "parent_steps": True},
    "shoal async fifo": {"num_workers": 2, "batch_size": 8},
    "shoal async ready": {"num_workers": 2, "batch_size": 8, "order": "ready"},
}


def play(seed: int, line: Connection) -> None:
    """Step one game without a vec: run a slice for each time that is received."""
    env = pettingzoo.make("parallel", GAME)
    env.reset(seed=seed)

    def step(actions: Any) -> None:
        env.step(dict(zip(env.agents, actions, strict=False)))
        if not env.agents:
            env.reset()

    choices = np.random.default_rng(seed).integers(CHOICES, size=(10_000, AGENTS))
    timed = Timed(Vector(step, 1, counts_resets=False), choices)
    timed.warm_up()
    while seconds := line.recv():
        timing = timed.slice(seconds)
        line.send((timing.steps, timing.seconds))


class TwoProcesses:
    """Step two games at the same time, each in its own process."""

    def __init__(self) -> None:
        self.lines = []
        for seed in range(2):
            ours, theirs = Pipe()
            Process(target=play, args=(seed, theirs), daemon=True).start()
            self.lines.append(ours)

    def warm_up(self) -> None:
        """Do nothing: the processes warm up by themselves."""

    def slice(self, seconds: float) -> Slice:
        for line in self.lines:
            line.send(seconds)
        return Slice.of(*[line.recv() for line in self.lines])

    def close(self) -> None:
        for line in self.lines:
            line.send(0.0)


def make(options: dict[str, Any]) -> Timed:
    vec = shoal.make(NAME, NUM_ENVS, autoreset_mode="SameStep", copy=False, **options)
    rows = vec.batch_size * vec.agents_per_env
    is_async = vec.batch_size < NUM_ENVS
    (vec.async_reset if is_async else vec.reset)(seed=0)
    step = (lambda actions: (vec.recv(), vec.send(actions))) if is_async else vec.step
    loop = Vector(step, vec.batch_size, counts_resets=False, close=vec.close)
    return Timed(loop, np.random.default_rng(0).integers(CHOICES, size=(1000, rows)))


def main() -> None:
    """Measure and print."""
    contestants: dict[str, Any] = {LIMIT: TwoProcesses()}  # first: its processes are forked without any vec
    contestants |= {name: make(options) for name, options in VECS.items()}
    outcome = compare(contestants, SECONDS, shown(TURNS))
    table = Table("contestant", "steps/s", "of two bare processes")
    for name in contestants:
        share = median(outcome.ratios(name, LIMIT))
        table.add_row(name, f"{median(outcome.rates(name)):,.0f}", f"{share:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
