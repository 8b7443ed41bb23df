"""Shoal, from the working tree."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from loops import Vector
from venvs import PROJECT

from envs import EnvSpec

VENV = PROJECT
PACKAGES = ("shoal",)
CONTESTANTS = {
    "shoal.Serial": {"backend": "Serial", "copy": False},
    "shoal.Serial copy": {"backend": "Serial", "copy": True},
    "shoal.Serial flat": {"backend": "Serial", "copy": False, "flat": True},
    "shoal.Serial stats": {"backend": "Serial", "copy": False, "episode_stats": True},
    "shoal.Multiprocessing": {"backend": "Multiprocessing", "copy": False, "num_workers": 2},
    "shoal.Multiprocessing parent": {
        "backend": "Multiprocessing",
        "copy": False,
        "num_workers": 1,
        "parent_steps": True,
    },
    "shoal.Multiprocessing 8": {"backend": "Multiprocessing", "copy": False, "num_workers": 8},
    # Batches of half of the envs: in turn, or as they are ready.
    "shoal async fifo": {"share": 2, "order": "fifo"},
    "shoal async ready": {"share": 2, "order": "ready"},
    # The same, and a learner in this process that works for 1 ms per 128 rows.
    "shoal.Multiprocessing learner": {
        "backend": "Multiprocessing",
        "copy": False,
        "num_workers": 2,
        "work": 1e-3 / 128,
    },
    "shoal async fifo learner": {"share": 2, "order": "fifo", "work": 1e-3 / 128},
}
MATRIX = np.random.default_rng(0).standard_normal((32, 32))


def build(env: EnvSpec, num_envs: int, work: float = 0.0, **options: Any) -> Vector:
    if "share" in options:
        return build_async(env, num_envs, work, **options)
    import shoal

    vec = getattr(shoal, options.pop("backend"))(env.creators(num_envs), **options)
    vec.reset(seed=0)
    if not work:
        return Vector(vec.step, rows=num_envs, counts_resets=True)

    def step(actions: Any) -> Any:
        learn(work * num_envs)
        return vec.step(actions)

    return Vector(step, rows=num_envs, counts_resets=True)


def build_async(env: EnvSpec, num_envs: int, work: float, share: int, order: str) -> Vector:
    import shoal

    rows = max(1, num_envs // share)
    vec = shoal.Multiprocessing(
        env.creators(num_envs), num_workers=2, batch_size=rows, mode="async", order=order, copy=False
    )
    vec.async_reset(seed=0)
    # Between slices all batches are in hand, so that nothing goes on while others are measured.
    held = [vec.recv() for _ in range(num_envs // rows)]
    zeros = np.zeros(rows, np.int64)

    def begin() -> None:
        for batch in held[:-1]:
            vec.send(zeros, batch.env_ids)

    def step(actions: Any) -> Any:
        if work:
            learn(work * rows)
        vec.send(actions)
        held[-1] = vec.recv()
        return held[-1]

    def finish() -> list[Any]:
        rest = [vec.recv() for _ in held[1:]]
        held[:] = [held[-1], *rest]
        return rest

    return Vector(step, rows, counts_resets=True, note=f"batches of {rows}", begin=begin, finish=finish)


def learn(seconds: float) -> None:
    """What a learner does, for so long."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        MATRIX @ MATRIX
