"""Shoal runs many reinforcement-learning environments as one, at the speed of the hardware."""

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from shoal import errors
from shoal.batch import Batch
from shoal.env import Env
from shoal.layout import Layout, layout
from shoal.registry import register
from shoal.vector import Multiprocessing, Serial, VectorEnv, make

if TYPE_CHECKING:
    from shoal import testing

    __version__: str

__all__ = [
    "AutoresetMode",
    "Batch",
    "Env",
    "Layout",
    "Multiprocessing",
    "Serial",
    "VectorEnv",
    "errors",
    "layout",
    "make",
    "register",
    "testing",
]


def __getattr__(name: str) -> Any:
    # Not needed by a training run, so not paid for by it.
    if name == "testing":
        import importlib

        return importlib.import_module("shoal.testing")
    if name == "__version__":
        from importlib.metadata import version

        return version("shoal")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
