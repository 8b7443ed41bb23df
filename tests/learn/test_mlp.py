"""The layers that run by hand give the values and gradients that torch derives."""

import pytest
import torch
from torch import nn

from shoal.learn.mlp import Mlp
from shoal.learn.q_policy import dueling_matrix

WIDTHS = [(5, 32, 16, 3), (5, 3), (4, 8, 8, 40)]


def by_torch(layers, inputs, activation, mixing=None):
    """The same network of torch's own operations, one network of the copies after another."""
    found = []
    for copy in range(layers._copies or 1):
        values = inputs
        for place, turned in enumerate(layers._turned):
            weights, biases = layers.weights[place], layers.biases[place]
            weights, biases = (weights[copy], biases[copy, 0]) if layers._copies else (weights, biases)
            values = nn.functional.linear(values, weights if turned else weights.T, biases)
            if place < len(layers._turned) - 1:
                values = getattr(torch, activation)(values)
        found.append(values if mixing is None else values @ mixing)
    return torch.stack(found) if layers._copies else found[0]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("widths", WIDTHS)
def test_values_and_gradients_are_those_of_torch(widths, copies, activation):
    torch.manual_seed(0)
    layers = Mlp(widths, activation, copies=copies)
    for bias in layers.biases:
        nn.init.normal_(bias)
    inputs = torch.randn(7, widths[0], requires_grad=True)
    expected = by_torch(layers, inputs, activation)
    slopes = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [inputs, *layers.parameters()], slopes)
    found = layers(inputs)
    assert torch.allclose(found, expected, atol=1e-5)
    got = torch.autograd.grad(found, [inputs, *layers.parameters()], slopes)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_frozen_weights_get_no_gradient():
    layers = Mlp((3, 8, 2), "relu")
    for parameter in layers.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    with torch.no_grad():
        outputs, kept = layers.run(torch.randn(4, 3))
        passed = layers.backpropagate(kept, torch.ones_like(outputs), learns=False, passes_on=True)
    assert passed.shape == (4, 3)
    assert all((parameter.grad == 7).all() for parameter in layers.parameters())


@pytest.mark.parametrize("sizes", [[4], [3, 5, 2]])
def test_dueling_heads_are_a_product(sizes):
    torch.manual_seed(1)
    mixing = dueling_matrix(sizes)
    outputs = torch.randn(6, sum(sizes) + 1)
    parts, value = outputs[:, :-1].split(sizes, 1), outputs[:, -1:]
    expected = torch.cat([value + part - part.mean(1, keepdim=True) for part in parts], 1)
    assert torch.allclose(outputs @ mixing, expected, atol=1e-6)
    layers = Mlp((5, 16, sum(sizes) + 1), "relu", mixing=mixing)
    inputs = torch.randn(6, 5)
    expected = by_torch(layers, inputs, "relu", mixing)
    assert torch.allclose(layers(inputs), expected, atol=1e-5)
    slopes = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(layers.parameters()), slopes)
    got = torch.autograd.grad(layers(inputs), list(layers.parameters()), slopes)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
