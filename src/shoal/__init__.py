"""Shoal runs many reinforcement-learning environments as one, at the speed of the hardware."""

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from shoal import errors
from shoal.adapters.env import Env
from shoal.batch import Batch
from shoal.native import NativeEnv
from shoal.registry import register, tell_gymnasium
from shoal.rows.layout import Layout, layout
from shoal.vector import Multiprocessing, Native, Serial, VectorEnv, make

if TYPE_CHECKING:
    from shoal import compat, testing

    __version__: str

__all__ = [
    "AutoresetMode",
    "Batch",
    "Env",
    "Layout",
    "Multiprocessing",
    "Native",
    "NativeEnv",
    "Serial",
    "VectorEnv",
    "compat",
    "errors",
    "layout",
    "make",
    "register",
    "testing",
]


tell_gymnasium()


def __getattr__(name: str) -> Any:
    # Not needed by a training run, so not paid for by it.
    if name in ("compat", "testing"):
        import importlib

        return importlib.import_module(f"shoal.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("shoal")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
