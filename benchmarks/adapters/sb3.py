"""Stable-Baselines3's vector envs, which reset a finished env within the same step: every row is a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from loops import Vector

from envs import EnvSpec

VENV = "sb3"
PACKAGES = ("stable-baselines3", "torch")
CONTESTANTS = {
    "SB3 Dummy": {"backend": "DummyVecEnv"},
    # Forked rather than SB3's forkserver, under which each of 64 workers imports torch; stepping is the same.
    "SB3 Subproc": {"backend": "SubprocVecEnv", "start_method": "fork"},
}


def flattened(create: Callable[[], Any]) -> Any:
    from gymnasium.wrappers import FlattenObservation

    return FlattenObservation(create())


def build(env: EnvSpec, num_envs: int, backend: str, **options: Any) -> Vector:
    from stable_baselines3.common import vec_env

    creators, note = env.creators(num_envs), ""
    if env.name == "nested":
        creators = [partial(flattened, create) for create in creators]
        note = "takes no Dict in a Dict; each env is in Gymnasium's FlattenObservation"
    vec = getattr(vec_env, backend)(creators, **options)
    vec.seed(0)
    vec.reset()
    return Vector(vec.step, rows=num_envs, counts_resets=False, note=note)
