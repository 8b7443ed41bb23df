"""Gymnasium's own vector envs."""

from loops import Vector

from envs import EnvSpec

VENV = "gymnasium"
PACKAGES = ()
CONTESTANTS = {
    "gymnasium Sync": {"backend": "SyncVectorEnv", "copy": False},
    "gymnasium Sync copy": {"backend": "SyncVectorEnv", "copy": True},
    "gymnasium Async": {"backend": "AsyncVectorEnv", "copy": False},
}


def build(env: EnvSpec, num_envs: int, backend: str, **options: object) -> Vector:
    from gymnasium import vector

    vec = getattr(vector, backend)(env.creators(num_envs), **options)
    vec.reset(seed=0)
    return Vector(vec.step, rows=num_envs, counts_resets=True)
