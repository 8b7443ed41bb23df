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
        keep_gradients: Whether the gradients of the parameters share the memory of the vector's gradient.
            They must then be written anew for each step, and are not reset. The parameters are moved at once
            and must stay.

    Attributes:
        vectors: Vectors to give to an optimizer.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, keep_gradients: bool = False) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self.vectors: list[nn.Parameter] = []
        self._parts: list[list[tuple[nn.Parameter, Tensor]]] = []
        self._keeps = keep_gradients
        for members in kinds.values():
            vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in members]))
            self.vectors.append(vector)
            self._parts.append(_views(vector.data, members))
            if keep_gradients:
                vector.grad = torch.zeros_like(vector)
                for parameter, gradient in _views(vector.grad, members):
                    parameter.grad = gradient
        if keep_gradients:
            self.adopt()

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
        """Clip the gradient to the norm `max_norm`, step the optimizer, and return the norm before clipping.

        Parameters without a gradient do not change. Gradients are reset afterwards, unless they are kept.
        """
        frozen = [] if self._keeps else self._gather()
        norms = [torch.linalg.vector_norm(vector.grad) for vector in self.vectors]
        norm: Tensor = norms[0] if len(norms) == 1 else torch.stack([one.cpu() for one in norms]).norm()
        if norm.device.type != "cpu" or norm > max_norm:  # only on a CPU can one look without waiting
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            for vector in self.vectors:
                vector.grad.mul_(factor.to(vector.device))  # type: ignore[union-attr]
        optimizer.step()
        for view, before in frozen:
            view.copy_(before)
        if not self._keeps:
            for parts in self._parts:
                for parameter, _ in parts:
                    parameter.grad = None
        return norm

    def _gather(self) -> list[tuple[Tensor, Tensor]]:
        """Collect the gradients of all parameters; return the parameters without one, and their values."""
        self.adopt()
        frozen: list[tuple[Tensor, Tensor]] = []
        for vector, parts in zip(self.vectors, self._parts, strict=True):
            gradients = []
            for parameter, view in parts:
                if parameter.grad is None:
                    frozen.append((view, view.clone()))
                gradients.append(
                    (torch.zeros_like(view) if parameter.grad is None else parameter.grad).flatten()
                )
            vector.grad = torch.cat(gradients)
        return frozen

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the state of an optimizer of the vectors that was loaded.

        Raises:
            ValueError: If its tensors do not fit; Adam would write beyond their ends.
        """
        check_state(optimizer, self.vectors)

    def adopt(self) -> None:
        """Move all parameters into the vectors now; `step` does so too."""
        for parts in self._parts:
            for parameter, view in parts:
                _adopt(parameter, view)


def _views(vector: Tensor, members: list[nn.Parameter]) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the parts of a vector in the shapes of parameters."""
    parts = torch.split(vector, [parameter.numel() for parameter in members])
    return [(one, part.view(one.shape)) for one, part in zip(members, parts, strict=True)]


def check_state(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Raise a `ValueError` if an optimizer's state does not fit; see `FlatParameters.check`."""
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            if name != "step" and (value.shape != parameter.shape or value.dtype != parameter.dtype):
                raise ValueError(f"optimizer: {name} does not fit the weights")


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
