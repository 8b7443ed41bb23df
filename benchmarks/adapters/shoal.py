"""Shoal, from the working tree."""

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
}


def build(env: EnvSpec, num_envs: int, backend: str, **options: object) -> Vector:
    import shoal

    vec = getattr(shoal, backend)(env.creators(num_envs), **options)
    vec.reset(seed=0)
    return Vector(vec.step, rows=num_envs, counts_resets=True)
