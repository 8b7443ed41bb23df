"""Running mean and deviation, by which observations and returns are brought to one scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Moments(nn.Module):
    """Mean and variance of all rows seen so far; part of the policy's weights, so saved with them.

    Args:
        width: Numbers in a row.
        limit: What is farther from the mean, in standard deviations, is cut off.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, width: int, limit: float = 10.0) -> None:
        super().__init__()
        self.limit = limit
        # Sums over millions of rows need double precision; shift and scale are what is applied.
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows with mean 0 and deviation 1."""
        return ((rows - self.shift) * self.scale).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Take rows, [N, width], into account."""
        if not len(rows):
            return
        rows = rows.double()
        count, mean = float(len(rows)), rows.mean(0)
        variance = rows.var(0, correction=0)
        total = self.count + count
        delta = mean - self.mean
        self.mean += delta * (count / total)
        between = delta**2 * (self.count * count / total)
        self.variance.copy_((self.variance * self.count + variance * count + between) / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.variance + 1e-8).rsqrt())
