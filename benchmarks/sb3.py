"""Measure Stable-Baselines3's vector envs beside Shoal's: 16 CartPoles, stepped as a learner of SB3 does.

    .venv/bin/python benchmarks/sb3.py

`make_vec_env` makes all of them, so that each env is in a `Monitor`. "short" are episodes of random actions,
of some 22 steps, as at the beginning of training. "long" are episodes of a rule that hardly ever fails, of
500 steps, as at the end of training. The end of an episode is costly: SB3 wants the last observation and the
`Monitor`'s record.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from turns import compare, shown

from shoal.cli._loops import Slice, Timed, Vector
from shoal.compat.sb3 import ShoalVecEnv

NUM_ENVS, TURNS, SECONDS = 16, 25, 0.2
CONTESTANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DummyVecEnv": (DummyVecEnv, {}),
    "SubprocVecEnv": (SubprocVecEnv, {"start_method": "fork"}),
    "ShoalVecEnv serial": (ShoalVecEnv, {"backend": "serial"}),
    "ShoalVecEnv 2 workers": (ShoalVecEnv, {"num_workers": 2}),
    "ShoalVecEnv 1 worker, parent_steps": (ShoalVecEnv, {"num_workers": 1, "parent_steps": True}),
}
POLICIES: dict[str, Callable[[Any, Any], Any]] = {
    "short": lambda obs, random: random,
    "long": lambda obs, random: (obs[:, 2] + obs[:, 3] > 0).astype(np.int64),
}


class Played(Timed):
    """Step an env of SB3 with a policy. Each slice begins with a reset, because policies share the env."""

    def __init__(self, env: VecEnv, policy: Callable[[Any, Any], Any], random: Any) -> None:
        super().__init__(Vector(self.step, NUM_ENVS, counts_resets=False), random)
        self.env, self.policy = env, policy

    def step(self, random: Any) -> None:
        self.obs, *_ = self.env.step(self.policy(self.obs, random))

    def slice(self, seconds: float) -> Slice:
        self.obs = self.env.reset()
        return super().slice(seconds)


def main() -> None:
    """Measure and print."""
    envs = {
        name: make_vec_env("CartPole-v1", NUM_ENVS, seed=0, vec_env_cls=kind, vec_env_kwargs=options)
        for name, (kind, options) in CONTESTANTS.items()
    }
    random = np.random.default_rng(0).integers(2, size=(1000, NUM_ENVS))
    contestants = {
        f"{name}, {length}": Played(env, policy, random)
        for length, policy in POLICIES.items()
        for name, env in envs.items()
    }
    outcome = compare(contestants, SECONDS, shown(TURNS))
    for env in envs.values():
        env.close()
    table = Table("contestant")
    for length in POLICIES:
        table.add_column(f"{length}: steps/s", justify="right")
        table.add_column("of DummyVecEnv", justify="right")
    for name in envs:
        cells = []
        for length in POLICIES:
            share = median(outcome.ratios(f"{name}, {length}", f"DummyVecEnv, {length}"))
            cells += [f"{median(outcome.rates(f'{name}, {length}')):,.0f}", f"{share:.2f}"]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
