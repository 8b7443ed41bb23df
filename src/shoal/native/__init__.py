"""Compiled envs: write an env in Python and step it at the speed of C. See `NativeEnv`."""

from shoal.native.env import NativeEnv, is_native
from shoal.native.rng import Rng

__all__ = ["NativeEnv", "Rng", "is_native"]
