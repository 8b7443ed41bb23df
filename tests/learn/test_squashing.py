"""Squashed normal actions: values, log-probabilities and gradients are those of torch."""

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from shoal.learn.squashing import squash, squash_gradient


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def test_log_probabilities_are_those_of_torch():
    outputs, noise = 0.5 * torch.randn(50, 6), torch.randn(50, 3)
    mean, log_std = outputs.chunk(2, -1)
    found = squash(outputs, noise)
    normal = Independent(Normal(mean, log_std.exp()), 1)
    squashed = TransformedDistribution(normal, TanhTransform(cache_size=1))
    numbers = mean + log_std.exp() * noise
    assert torch.allclose(found.actions, numbers.tanh(), atol=1e-6)
    expected = normal.log_prob(numbers) - TanhTransform().log_abs_det_jacobian(numbers, numbers.tanh()).sum(
        -1
    )
    assert torch.allclose(found.log_probs, expected, atol=1e-4)
    assert torch.allclose(found.log_probs, squashed.log_prob(found.actions), atol=1e-2)


def test_far_numbers_do_not_overflow():
    outputs = torch.tensor([[300.0, -300.0, 5.0, -30.0]])
    found = squash(outputs, torch.ones(1, 2))
    assert torch.isfinite(found.log_probs).all()
    assert found.actions.tolist() == [[1.0, -1.0]]


def test_the_gradient_is_the_one_that_torch_derives():
    outputs = torch.randn(40, 8) * 2
    outputs[0, 4], outputs[1, 5] = 2.5, -25.0  # beyond the bounds of the deviation
    outputs.requires_grad_()
    noise, of_actions, share = torch.randn(40, 4), torch.randn(40, 4), torch.tensor(0.7)
    found = squash(outputs, noise)
    loss = (found.actions * of_actions).sum() + share * found.log_probs.sum()
    (expected,) = torch.autograd.grad(loss, outputs)
    with torch.no_grad():
        plain = outputs.detach()
        got = squash_gradient(plain, squash(plain, noise), of_actions, share)
    assert torch.allclose(got, expected, atol=1e-4)
