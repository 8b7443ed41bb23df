"""A module's parameters as one vector.

A small network has little to compute and many parameters to walk through. As one vector, clipping gradients
and stepping Adam takes a few operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Flat:
    """Parameters that share memory, and so do their gradients.

    Args:
        parameters: Moved into vectors, one for each dtype and device; those without gradients are left alone.

    Attributes:
        vectors: For an optimizer.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self.vectors = [_joined(of_a_kind) for of_a_kind in kinds.values()]

    def zero_grad(self) -> None:
        """Gradients are added up until this is called."""
        for vector in self.vectors:
            vector.grad.zero_()  # type: ignore[union-attr]

    def clip_grad_norm(self, most: float) -> Tensor:
        """Cut the gradient to a length; returns the one it had."""
        lengths = [torch.linalg.vector_norm(vector.grad) for vector in self.vectors]
        length: Tensor = (
            lengths[0] if len(lengths) == 1 else torch.stack([one.cpu() for one in lengths]).norm()
        )
        factor = (most / (length + 1e-6)).clamp(max=1.0)
        for vector in self.vectors:
            vector.grad.mul_(factor.to(vector.device))  # type: ignore[union-attr]
        return length


def _joined(parameters: list[nn.Parameter]) -> nn.Parameter:
    vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    vector.grad = torch.zeros_like(vector)
    first = 0
    for parameter in parameters:
        last = first + parameter.numel()
        parameter.data = vector.data[first:last].view(parameter.shape)
        parameter.grad = vector.grad[first:last].view(parameter.shape)
        first = last
    return vector
