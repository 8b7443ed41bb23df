"""SAC: losses, temperature, bounds, and what it learns."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from shoal.envs import probes
from shoal.learn import SAC, SACConfig, evaluate
from shoal.learn.squashing import squash
from shoal.testing import SampleEnv
from tests.learn.off_policy import make, trained
from tests.learn.test_dqn import SURE, Endless

NUMBERS = Box(-1, 1, (2,), np.float32)


def test_the_value_of_an_endless_game_is_right_through_truncations():
    # CHECKLIST 24; without a temperature, entropy is worth nothing.
    settings = {**SURE, "gamma": 0.9}
    with make("sac", lambda: Endless(NUMBERS), total_steps=1500, temperature=0.0, **settings) as sac:
        sac.train()
        value = sac.policy.value_batch(np.ones((1, 2), np.float32))
    assert value == pytest.approx([10.0], rel=0.05)


@pytest.mark.slow
def test_the_value_of_checklist_24_comes_out_at_50():
    settings = {**SURE, "gamma": 0.98}
    with make("sac", lambda: Endless(NUMBERS), total_steps=6000, temperature=0.0, **settings) as sac:
        sac.train()
        value = sac.policy.value_batch(np.ones((1, 2), np.float32))
    assert value == pytest.approx([50.0], rel=0.05)


@pytest.mark.parametrize("settings", [{}, {"prioritized": True}, {"temperature": 0.3, "activation": "tanh"}])
def test_the_gradients_are_those_of_the_losses(settings):
    env = lambda: SampleEnv(Box(-3, 3, (5,)), Box(-2, 3, (3,)))  # noqa: E731
    with make("sac", env, total_steps=200, updates_per_step=0, **settings) as sac:
        sac.train()
        torch.manual_seed(2)
        for parameter in sac.policy.parameters():  # so that critics and their targets differ
            parameter.data += 0.1 * torch.randn_like(parameter)
        sampled = sac.replay.sample(32, gamma=0.9)
        if settings.get("prioritized"):
            sampled = sampled._replace(weights=torch.rand(32))
        noise = [torch.randn(32, 3), torch.randn(32, 3)]
        expected = gradients_by_torch(sac, sampled, noise)
        found = {}
        sac._noise_for = lambda rows: torch.cat(noise[::-1])  # of the observations, then of the next ones

        def keep(prefix, parameters):
            return lambda *_: found.update({prefix: [each.grad.clone() for each in parameters]})

        sac._critic_parameters.step = keep("critics", sac.policy.critic_parameters())
        sac._actor_parameters.step = keep("actor", sac.policy.actor_parameters())
        with torch.no_grad():
            sac._gradient_step(sac._encoded(sampled), report=False)
        found["temperature"] = [sac._log_temperature.grad]
    for name, gradients in expected.items():
        for got, wanted in zip(found[name], gradients, strict=True):
            assert got is None if wanted is None else torch.allclose(got, wanted, atol=1e-5), name


def gradients_by_torch(sac, sampled, noise):
    """The gradients of the three losses, by torch."""
    policy, temperature = sac.policy, sac._log_temperature.detach().exp()
    with torch.no_grad():
        encoder, critics = sac._target.module
        following = squash(policy(sampled.next_obs), noise[0])
        inputs = torch.cat([encoder(sampled.next_obs), following.actions], -1)
        value = critics(inputs)[..., 0].amin(0) - temperature * following.log_probs
        targets = sampled.returns + sampled.discounts * value
    weights = 1.0 if sampled.weights is None else sampled.weights
    values = policy.values(sampled.obs, sampled.actions)
    critic_loss = sum(0.5 * (weights * (each - targets) ** 2).mean() for each in values)
    drawn = squash(policy(sampled.obs), noise[1])
    least = policy.values(sampled.obs, drawn.actions).amin(0)
    actor_loss = (temperature * drawn.log_probs - least).mean()
    log_temperature = sac._log_temperature.detach().clone().requires_grad_()
    # As in the paper, but of the logarithm: which of the two is learnt makes no difference to the sign.
    temperature_loss = -(log_temperature * (drawn.log_probs.detach() - 3.0)).mean()
    learns = sac.config.temperature is None
    return {
        "critics": torch.autograd.grad(critic_loss, policy.critic_parameters()),
        "actor": torch.autograd.grad(actor_loss, policy.actor_parameters()),
        "temperature": [torch.autograd.grad(temperature_loss, log_temperature)[0] if learns else None],
    }


def test_the_temperature_brings_the_entropy_to_its_target():
    env = lambda: SampleEnv(Box(-1, 1, (2,)), NUMBERS)  # noqa: E731
    settings = {"target_entropy": -0.5, "learning_rate": 3e-3, "updates_per_step": 1.0}
    with make("sac", env, total_steps=2500, **settings) as sac:
        reports = []
        sac.train(reports.append)
    assert reports[-1].losses["entropy"] == pytest.approx(-0.5, abs=0.3)


def test_a_fixed_temperature_stays():
    with make("sac", total_steps=200, temperature=0.2) as sac:
        reports = []
        sac.train(reports.append)
    assert reports[-1].losses["temperature"] == pytest.approx(0.2)


def test_actions_reach_their_bounds_whatever_they_are():
    space = Box(np.array([-5, 2, 0], np.float32), np.array([-1, 100, 0.001], np.float32))
    with make("sac", lambda: SampleEnv(Box(-1, 1, (2,)), space)) as sac:
        sac.policy.actor.biases[-1].data.copy_(torch.tensor([9.0, -9.0, 9.0, 0, 0, 0]))
        found = sac.policy.act_batch(np.zeros((1, 2), np.float32), deterministic=True)
        assert found[0] == pytest.approx([-1, 2, 0.001], rel=1e-4)
        uniform = sac.policy.actions.draw_uniformly(4000, None, torch.Generator().manual_seed(0))
        drawn = sac.policy.actions.to_env(uniform)
    assert drawn.min(0) == pytest.approx(space.low, abs=0.05)
    assert drawn.max(0) == pytest.approx(space.high, abs=0.05)
    assert drawn.mean(0) == pytest.approx((space.low + space.high) / 2, rel=0.05)


@pytest.mark.parametrize("noise", ["white", "pink", "red"])
def test_it_explores_with_the_noise_asked_for(noise):
    sac = trained("sac", total_steps=300, noise=noise, noise_steps=64)
    assert sac.steps >= 300


def test_it_learns():
    config = {"num_envs": 8, "hidden": (32, 32), "torch_threads": 1, "learning_rate": 3e-3, "batch_size": 64}
    config |= {"warmup_steps": 300, "updates_per_step": 0.5, "total_steps": 4000, "target_rate": 0.02}
    with SAC(probes.Continuous, SACConfig(**config)) as sac:
        sac.train()
    found = evaluate(sac.policy, probes.Continuous, 400, seed=5).mean_return
    assert found / probes.Continuous.PERFECT >= 0.8
