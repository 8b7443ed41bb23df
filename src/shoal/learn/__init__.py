"""Learners, and the way from flat rows to tensors. The only part of Shoal that imports torch."""

from shoal.learn.unpack import unpack

__all__ = ["unpack"]
