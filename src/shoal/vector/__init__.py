"""Vector envs: many envs as one. `vec.py` has all verbs, `engine.py` the protocol of engines."""

from shoal.making import make
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.native import Native
from shoal.vector.serial import Serial
from shoal.vector.vec import VectorEnv

__all__ = ["Multiprocessing", "Native", "Serial", "VectorEnv", "make"]
