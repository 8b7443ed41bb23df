"""DQN: targets, loss, exploration, and what it learns."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch.nn.functional import huber_loss

from shoal.envs import probes
from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn import DQN, DQNConfig, evaluate, load
from shoal.testing import SampleEnv
from tests.learn.off_policy import make, trained


class Endless(SampleEnv):
    """Reward 1 for ever; cut off every few steps. Its value is 1 / (1 - gamma)."""

    def __init__(self, actions, every=5):
        super().__init__(Box(-1, 1, (2,), np.float32), actions)
        self._every, self._steps = every, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.ones(2, np.float32), 1.0, False, self._steps >= self._every, {}


SURE = {"learning_rate": 3e-3, "updates_per_step": 1.0, "target_rate": 0.05, "normalize_observations": False}


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("actions", [Discrete(2), MultiDiscrete([2, 3])])
def test_the_value_of_an_endless_game_is_right_through_truncations(actions, n_step):
    # CHECKLIST 24.
    settings = {**SURE, "gamma": 0.9}
    with make("dqn", lambda: Endless(actions), total_steps=1500, n_step=n_step, **settings) as dqn:
        dqn.train()
        value = dqn.policy.value_batch(np.ones((1, 2), np.float32))
    assert value == pytest.approx([10.0], rel=0.05)


@pytest.mark.slow
def test_the_value_of_checklist_24_comes_out_at_50():
    settings = {**SURE, "gamma": 0.98}
    with make("dqn", lambda: Endless(Discrete(2)), total_steps=6000, **settings) as dqn:
        dqn.train()
        value = dqn.policy.value_batch(np.ones((1, 2), np.float32))
    assert value == pytest.approx([50.0], rel=0.05)


@pytest.mark.parametrize("loss", ["huber", "squared"])
@pytest.mark.parametrize("actions", [Discrete(4), MultiDiscrete([2, 5, 3]), MultiBinary(3)])
@pytest.mark.parametrize("settings", [{}, {"double": False, "dueling": False}, {"prioritized": True}])
def test_the_gradient_is_that_of_the_loss(actions, loss, settings, monkeypatch):
    env = lambda: SampleEnv(Box(-3, 3, (5,)), actions)  # noqa: E731
    with make("dqn", env, loss=loss, total_steps=200, updates_per_step=0, **settings) as dqn:
        dqn.train()
        dqn._target.follow(0.0)
        torch.manual_seed(2)
        for parameter in dqn.policy.parameters():  # so that the two networks differ
            parameter.data += 0.1 * torch.randn_like(parameter)
        sampled = dqn.replay.sample(32, gamma=0.9)
        if settings.get("prioritized"):
            sampled = sampled._replace(weights=torch.rand(32))
        expected = gradient_by_torch(dqn, sampled)
        found = {}
        keep = lambda *_: found.update({name: each.grad.clone() for name, each in named})  # noqa: E731
        named = list(dqn.policy.named_parameters())
        monkeypatch.setattr(dqn._flat_parameters, "step", keep)
        with torch.no_grad():
            dqn._gradient_step(dqn._encoded(sampled), report=False)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name


def gradient_by_torch(dqn, sampled):
    """The gradient of the loss, by torch, one entry and one choice after another."""
    policy, sizes = dqn.policy, dqn.policy.actions.sizes
    online = policy(sampled.obs)
    with torch.no_grad():
        encoder, layers = dqn._target.module
        judged, chosen_by = layers(encoder(sampled.next_obs)), policy(sampled.next_obs)
        chosen_by = chosen_by if dqn.config.double else judged
    losses = []
    for entry in range(32):
        values, first = [], 0
        for size in sizes:
            best = chosen_by[entry, first : first + size].argmax()
            values.append(judged[entry, first + best])
            first += size
        target = sampled.returns[entry] + sampled.discounts[entry] * torch.stack(values).mean()
        first = 0
        for choice, size in enumerate(sizes):
            taken = online[entry, first + sampled.actions[entry, choice]]
            loss = huber_loss(taken, target) if dqn.config.loss == "huber" else (taken - target) ** 2
            weight = 1.0 if sampled.weights is None else sampled.weights[entry]
            losses.append(loss * weight)
            first += size
    names, parameters = zip(*policy.named_parameters(), strict=True)
    found = torch.autograd.grad(torch.stack(losses).mean(), parameters)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize(("rate", "every"), [(1.0, 5), (0.1, 1)])
def test_the_target_follows_as_asked(rate, every):
    with make("dqn", target_rate=rate, target_every=every, total_steps=150) as dqn:
        dqn.train()
        target = torch.cat([each.flatten() for each in dqn._target.module.parameters()])
        for update in range(1, 8):
            policy_before = torch.cat([each.detach().flatten() for each in dqn.policy.parameters()])
            dqn._learn(1, dqn.steps)
            policy = torch.cat([each.detach().flatten() for each in dqn.policy.parameters()])
            now = torch.cat([each.flatten() for each in dqn._target.module.parameters()])
            assert not torch.equal(policy, policy_before)
            moved = dqn.updates % every == 0
            expected = target + rate * (policy - target) if moved else target
            assert torch.allclose(now, expected, atol=1e-6), update
            target = now.clone()


# -- exploration ---------------------------------------------------------------------------------------------


def test_epsilon_falls_with_steps():
    config = DQNConfig(total_steps=1000, exploration=0.5, epsilon_start=0.9, epsilon_end=0.1)
    found = [config.epsilon_at(steps, 0) for steps in (0, 250, 500, 900)]
    assert found == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_epsilon_falls_with_episodes():
    config = DQNConfig(epsilon_decay=0.5, epsilon_end=0.2)
    found = [config.epsilon_at(10**9, episodes) for episodes in range(4)]
    assert found == pytest.approx([1, 0.5, 0.25, 0.2])


def test_random_actions_are_drawn_for_each_row():
    with make("dqn", lambda: SampleEnv(Box(-1, 1, (3,)), MultiDiscrete([2, 6]))) as dqn:
        obs = torch.zeros(20_000, 3)
        best = dqn.policy.choose(obs, None)
        generator = torch.Generator().manual_seed(0)
        drawn = dqn.policy.choose(obs, None, generator, 0.3)
    assert (best == best[0]).all()
    differs = (drawn != best).any(1).float().mean()
    assert float(differs) == pytest.approx(0.3 * (1 - 1 / 12), abs=0.01)


class Masked(SampleEnv):
    """Only one alternative is allowed at each step; another one is an error."""

    def __init__(self):
        super().__init__(Box(-1, 1, (2,), np.float32), Discrete(5))
        self._allowed = 0

    def _info(self):
        self._allowed = int(self.np_random.integers(5))
        return {"action_mask": np.arange(5) == self._allowed}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self._info()

    def step(self, action):
        assert action == self._allowed
        found = super().step(action)
        return *found[:4], self._info()


def test_what_is_not_allowed_is_never_chosen():
    dqn = trained("dqn", Masked, total_steps=300, backend="serial")
    assert dqn.steps >= 300
    sampled = dqn.replay.sample(100, gamma=0.9)
    assert (sampled.masks.sum(1) == 1).all()
    assert sampled.masks.gather(1, sampled.actions).all()


def test_targets_count_only_what_is_allowed():
    with make("dqn", Masked, total_steps=200, updates_per_step=0, backend="serial") as dqn:
        dqn.train()
        sampled = dqn.replay.sample(64, gamma=0.9)
        with torch.no_grad():
            targets = dqn._targets(dqn._encoded(sampled), None)
            encoder, layers = dqn._target.module
            values = layers(encoder(sampled.next_obs))[sampled.next_masks]
    assert torch.allclose(targets, sampled.returns + sampled.discounts * values, atol=1e-5)


# -- learning ------------------------------------------------------------------------------------------------


def score(probe, **settings):
    config = {"num_envs": 8, "hidden": (32, 32), "torch_threads": 1, "learning_rate": 3e-3, "batch_size": 64}
    config |= {"warmup_steps": 300, "updates_per_step": 0.5, "replay_size": 20_000, "target_rate": 0.02}
    with DQN(probe, DQNConfig(**{**config, **settings})) as dqn:
        dqn.train()
    return evaluate(dqn.policy, probe, 400, seed=5).mean_return / probe.PERFECT


@pytest.mark.parametrize(
    ("probe", "settings"),
    [
        (probes.Bandit, {"total_steps": 2500}),
        (probes.Password, {"total_steps": 5000, "exploration": 0.6, "n_step": 3}),
        (probes.Agents, {"total_steps": 5000, "exploration": 0.4}),
        pytest.param(
            *(probes.Nested, {"total_steps": 30_000, "exploration": 0.3, "prioritized": True}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_learns(probe, settings):
    assert score(probe, **settings) >= 0.8


# -- a table of actions -------------------------------------------------------------------------------------


class Steer(SampleEnv):
    """Notes the actions that arrive."""

    def __init__(self):
        super().__init__(Box(-1, 1, (2,)), Box(-2, 2, (2,), np.float32))

    def step(self, action):
        assert tuple(action) in {(-2.0, 0.0), (0.5, 2.0), (2.0, 0.0)}
        return super().step(action)


TABLE = [[-2, 0], [0.5, 2], [2, 0]]


def test_dqn_chooses_among_continuous_actions(tmp_path):
    with make("dqn", Steer, total_steps=300, action_table=TABLE, backend="serial") as dqn:
        dqn.train()
        dqn.save(tmp_path)
        obs = np.zeros((5, 2), np.float32)
        wanted = dqn.policy.act_batch(obs, deterministic=True)
    assert wanted.dtype == np.float32
    assert wanted[0].tolist() in TABLE
    again = load(tmp_path).act_batch(obs, deterministic=True)
    assert (again == wanted).all()


@pytest.mark.parametrize(
    ("table", "space", "match"),
    [
        ([[0, 0], [0, 3]], Box(-2, 2, (2,)), "within the bounds.* in line 2"),
        ([[0, 0], [0]], Box(-2, 2, (2,)), r"expected 2 numbers in each line.*\(0.0,\) in line 2"),
        ([[0]], Discrete(2), "only for a Box of floats; the action space is Discrete"),
        ("ab", Discrete(2), "expected lines of numbers, got 'ab'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table, space, match):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=match):
        make("dqn", lambda: SampleEnv(Box(-1, 1, (2,)), space), action_table=table)
