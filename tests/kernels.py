"""Compile the kernels that many tests use, before the tests and on all cores: ``python -m tests.kernels``.

They are kept in build/kernels, where conftest.py lets every test and the processes it starts look for them.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.conftest import KERNELS

TESTING = ("SentinelNative", "PairNative", "BoxNative")
# Those of tests that run with the sanitizers too, where compiling takes several times as long.
OF_TESTS = (
    "tests.adapters.test_first_moves:CompiledBlitz",
    "tests.stepping.test_episodes:Compiled",
    "tests.stepping.test_episodes:CompiledNotStraight",
    "tests.stepping.test_episodes:CompiledTeam",
    "tests.vector.test_native_vec:Fragile",
)


def places() -> list[str]:
    from shoal.registry import OWN

    return [*OWN.values(), *(f"shoal.testing.native_envs:{name}" for name in TESTING), *OF_TESTS]


def compile_at(place: str) -> None:
    from shoal.native.env import compiled, is_native
    from shoal.native.spec import Spec

    module, _, name = place.partition(":")
    env = getattr(importlib.import_module(module), name)
    if is_native(env):
        compiled(Spec.of(env))


if __name__ == "__main__":
    print(f"Compiling {len(places())} envs into {KERNELS}")
    # Spawned: a fork would share the state of a library that has threads.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_at, places()))
