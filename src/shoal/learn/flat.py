"""A module's parameters as one vector.

A small network has little to compute and many parameters to walk through. As one vector, clipping gradients
and stepping Adam takes a few operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shoal.errors import ArgumentError


class Flat:
    """Parameters that share memory.

    Args:
        parameters: Moved into vectors, one for each dtype and device.

    Attributes:
        vectors: For an optimizer.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self.vectors: list[nn.Parameter] = []
        self._parts: list[list[tuple[nn.Parameter, Tensor]]] = []
        for of_a_kind in kinds.values():
            vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in of_a_kind]))
            views = torch.split(vector.data, [parameter.numel() for parameter in of_a_kind])
            self.vectors.append(vector)
            self._parts.append(
                [(one, view.view(one.shape)) for one, view in zip(of_a_kind, views, strict=True)]
            )

    def step(self, optimizer: torch.optim.Optimizer, most: float) -> Tensor:
        """Cut the gradient to a length, and let the optimizer step; returns the length it had.

        Parameters without a gradient stay as they are. Gradients are used up: the next begin at 0.
        """
        still: list[tuple[Tensor, Tensor]] = []
        for vector, parts in zip(self.vectors, self._parts, strict=True):
            slopes = []
            for parameter, view in parts:
                _adopt(parameter, view)
                if parameter.grad is None:
                    still.append((view, view.clone()))
                slopes.append(
                    (torch.zeros_like(view) if parameter.grad is None else parameter.grad).flatten()
                )
            vector.grad = torch.cat(slopes)
        lengths = [torch.linalg.vector_norm(vector.grad) for vector in self.vectors]
        length: Tensor = (
            lengths[0] if len(lengths) == 1 else torch.stack([one.cpu() for one in lengths]).norm()
        )
        factor = (most / (length + 1e-6)).clamp(max=1.0)
        for vector in self.vectors:
            vector.grad.mul_(factor.to(vector.device))  # type: ignore[union-attr]
        optimizer.step()
        for view, before in still:
            view.copy_(before)
        for parts in self._parts:
            for parameter, _ in parts:
                parameter.grad = None
        return length


def _adopt(parameter: nn.Parameter, view: Tensor) -> None:
    """Let a parameter live in its part of the vector, also if somebody has given it other memory since."""
    if parameter.data_ptr() == view.data_ptr():
        return
    if parameter.dtype != view.dtype or parameter.device != view.device:
        raise ArgumentError(
            f"policy: expected its parameters to stay {view.dtype} on {view.device} while it learns, got "
            f"{parameter.dtype} on {parameter.device}"
        )
    view.copy_(parameter.data)
    parameter.data = view
