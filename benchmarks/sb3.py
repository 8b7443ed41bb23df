"""Stable-Baselines3's vector envs beside Shoal's: 16 CartPoles, stepped as a learner of SB3 does, in turns.

    .venv/bin/python benchmarks/sb3.py

All are made by `make_vec_env`, so that each env is in a `Monitor`. "short" are episodes of random actions, of
some 22 steps, as at the beginning of training; "long" those of a rule that hardly ever fails, of 500 steps,
as at its end. Costly is an episode that ends: SB3 wants its last observation, and what the `Monitor` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from shoal.compat.sb3 import ShoalVecEnv

NUM_ENVS, TURNS, SECONDS = 16, 25, 0.2
CONTESTANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DummyVecEnv": (DummyVecEnv, {}),
    "SubprocVecEnv": (SubprocVecEnv, {"start_method": "fork"}),
    "ShoalVecEnv serial": (ShoalVecEnv, {"backend": "serial"}),
    "ShoalVecEnv 2 workers": (ShoalVecEnv, {"num_workers": 2}),
    "ShoalVecEnv 1 worker, parent_steps": (ShoalVecEnv, {"num_workers": 1, "parent_steps": True}),
}
random = np.random.default_rng(0).integers(2, size=(1000, NUM_ENVS))
POLICIES: dict[str, Callable[[Any, int], Any]] = {
    "short": lambda obs, step: random[step % len(random)],
    "long": lambda obs, step: (obs[:, 2] + obs[:, 3] > 0).astype(np.int64),
}


def rate(env: VecEnv, policy: Callable[[Any, int], Any]) -> float:
    """Steps of all envs per second, for a while."""
    obs = env.reset()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + SECONDS:
        obs, *_ = env.step(policy(obs, count))
        count += 1
    return count * NUM_ENVS / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    envs = {
        name: make_vec_env("CartPole-v1", NUM_ENVS, seed=0, vec_env_cls=kind, vec_env_kwargs=options)
        for name, (kind, options) in CONTESTANTS.items()
    }
    found: dict[tuple[str, str], list[float]] = {(name, length): [] for name in envs for length in POLICIES}
    for _ in track(range(TURNS), "taking turns", transient=True):
        for length, policy in POLICIES.items():
            for name, env in envs.items():
                found[name, length].append(rate(env, policy))
    for env in envs.values():
        env.close()
    table = Table("contestant")
    for length in POLICIES:
        table.add_column(f"{length}: steps/s", justify="right")
        table.add_column("of DummyVecEnv", justify="right")
    for name in envs:
        cells = []
        for length in POLICIES:
            ours, theirs = found[name, length], found["DummyVecEnv", length]
            share = median(a / b for a, b in zip(ours, theirs, strict=True))
            cells += [f"{median(ours):,.0f}", f"{share:.2f}"]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
