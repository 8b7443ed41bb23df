"""Compiled CartPoles that are vector envs by themselves: Shoal's, and Gymnasium's own in NumPy."""

from __future__ import annotations

from typing import Any

from loops import Vector
from venvs import PROJECT

from envs import EnvSpec

VENV = PROJECT
PACKAGES = ("shoal", "numba")
ENVS = ("cartpole",)
CONTESTANTS: dict[str, dict[str, Any]] = {
    "shoal.Native": {"num_workers": 2},
    "shoal.Native 1 thread": {"num_workers": 1},
    "shoal.Native copy": {"num_workers": 2, "copy": True},
    "gymnasium CartPoleVectorEnv": {"peer": True},
}


def build(env: EnvSpec, num_envs: int, peer: bool = False, copy: bool = False, **options: Any) -> Vector:
    if peer:
        import gymnasium

        vec: Any = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    else:
        import shoal

        vec = shoal.make("shoal/CartPole-v1", num_envs, copy=copy, **options)
    vec.reset(seed=0)
    note = "" if peer else "its own env, compiled: no Python env can be run"
    return Vector(vec.step, rows=num_envs, counts_resets=True, note=note)
