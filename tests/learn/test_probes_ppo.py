"""PPO solves the probes, of which each finds another kind of broken learner.

The quick tests ask for 80 % of a perfect policy's return, which no learner with such a mistake has: chance,
the best constant policy, and policies that see only a part of what counts have less than half. The slow tests
ask for 95 %, which a good PPO reaches within 50,000 steps.
"""

import pytest

import shoal.learn as learn
from shoal.envs import probes

# Steps in which the quick tests come to 90 % and more.
STEPS = {
    probes.Bandit: 10_000,
    probes.Memory: 18_000,
    probes.Password: 9_000,
    probes.Stochastic: 7_000,
    probes.Squared: 14_000,
    probes.Continuous: 16_000,
    probes.Agents: 12_000,
    probes.Nested: 18_000,
}
# Beside the defaults.
SETTINGS = {probes.Memory: {"lstm": True}, probes.Agents: {"num_envs": 16}}


def score(probe, episodes=1000, **settings):
    """Train; returns which part of a perfect policy's return the policy has.

    It draws its actions, as in training, because one probe needs that. Torch has one thread, so that the
    result does not depend on the number of cores.
    """
    config = learn.PPOConfig(torch_threads=1, **{**SETTINGS.get(probe, {}), **settings})
    with learn.PPO(probe, config) as ppo:
        ppo.train()
    found = learn.evaluate(ppo.policy, probe, episodes, deterministic=False, seed=5)
    return found.mean_return / probe.PERFECT


def quick_score(probe, steps=None, **settings):
    return score(probe, total_steps=steps or STEPS[probe], learning_rate=5e-3, **settings)


@pytest.mark.parametrize("probe", STEPS)
def test_it_learns(probe):
    assert quick_score(probe) >= 0.8
    if probe is not probes.Bandit:  # whose answer is a constant
        assert probe.CONSTANT < 0.5 * probe.PERFECT
    assert probe.CHANCE < 0.5 * probe.PERFECT


@pytest.mark.parametrize(
    ("probe", "mode", "steps"),
    [
        # The state of an LSTM goes on in another rollout, and in whatever order rows arrive.
        (probes.Memory, "overlap", 28_000),
        (probes.Memory, "async", 24_000),
        # Rows of several agents arrive in any order, and some wait.
        (probes.Agents, "async", 14_000),
    ],
)
def test_it_learns_in_other_modes(probe, mode, steps):
    # The order of arrival is not always the same: with more steps than needed it does not matter.
    assert quick_score(probe, steps, mode=mode, num_workers=2) >= 0.8


def test_without_memory_the_memory_probe_is_not_solved():
    assert quick_score(probes.Memory, lstm=False) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("probe", STEPS)
def test_it_solves(probe):
    assert score(probe, episodes=4000, total_steps=50_000) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["overlap", "async"])
@pytest.mark.parametrize("probe", [probes.Memory, probes.Squared, probes.Agents])
def test_it_solves_in_other_modes(probe, mode):
    assert score(probe, episodes=4000, total_steps=50_000, mode=mode) >= 0.95
