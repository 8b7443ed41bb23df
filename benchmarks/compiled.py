"""Measure compiled envs on one thread and on two, beside the speed at which memory can be copied.

    .venv/bin/python benchmarks/compiled.py

A step of CartPole reads and writes some 130 bytes a row, so the speed of copying sets the limit.
"""

from __future__ import annotations

import threading
from functools import partial
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from turns import compare, shown

import shoal
from shoal.cli._loops import Timed, Vector

TURNS, SECONDS, BATCHES, COPIES = 15, 0.1, 16, 50
CASES = (
    ("shoal/CartPole-v1", 4096),
    ("shoal/CartPole-v1", 16_384),
    ("shoal/MountainCar-v0", 4096),
    ("shoal/Pendulum-v1", 4096),
    ("shoal/Acrobot-v1", 4096),
    ("shoal/Breakout-v0", 4096),
    ("shoal/Snake-v0", 1024),
)


def copier(threads: int, nbytes: int) -> Timed:
    """Copy memory on several threads; count the bytes read and written."""
    pairs = [(np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(COPIES):
            np.copyto(*pair)  # releases the GIL

    def copy_all(_: None) -> None:
        others = [threading.Thread(target=copy, args=(pair,)) for pair in pairs[1:]]
        for other in others:
            other.start()
        copy(pairs[0])
        for other in others:
            other.join()

    return Timed(Vector(copy_all, threads * COPIES * 2 * nbytes, counts_resets=False), [None])


def make(name: str, num_envs: int, threads: int) -> Timed:
    vec = shoal.make(name, num_envs, num_workers=threads, copy=False)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    loop = Vector(vec.step, vec.num_rows, counts_resets=False, close=vec.close)
    return Timed(loop, [vec.action_space.sample() for _ in range(BATCHES)])


def main() -> None:
    """Measure and print."""
    makers = {f"{number:,} x {name}": partial(make, name, number) for name, number in CASES}
    for label, nbytes in (("memory in cache (bytes/s)", 1 << 18), ("memory (bytes/s)", 1 << 26)):
        makers[label] = partial(copier, nbytes=nbytes)
    contestants = {
        f"{label} {count}": make_on(count) for label, make_on in makers.items() for count in (1, 2)
    }
    outcome = compare(contestants, SECONDS, shown(TURNS))
    table = Table("envs", "rows/s on 1 thread", "on 2 threads", "2 of 1")
    for label in makers:
        one, two = (f"{median(outcome.rates(f'{label} {count}')) / 1e6:,.1f} M" for count in (1, 2))
        table.add_row(label, one, two, f"{median(outcome.ratios(f'{label} 2', f'{label} 1')):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
