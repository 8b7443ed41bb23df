"""Measure the hockey game: game steps per second on one and two threads, and the time to compile it.

    .venv/bin/python benchmarks/hockey.py

A game step moves both players. The original makes 4,400 to 4,700 of them a second with random actions, and
2,900 to 3,400 with two bots, on one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from turns import compare, shown

import shoal
from shoal.cli._loops import Timed, Vector
from shoal.hockey import Hockey, HockeyOne, settings

TURNS, SECONDS, BATCHES, GAMES, WARM_UP = 15, 0.2, 16, 4096, 300
CASES: dict[str, tuple[Any, dict[str, float]]] = {
    "random actions of both players": (Hockey, {}),
    "strong bot against weak bot": (HockeyOne, settings(played_by="strong", opponent="weak")),
    "strong bot against strong bot": (HockeyOne, settings(played_by="strong", opponent="strong")),
    "random actions of one player, nobody opposite": (HockeyOne, settings(opponent="none")),
}


def make(env: Any, kwargs: dict[str, float], threads: int) -> Timed:
    vec = shoal.Native(env, GAMES, env_kwargs=kwargs, num_workers=threads, copy=False)
    vec.reset(seed=0)
    draw = np.random.default_rng(0).uniform
    actions = [draw(-1, 1, (vec.num_rows, 4)).astype(np.float32) for _ in range(BATCHES)]
    for step in range(WARM_UP):  # until games are at different steps
        vec.step(actions[step % BATCHES])
    return Timed(Vector(vec.step, GAMES, counts_resets=False, close=vec.close), actions)


def compile_seconds(env: Any) -> float:
    """Make one env in a new process that has no kernels on disk."""
    code = f"import shoal, shoal.hockey; shoal.Native(shoal.hockey.{env.__name__}, 1).close()"
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        environment = {**os.environ, "SHOAL_CACHE_DIR": folder}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
        return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    console = Console()
    for env in (Hockey, HockeyOne):
        console.print(f"{env.__name__} compiled, imports included, in {compile_seconds(env):.1f} s")
    contestants = {
        f"{label} {threads}": make(*case, threads) for label, case in CASES.items() for threads in (1, 2)
    }
    outcome = compare(contestants, SECONDS, shown(TURNS))
    table = Table(f"{GAMES:,} games", "game steps/s on 1 thread", "on 2 threads", "2 of 1")
    for label in CASES:
        one, two = (f"{median(outcome.rates(f'{label} {count}')) / 1e6:,.2f} M" for count in (1, 2))
        table.add_row(label, one, two, f"{median(outcome.ratios(f'{label} 2', f'{label} 1')):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
