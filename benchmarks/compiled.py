"""Compiled envs on one thread and on two, in turns, beside the speed at which memory can be copied.

    .venv/bin/python benchmarks/compiled.py

A step of CartPole reads and writes some 130 bytes a row: what a core can copy in the meantime is the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import shoal

TURNS, SECONDS, BATCHES = 15, 0.1, 16
CASES = (
    ("shoal/CartPole-v1", 4096),
    ("shoal/CartPole-v1", 16_384),
    ("shoal/MountainCar-v0", 4096),
    ("shoal/Pendulum-v1", 4096),
    ("shoal/Acrobot-v1", 4096),
    ("shoal/Breakout-v0", 4096),
    ("shoal/Snake-v0", 1024),
)


def stepper(name: str, num_envs: int, threads: int) -> Callable[[], int]:
    """Steps each of some batches once; returns how many rows were stepped."""
    vec = shoal.make(name, num_envs, num_workers=threads, copy=False)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    batches = [vec.action_space.sample() for _ in range(BATCHES)]
    rows = vec.num_rows

    def step() -> int:
        for batch in batches:
            vec.step(batch)
        return BATCHES * rows

    return step


def copier(threads: int, nbytes: int) -> Callable[[], int]:
    """Copies memory on so many threads; returns bytes read and written."""
    pairs = [(np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)) for _ in range(threads)]

    def copy_all(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(50):
            np.copyto(*pair)  # without the GIL

    def run() -> int:
        others = [threading.Thread(target=copy_all, args=(pair,)) for pair in pairs[1:]]
        for other in others:
            other.start()
        copy_all(pairs[0])
        for other in others:
            other.join()
        return threads * 50 * 2 * nbytes

    return run


def rate(work: Callable[[], int]) -> float:
    """Of a while."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + SECONDS:
        count += work()
    return count / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    works = {(*case, threads): stepper(*case, threads) for case in CASES for threads in (1, 2)}
    works |= {("memory in cache", 0, threads): copier(threads, 1 << 18) for threads in (1, 2)}
    works |= {("memory", 0, threads): copier(threads, 1 << 26) for threads in (1, 2)}
    found: dict[tuple[str, int, int], list[float]] = {key: [] for key in works}
    for _ in track(range(TURNS), "taking turns", transient=True):
        for key, work in works.items():
            found[key].append(rate(work))
    table = Table("envs", "rows/s on 1 thread", "on 2 threads", "2 of 1")
    for name, number in dict.fromkeys(key[:2] for key in works):
        one, two = found[name, number, 1], found[name, number, 2]
        ratio = median(b / a for a, b in zip(one, two, strict=True))
        label = f"{number:,} x {name}" if number else f"{name} (bytes/s)"
        table.add_row(label, f"{median(one) / 1e6:,.1f} M", f"{median(two) / 1e6:,.1f} M", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
