"""Fully connected layers, forwards and backwards, with as few operations as possible.

For networks of this size, torch's own layers spend half of the time around the matrix products: on copies for
activations, and on the graph. Here activations are computed in place, weights lie as products read them
fastest, and `run` and `backpropagate` need no graph at all. `forward` is the same as one node of a graph.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from shoal.learn.layers import linear


class Mlp(nn.Module):
    """Fully connected layers with an activation function between them.

    Args:
        widths: Number of inputs, of units in each layer, and of outputs.
        activation: Activation function, "tanh" or "relu".
        gain: Scale of the weights of the last layer at first.
        copies: Number of networks of this form that are computed together, for the same inputs; 0 for a
            single one without an axis for copies.
        mixing: Matrix that the outputs are multiplied by, [outputs, mixed outputs]; by default none.
    """

    mixing: Tensor | None

    def __init__(
        self,
        widths: tuple[int, ...],
        activation: str,
        *,
        gain: float = 1.0,
        copies: int = 0,
        mixing: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._relu, self._copies = activation == "relu", copies
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        # A matrix is stored with its longer side last: products with it take down to a sixth of the time.
        self._turned = [after < before for before, after in pairwise(widths)]
        for place, (before, after) in enumerate(pairwise(widths)):
            scale = gain if place == len(widths) - 2 else math.sqrt(2)
            made = [linear(before, after, scale).weight.detach() for _ in range(copies or 1)]
            weights = torch.stack(made) if copies else made[0]  # [copies, outputs, inputs]
            weights = weights if self._turned[place] else weights.transpose(-1, -2)
            self.weights.append(nn.Parameter(weights.contiguous()))
            self.biases.append(nn.Parameter(torch.zeros((copies, 1, after) if copies else after)))
        self.register_buffer("mixing", mixing, persistent=False)
        # Also as plain lists, because looking into torch's takes as long as a small product.
        self._weights, self._biases = list(self.weights), list(self.biases)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of rows, [copies, rows, outputs], as a node of torch's graph."""
        parameters = [*self.weights, *self.biases]
        found: Tensor = _Node.apply(inputs, self, *parameters)  # type: ignore[no-untyped-call]
        return found

    def run(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the outputs of rows; return them, and what `backpropagate` needs. Call without gradients.

        Args:
            inputs: Inputs, [rows, inputs].
        """
        values = inputs.expand(self._copies, *inputs.shape) if self._copies else inputs
        multiply, kept = torch.baddbmm if self._copies else torch.addmm, []
        last = len(self._turned) - 1
        for place, weights in enumerate(self._weights):
            kept.append(values)
            values = multiply(self._biases[place], values, weights.mT if self._turned[place] else weights)
            if place < last:
                values = values.relu_() if self._relu else values.tanh_()
        return values if self.mixing is None else values @ self.mixing, kept

    def backpropagate(
        self, kept: list[Tensor], gradient: Tensor, *, learns: bool = True, passes_on: bool = False
    ) -> Tensor | None:
        """Write the gradients of all weights into their `grad`, which must exist. Call without gradients.

        Args:
            kept: What `run` returned.
            gradient: Gradient with respect to the outputs; the memory is not changed.
            learns: Whether the weights get gradients.
            passes_on: Whether to return the gradient with respect to the inputs.
        """
        if self.mixing is not None:
            gradient = gradient @ self.mixing.T
        multiply = torch.bmm if self._copies else torch.mm
        for place in range(len(self._turned) - 1, -1, -1):
            weights = self._weights[place]
            if learns:
                self._learn(place, kept[place], gradient)
            if not place and not passes_on:
                return None
            gradient = multiply(gradient, weights if self._turned[place] else weights.mT)
            if place:
                gradient = self._through_activation(gradient, kept[place])
        return gradient.sum(0) if self._copies else gradient

    def _learn(self, place: int, inputs: Tensor, gradient: Tensor) -> None:
        """Write the gradients of one layer."""
        weights, biases = self._weights[place].grad, self._biases[place].grad
        assert weights is not None
        assert biases is not None
        multiply, turned = torch.bmm if self._copies else torch.mm, self._turned[place]
        inputs, gradient = (gradient, inputs) if turned else (inputs, gradient)
        multiply(inputs.mT, gradient, out=weights)
        torch.sum(inputs if turned else gradient, -2, keepdim=bool(self._copies), out=biases)

    def _through_activation(self, gradient: Tensor, values: Tensor) -> Tensor:
        """Multiply a gradient, in place, by the derivative of the activation function."""
        found: Tensor
        if self._relu:
            found = torch.ops.aten.threshold_backward.grad_input(gradient, values, 0, grad_input=gradient)
        else:
            found = torch.ops.aten.tanh_backward.grad_input(gradient, values, grad_input=gradient)
        return found


class _Node(torch.autograd.Function):
    """An `Mlp` as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layers: Mlp, *parameters: Tensor) -> Tensor:
        outputs, ctx.kept = layers.run(inputs)
        ctx.layers = layers
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        layers, passes_on, learns = ctx.layers, ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        parameters = [*layers.weights, *layers.biases]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        of_inputs = layers.backpropagate(ctx.kept, gradients[0], learns=learns, passes_on=passes_on)
        found = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return of_inputs, None, *(found if learns else [None] * len(found))
