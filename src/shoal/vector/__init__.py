"""Vector envs: many envs as one. `base` is the contract, the other public files are its backends."""

from shoal.making import make
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.native import Native
from shoal.vector.serial import Serial
from shoal.vector.vec import VectorEnv

__all__ = ["Multiprocessing", "Native", "Serial", "VectorEnv", "make"]
