"""Learners, and the way from flat rows to tensors. The only part of Shoal that imports torch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('shoal.learn needs torch: pip install "shoal[learn]"') from error

from shoal.learn.unpack import unpack

__all__ = ["unpack"]
