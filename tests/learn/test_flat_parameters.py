"""Parameters as one vector: what comes out is what torch's own clipping and Adam give."""

import copy

import pytest
import torch
from torch import nn

from shoal.errors import ArgumentError
from shoal.learn.flat_parameters import FlatParameters


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def adam(flat):
    return torch.optim.Adam(flat.vectors, 0.01)


def step(module, flat, optimizer, most=1e9, seed=0):
    inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    module(inputs).pow(2).sum().backward()
    return flat.step(optimizer, most)


@pytest.mark.parametrize("most", [0.1, 1e9])
def test_as_one_by_one(most):
    one, other = network(), network()
    flat, plain = FlatParameters(one.parameters()), torch.optim.Adam(other.parameters(), 0.01)
    ours = adam(flat)
    for seed in range(5):
        length = step(one, flat, ours, most, seed)
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
        plain.zero_grad()
        other(inputs).pow(2).sum().backward()
        expected = nn.utils.clip_grad_norm_(other.parameters(), most)
        plain.step()
        torch.testing.assert_close(length, expected)
    for found, wanted in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_freezing_and_thawing_in_between():
    module = network()
    flat = FlatParameters(module.parameters())
    ours = adam(flat)
    step(module, flat, ours)
    for frozen in (True, False):
        module[0].requires_grad_(not frozen)
        before = copy.deepcopy(module.state_dict())
        step(module, flat, ours)
        assert torch.equal(module[0].weight, before["0.weight"]) == frozen
        assert not torch.equal(module[2].weight, before["2.weight"])


def test_several_dtypes():
    module = network()
    module[2].bias.data = module[2].bias.data.double()
    flat = FlatParameters(module.parameters())
    assert sorted(vector.numel() for vector in flat.vectors) == [2, 30]
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = module[2].bias.detach().clone()
    assert float(flat.step(torch.optim.SGD(flat.vectors, 1.0), 1.0)) == pytest.approx(32**0.5)
    torch.testing.assert_close(module[2].bias.data, before - 32**-0.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda module, other: module.load_state_dict(other.state_dict()),
        lambda module, other: [
            setattr(one, "data", two.data.clone())
            for one, two in zip(module.parameters(), other.parameters(), strict=True)
        ],
    ],
    ids=["loaded", "given"],
)
def test_weights_from_elsewhere_are_those_that_are_stepped(change):
    module, other = network(), network()
    flat = FlatParameters(module.parameters())
    ours = torch.optim.SGD(flat.vectors, 1e-9)
    step(module, flat, ours)
    with torch.no_grad():
        other[2].bias += 1
    change(module, other)
    step(module, flat, ours)
    torch.testing.assert_close(module[2].bias, other[2].bias)
    module.double()
    with pytest.raises(
        ArgumentError, match=r"stay torch\.float32 on cpu while it learns, got torch\.float64"
    ):
        step_in_double(module, flat, ours)


def step_in_double(module, flat, optimizer):
    module(torch.randn(7, 3, dtype=torch.float64)).sum().backward()
    flat.step(optimizer, 1.0)


def test_gradients_that_somebody_took_away():
    module = network()
    flat = FlatParameters(module.parameters())
    ours = adam(flat)
    step(module, flat, ours)
    module.zero_grad()
    ours.zero_grad()
    assert float(step(module, flat, ours)) > 0
