"""PPO's loss: the core agrees with the sum of its parts, and the parts with sums written out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, MultiDiscrete

from shoal import _core
from shoal.learn import losses
from shoal.learn.actions import Actions

pytestmark = pytest.mark.core

needs_core = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


def minibatch(space, rows, seed):
    random = torch.Generator().manual_seed(seed)
    actions = Actions(space)
    outputs = torch.randn(rows, actions.num_outputs + 1, generator=random, requires_grad=True)
    numbers = torch.randn(rows, 4, generator=random) * 0.5
    mask = torch.rand(rows, actions.num_logits, generator=random) < 0.8
    firsts = np.cumsum([0, *actions.sizes[:-1]])
    mask[:, firsts] = True
    taken, log_probs = actions.sample(outputs.detach()[:, :-1], torch.zeros(0), mask, random)
    numbers[:, 0] = log_probs + 0.3 * torch.randn(rows, generator=random)
    weights = (torch.rand(rows, generator=random) < 0.7).float()
    return actions, outputs, taken, numbers, mask, weights


@needs_core
@pytest.mark.parametrize("space", [Discrete(2), Discrete(7), MultiDiscrete([3, 2, 5])])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip_value", [0.0, 0.3])
def test_the_core_agrees(space, masked, weighted, clip_value):
    actions, outputs, taken, numbers, mask, weights = minibatch(space, 300, seed=3)
    if not masked:
        mask = None
        taken, numbers[:, 0] = actions.sample(outputs.detach()[:, :-1], torch.zeros(0))
        numbers[:, 0] += 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(0))
    terms = losses.Terms(0.2, clip_value, 0.05, 0.7)
    found = []
    for in_core in (False, True):
        loss, parts = losses.ppo_loss(
            SimpleNamespace(actions=actions, log_std=torch.zeros(0)),
            outputs,
            taken,
            numbers,
            terms,
            mask=mask,
            weights=weights if weighted else None,
            in_core=in_core,
        )
        gradient = torch.autograd.grad(loss, outputs)[0]
        found.append((loss.item(), [float(part) for part in parts], gradient))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-6)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-4, atol=1e-7)
    assert 0 < found[0][1][4] < 1  # some were clipped, some not


@needs_core
def test_actions_that_do_not_exist_are_refused():
    actions, outputs, taken, numbers, _, _ = minibatch(Discrete(3), 5, seed=0)
    taken[2] = 3
    with pytest.raises(ValueError, match="an action that is none of the alternatives"):
        losses.ppo_loss(SimpleNamespace(actions=actions), outputs, taken, numbers, losses.Terms())


def test_the_policy_loss_by_hand():
    log_probs = torch.tensor([0.5, 1.5, 0.5, 1.5]).log()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, ratios = losses.policy_loss(log_probs, torch.zeros(4), advantages, 0.2)
    assert ratios.tolist() == pytest.approx([0.5, 1.5, 0.5, 1.5])
    # More likely than 1.2 pays no more; less likely than 0.8 saves no more.
    assert loss.tolist() == pytest.approx([-0.5, -1.2, 0.8, 1.5])


def test_the_value_loss_by_hand():
    loss = losses.value_loss(torch.tensor([3.0]), torch.tensor([1.0]))
    assert loss.tolist() == [2.0]
    clipped = losses.value_loss(torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([3.0]), 0.5)
    assert clipped.tolist() == [0.5 * 1.5**2]


def test_means_are_of_what_counts():
    entries = torch.tensor([1.0, 2.0, 100.0])
    assert losses.weighted_mean(entries, torch.tensor([1.0, 1.0, 0.0])) == 1.5
    assert losses.weighted_mean(entries, torch.zeros(3)) == 0
    assert losses.explained_variance(entries, entries) == 1
    assert np.isnan(losses.explained_variance(entries, torch.ones(3)))
