"""What ``backend="auto"`` chooses, beside the better of Serial and Multiprocessing, quiet and busy.

    .venv/bin/python benchmarks/auto.py [--seconds 4] [--choices 5] [--envs 1 4 16 64 256]

For each env, number of envs and load: Serial and Multiprocessing take turns in slices, and the median rate of
the backend that was chosen is divided by that of the better one. The choice is made several times, and the
worst one counts. "Busy" is two processes beside it that never rest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import shoal
from shoal.testing import SentinelEnv

SLICE = 0.1  # seconds


class Silent(SentinelEnv):
    """A step that costs next to nothing, without infos."""

    def step(self, action):
        return *super().step(action)[:4], {}


class Working(SentinelEnv):
    """A step of about a millisecond: a fixed amount of work, however long it takes."""

    def step(self, action):
        total = 0
        for number in range(20_000):
            total += number
        return super().step(action)


ENVS = {
    "no work": partial(Silent, 0),
    "infos": partial(SentinelEnv, 0),
    "CartPole-v1": "CartPole-v1",
    "LunarLander-v3": "LunarLander-v3",
    "1 ms of work": partial(Working, 0),
}


def rates(name: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Median steps per second of both backends, in turns."""
    vecs = {b: shoal.make(ENVS[name], num_envs, backend=b, copy=False) for b in ("serial", "multiprocessing")}
    found: dict[str, list[float]] = {backend: [] for backend in vecs}
    try:
        space = vecs["serial"].action_space
        batches = [space.sample() for _ in range(16)]
        for vec in vecs.values():
            vec.reset(seed=0)
            vec.step(batches[0])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(found["serial"]) < 3:
            for backend, vec in vecs.items():
                begun, steps = time.perf_counter(), 0
                while (taken := time.perf_counter() - begun) < SLICE:
                    for batch in batches[: max(1, 64 // num_envs)]:
                        vec.step(batch)
                        steps += num_envs
                found[backend].append(steps / taken)
    finally:
        for vec in vecs.values():
            vec.close()
    return {backend: float(np.median(values)) for backend, values in found.items()}


def choices(name: str, num_envs: int, times: int) -> Counter[str]:
    """What is chosen, several times."""
    found: Counter[str] = Counter()
    for _ in range(times):
        with shoal.make(ENVS[name], num_envs) as vec:
            found[type(vec).__name__.lower()] += 1
    return found


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that never rest."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.5 if busy else 0)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--choices", type=int, default=5)
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--only", nargs="+", default=list(ENVS))
    options = parser.parse_args()
    table = Table("beside", "env", "envs", "serial", "processes", "chosen", "of the better", title="steps/s")
    for busy in (0, 2):
        with load(busy):
            for name in options.only:
                for num_envs in options.envs:
                    found = rates(name, num_envs, options.seconds)
                    chosen = choices(name, num_envs, options.choices)
                    ratio = min(found[backend] for backend in chosen) / max(found.values())
                    text = ", ".join(f"{backend} {count}" for backend, count in chosen.items())
                    row = [
                        f"{found['serial']:,.0f}",
                        f"{found['multiprocessing']:,.0f}",
                        text,
                        f"{ratio:.2f}",
                    ]
                    table.add_row(f"{busy} busy", name, str(num_envs), *row)
                    print(f"{busy} busy", name, num_envs, *row, file=sys.stderr, flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
