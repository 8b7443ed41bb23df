"""The kit for compiled envs: write Python, step at the speed of C. `NativeEnv` says how."""

from shoal.native.env import NativeEnv, is_native
from shoal.native.rng import Rng

__all__ = ["NativeEnv", "Rng", "is_native"]
