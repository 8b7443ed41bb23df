"""Measure what a process pool costs beside its envs: time per vector step, idle time, memory, time to start.

    .venv/bin/python benchmarks/pool.py

Time per vector step is `seconds_signal` of `stats()`: from the end of the slowest worker's work (and of the
parent's, if it steps a share) until the parent notices. Memory is read from `/proc/PID/smaps_rollup`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table
from turns import compare, shown

import shoal
from shoal.cli._loops import Slice, Timed, Vector
from shoal.cli._turns import quartiles

CREATE = partial(gymnasium.make, "CartPole-v1")
POOLS = {
    "2 workers": {"num_workers": 2},
    "parent and 1 worker": {"num_workers": 1, "parent_steps": True},
}
ROUNDS, SLICES, SECONDS = 3, 20, 0.08
BARE = """
import gymnasium
envs = [gymnasium.make("CartPole-v1") for _ in range({count})]
for env in envs:
    env.reset(seed=0)
    env.step(0)
print("ready", flush=True)
input()
"""


class Signalling(Timed):
    """Step a pool; count vector steps and the seconds of `seconds_signal`, and not those of the clock."""

    def __init__(self, num_envs: int, options: dict[str, Any]) -> None:
        self.vec = shoal.Multiprocessing(CREATE, num_envs, copy=False, **options)
        self.vec.reset(seed=0)
        loop = Vector(self.vec.step, num_envs, counts_resets=False, close=self.vec.close)
        super().__init__(loop, list(np.random.default_rng(0).integers(2, size=(64, num_envs))))

    def slice(self, seconds: float) -> Slice:
        before, timing, after = self.vec.stats(), super().slice(seconds), self.vec.stats()
        if seconds == 0:  # `warm_up` needs the clock
            return timing
        steps, signal = (after[key] - before[key] for key in ("vector_steps", "seconds_signal"))
        return Slice.of((steps, signal))


def overheads(num_envs: int) -> dict[str, list[float]]:
    """Return the microseconds per vector step of each pool."""
    found: dict[str, list[float]] = {name: [] for name in POOLS}
    for _ in shown(ROUNDS, f"{num_envs} envs"):
        pools = {name: Signalling(num_envs, options) for name, options in POOLS.items()}
        outcome = compare(pools, SECONDS, range(SLICES))
        for name in POOLS:
            found[name] += [1e6 / rate for rate in outcome.rates(name)]
    return found


def descendants(pid: int) -> list[int]:
    children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def megabytes(pid: int) -> tuple[float, float]:
    """Return the resident memory, and the process's own share of it."""
    lines = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Rss:"]) / 1024, int(lines["Pss:"]) / 1024


def cpu_seconds(pids: list[int]) -> float:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def footprint(num_envs: int) -> list[tuple[str, str]]:
    """Measure start, idle time and memory of a pool with two workers."""
    shoal.Multiprocessing(CREATE, 2, num_workers=2).close()  # starts the launcher, which all pools share
    begun = time.perf_counter()
    with shoal.Multiprocessing(CREATE, num_envs, num_workers=2) as vec:
        started = time.perf_counter() - begun
        vec.reset(seed=0)
        for _ in range(100):
            vec.step(np.zeros(num_envs, np.int64))
        workers = sorted(descendants(os.getpid()))[-2:]
        time.sleep(0.2)
        processes = [os.getpid(), *descendants(os.getpid())]
        before = cpu_seconds(processes)
        time.sleep(1)
        idle = cpu_seconds(processes) - before
        worker = megabytes(workers[0])
    script = BARE.format(count=num_envs // 2)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bare:
        bare.stdout.readline()
        alone = megabytes(bare.pid)
        bare.communicate("\n")
    return [
        ("start of a second pool", f"{1000 * started:.0f} ms"),
        ("CPU of all processes, idle for 1 s", f"{100 * idle:.2f} %"),
        ("a worker, resident / its share", f"{worker[0]:.0f} / {worker[1]:.0f} MB"),
        ("a bare process with as many envs", f"{alone[0]:.0f} / {alone[1]:.0f} MB"),
    ]


def main() -> None:
    console = Console()
    table = Table("pool", "envs", "us per vector step", "quartiles", title="Beside the slowest worker")
    for num_envs in (8, 64):
        for name, values in overheads(num_envs).items():
            low, median, high = quartiles(values)
            table.add_row(name, str(num_envs), f"{median:.1f}", f"{low:.1f} to {high:.1f}")
    console.print(table)
    table = Table("64 envs, 2 workers", "", title="Footprint")
    for row in footprint(64):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
