"""Compare what ``backend="auto"`` chooses with the better of Serial and Multiprocessing, quiet and busy.

    .venv/bin/python benchmarks/auto.py [--seconds 4] [--choices 5] [--envs 1 4 16 64 256]

For each env, number of envs and load: Serial and Multiprocessing take turns in slices, and the median rate of
the backend that was chosen is divided by that of the better one. The choice is made several times, and the
worst one counts. "Busy" means that two other processes use all the time of the cores they get.
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
from statistics import median

from rich.console import Console
from rich.table import Table
from turns import compare

import shoal
from shoal.cli._loops import Timed, Vector
from shoal.cli._turns import turns_for
from shoal.testing import SentinelEnv

SLICE = 0.1  # seconds


class Silent(SentinelEnv):
    """Cost next to nothing, without infos."""

    def step(self, action):
        return *super().step(action)[:4], {}


class Working(SentinelEnv):
    """Do a fixed amount of work in each step, about a millisecond."""

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
    """Return the median steps per second of both backends, which take turns."""
    contestants = {}
    for backend in ("serial", "multiprocessing"):
        vec = shoal.make(ENVS[name], num_envs, backend=backend, copy=False)
        vec.reset(seed=0)
        loop = Vector(vec.step, num_envs, counts_resets=False, close=vec.close)
        contestants[backend] = Timed(loop, [vec.action_space.sample() for _ in range(16)])
    outcome = compare(contestants, SLICE, turns_for(seconds, at_least=3))
    return {backend: median(outcome.rates(backend)) for backend in contestants}


def choices(name: str, num_envs: int, times: int) -> Counter[str]:
    """Count how often each backend is chosen."""
    found: Counter[str] = Counter()
    for _ in range(times):
        with shoal.make(ENVS[name], num_envs) as vec:
            found[type(vec).__name__.lower()] += 1
    return found


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Run processes that use all the time of the cores they get."""
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
