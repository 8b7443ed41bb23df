"""Parameters as one vector: what comes out is what torch's own clipping and Adam give."""

import copy

import pytest
import torch
from torch import nn

from shoal.learn.flat import Flat


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("most", [0.1, 1e9])
def test_as_one_by_one(most):
    one, other = network(), network()
    flat, plain = Flat(one.parameters()), torch.optim.Adam(other.parameters(), 0.01)
    adam = torch.optim.Adam(flat.vectors, 0.01)
    for step in range(5):
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(step))
        flat.zero_grad()
        one(inputs).pow(2).sum().backward()
        length = flat.clip_grad_norm(most)
        adam.step()
        plain.zero_grad()
        other(inputs).pow(2).sum().backward()
        expected = nn.utils.clip_grad_norm_(other.parameters(), most)
        plain.step()
        torch.testing.assert_close(length, expected)
    for found, wanted in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_frozen_parameters_and_several_dtypes():
    module = network()
    module[0].requires_grad_(False)
    module[2].bias.data = module[2].bias.data.double()
    before = copy.deepcopy(module.state_dict())
    flat = Flat(module.parameters())
    assert sorted(vector.numel() for vector in flat.vectors) == [2, 10]
    for vector in flat.vectors:
        vector.grad.fill_(1)
    assert float(flat.clip_grad_norm(1.0)) == pytest.approx(12**0.5)
    torch.optim.SGD(flat.vectors, 1.0).step()
    assert torch.equal(module[0].weight, before["0.weight"])
    torch.testing.assert_close(module[2].bias, before["2.bias"] - 12**-0.5)


def test_weights_that_are_loaded_are_those_that_are_stepped():
    module, other = network(), network()
    flat = Flat(module.parameters())
    with torch.no_grad():
        other[2].bias += 1
    module.load_state_dict(other.state_dict())
    assert torch.equal(flat.vectors[0].data[-2:], other[2].bias.data)
