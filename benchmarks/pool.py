"""What a process pool costs beside its envs: time per vector step, idle time, memory, time to start.

    .venv/bin/python benchmarks/pool.py

Time per vector step is what `stats()` calls signal: from the moment the slowest worker (and the parent, if it
steps a share) has done its work to the moment the parent knows. Memory is that of `/proc/PID/smaps_rollup`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import shoal

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


def overheads(num_envs: int) -> dict[str, list[float]]:
    """Microseconds per vector step, of each pool in turns."""
    found: dict[str, list[float]] = {name: [] for name in POOLS}
    actions = list(np.random.default_rng(0).integers(2, size=(64, num_envs)))
    for _ in track(range(ROUNDS), f"{num_envs} envs", transient=True):
        vecs = {name: shoal.Multiprocessing(CREATE, num_envs, copy=False, **o) for name, o in POOLS.items()}
        for vec in vecs.values():
            vec.reset(seed=0)
        for _ in range(SLICES):
            for name, vec in vecs.items():
                before, end = vec.stats(), time.perf_counter() + SECONDS
                while time.perf_counter() < end:
                    for batch in actions[: max(1, 512 // num_envs)]:
                        vec.step(batch)
                after = vec.stats()
                seconds = after["seconds_signal"] - before["seconds_signal"]
                found[name].append(1e6 * seconds / (after["vector_steps"] - before["vector_steps"]))
        for vec in vecs.values():
            vec.close()
    return found


def descendants(pid: int) -> list[int]:
    children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def megabytes(pid: int) -> tuple[float, float]:
    """Resident, and what is its own share of it."""
    lines = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Rss:"]) / 1024, int(lines["Pss:"]) / 1024


def cpu_seconds(pids: list[int]) -> float:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def footprint(num_envs: int) -> list[tuple[str, str]]:
    """Idle time, memory and start of a pool with two workers."""
    shoal.Multiprocessing(CREATE, 2, num_workers=2).close()  # the launcher is started once
    begun = time.perf_counter()
    with shoal.Multiprocessing(CREATE, num_envs, num_workers=2) as vec:
        started = time.perf_counter() - begun
        vec.reset(seed=0)
        for _ in range(100):
            vec.step(np.zeros(num_envs, np.int64))
        workers = sorted(descendants(os.getpid()))[-2:]
        time.sleep(0.2)
        everybody = [os.getpid(), *descendants(os.getpid())]
        before = cpu_seconds(everybody)
        time.sleep(1)
        idle = cpu_seconds(everybody) - before
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
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
            table.add_row(name, str(num_envs), f"{median:.1f}", f"{low:.1f} to {high:.1f}")
    console.print(table)
    table = Table("64 envs, 2 workers", "", title="Footprint")
    for row in footprint(64):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
