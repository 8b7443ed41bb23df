"""PufferLib 2.0.2's vector envs around Gymnasium envs; finished envs are reset by the next step."""

from __future__ import annotations

from functools import partial
from typing import Any

from loops import Vector

from envs import EnvSpec

VENV = "pufferlib"
PACKAGES = ("pufferlib",)
# Its Gymnasium has other wrappers for Atari.
ENVS = ("null", "null-info", "nested", "frame", "busy", "variable", "cartpole", "lunarlander")
CONTESTANTS = {
    "PufferLib Serial": {"backend": "Serial"},
    # With one worker its parent, which waits spinning, has a core of its own where there are two.
    # It counts physical cores, and refuses more workers than those unless told to overwork.
    "PufferLib MP 1 worker": {"backend": "Multiprocessing", "num_workers": 1, "overwork": True},
    "PufferLib MP 2 workers": {"backend": "Multiprocessing", "num_workers": 2, "overwork": True},
}
NOTES = {"Serial": "", "Multiprocessing": "hands actions to the envs as int32"}


def build(env: EnvSpec, num_envs: int, backend: str, **options: Any) -> Vector:
    import pufferlib.vector
    from pufferlib.emulation import GymnasiumPufferEnv

    vec = pufferlib.vector.make(
        [partial(GymnasiumPufferEnv, env_creator=create) for create in env.creators(num_envs)],
        env_args=[[]] * num_envs,
        env_kwargs=[{}] * num_envs,
        backend=getattr(pufferlib.vector, backend),
        num_envs=num_envs,
        **options,
    )
    vec.reset(seed=0)
    return Vector(vec.step, rows=num_envs, counts_resets=True, note=NOTES[backend])
