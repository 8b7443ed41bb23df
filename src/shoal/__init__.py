"""Shoal runs many reinforcement-learning environments as one, at the speed of the hardware."""

from gymnasium.vector import AutoresetMode

from shoal import errors, testing
from shoal.batch import Batch
from shoal.env import Env
from shoal.layout import Layout, layout
from shoal.vector import Serial, VectorEnv

__version__ = "0.1.0"

__all__ = [
    "AutoresetMode",
    "Batch",
    "Env",
    "Layout",
    "Serial",
    "VectorEnv",
    "errors",
    "layout",
    "testing",
]
