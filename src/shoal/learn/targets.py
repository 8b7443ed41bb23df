"""Target networks: copies that follow a network slowly."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from shoal.learn.flat_parameters import FlatParameters


class Target:
    """A copy of a module whose weights follow those of the module, all in one operation.

    Mean and deviation of observations are not copied but shared.

    Args:
        module: Module to follow.
        followed: Parameters of the module as vectors, if they are vectors already.

    Attributes:
        module: The copy.
    """

    def __init__(self, module: nn.Module, followed: FlatParameters | None = None) -> None:
        self._followed = FlatParameters(module.parameters()) if followed is None else followed
        self._followed.adopt()
        self.module: Any = deepcopy(module).requires_grad_(False)
        for ours, theirs in zip(list(self.module.modules()), list(module.modules()), strict=True):
            if getattr(theirs, "moments", None) is not None:
                ours.moments = theirs.moments
        flat = FlatParameters(self.module.parameters())
        flat.adopt()
        self._vectors = flat.vectors

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Move the weights a part of the way; with a rate of 1 copy them."""
        self._followed.adopt()
        for ours, theirs in zip(self._vectors, self._followed.vectors, strict=True):
            ours.copy_(theirs) if rate == 1.0 else ours.lerp_(theirs, rate)

    def state_dict(self) -> list[torch.Tensor]:
        """Return the weights."""
        return [vector.detach().clone() for vector in self._vectors]

    def load_state_dict(self, state: Any) -> None:
        """Restore saved weights.

        Raises:
            ValueError: If they do not fit.
        """
        for ours, saved in zip(self._vectors, state, strict=True):
            if ours.shape != saved.shape or ours.dtype != saved.dtype:
                raise ValueError("the target network was saved with other weights")
            ours.data.copy_(saved)
