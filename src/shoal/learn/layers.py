"""Layers and activation functions of policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Make a linear layer with orthogonal weights and no bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class _Tanh(torch.autograd.Function):
    """The hyperbolic tangent by the logistic function, which torch computes five times as fast on a CPU."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = torch.sigmoid(inputs + inputs).mul_(2).sub_(1)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return torch.addcmul(grads[0], grads[0] * outputs, outputs, value=-1)


def tanh(inputs: Tensor) -> Tensor:
    """Compute the hyperbolic tangent with an error of at most 1e-7."""
    if inputs.numel() < 1 << 13 or inputs.device.type != "cpu":
        return inputs.tanh()  # one call is faster than several on small inputs
    outputs: Tensor = _Tanh.apply(inputs)  # type: ignore[no-untyped-call]
    return outputs


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": torch.relu}
