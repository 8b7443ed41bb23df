"""Flat parameters: the parameters of a module as one vector.

For a small network, most of the time of an optimizer step is spent on iterating over parameters. With one
vector, clipping gradients and a step of Adam take a few operations for any number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shoal.errors import ArgumentError


class FlatParameters:
    """Parameters that share the memory of a vector.

    Args:
        parameters: Parameters to move into vectors, one vector for each dtype and device.

    Attributes:
        vectors: Vectors to give to an optimizer.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self.vectors: list[nn.Parameter] = []
        self._parts: list[list[tuple[nn.Parameter, Tensor]]] = []
        for members in kinds.values():
            vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in members]))
            views = torch.split(vector.data, [parameter.numel() for parameter in members])
            self.vectors.append(vector)
            self._parts.append(
                [(one, view.view(one.shape)) for one, view in zip(members, views, strict=True)]
            )

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
        """Clip the gradient to the norm `max_norm`, step the optimizer, and return the norm before clipping.

        Parameters without a gradient do not change. Gradients are reset afterwards.
        """
        frozen: list[tuple[Tensor, Tensor]] = []
        for vector, parts in zip(self.vectors, self._parts, strict=True):
            gradients = []
            for parameter, view in parts:
                _adopt(parameter, view)
                if parameter.grad is None:
                    frozen.append((view, view.clone()))
                gradients.append(
                    (torch.zeros_like(view) if parameter.grad is None else parameter.grad).flatten()
                )
            vector.grad = torch.cat(gradients)
        norms = [torch.linalg.vector_norm(vector.grad) for vector in self.vectors]
        norm: Tensor = norms[0] if len(norms) == 1 else torch.stack([one.cpu() for one in norms]).norm()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for vector in self.vectors:
            vector.grad.mul_(factor.to(vector.device))  # type: ignore[union-attr]
        optimizer.step()
        for view, before in frozen:
            view.copy_(before)
        for parts in self._parts:
            for parameter, _ in parts:
                parameter.grad = None
        return norm


def _adopt(parameter: nn.Parameter, view: Tensor) -> None:
    """Move a parameter into its part of the vector again, if its memory was replaced."""
    if parameter.data_ptr() == view.data_ptr():
        return
    if parameter.dtype != view.dtype or parameter.device != view.device:
        raise ArgumentError(
            f"policy: expected its parameters to stay {view.dtype} on {view.device} while it learns, got "
            f"{parameter.dtype} on {parameter.device}"
        )
    view.copy_(parameter.data)
    parameter.data = view
