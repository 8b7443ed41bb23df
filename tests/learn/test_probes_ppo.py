"""PPO solves every probe: at least 95 % of what a perfect policy has, within 50,000 steps.

What chance and the best constant policy have stands beside it: a learner that were broken would have no more.
"""

import pytest

import shoal.learn as learn
from shoal.envs import probes

# Beside the defaults.
SETTINGS = {probes.Memory: {"lstm": True}, probes.Agents: {"num_envs": 16}}
ALL = [
    probes.Bandit,
    probes.Memory,
    probes.Password,
    probes.Stochastic,
    probes.Squared,
    probes.Continuous,
    probes.Agents,
    probes.Nested,
]


def score(probe, **settings):
    """Of the policy as it was trained: drawing its actions, which one probe needs."""
    config = learn.PPOConfig(total_steps=50_000, **{**SETTINGS.get(probe, {}), **settings})
    with learn.PPO(probe, config) as ppo:
        ppo.train()
    return learn.evaluate(ppo.policy, probe, 4000, deterministic=False, seed=5).mean_return


@pytest.mark.timeout(120)
@pytest.mark.parametrize("probe", ALL)
def test_it_solves(probe):
    found = score(probe)
    assert found >= 0.95 * probe.PERFECT
    if probe is not probes.Bandit:  # whose answer is a constant
        assert probe.CONSTANT < 0.5 * probe.PERFECT
    assert probe.CHANCE < 0.5 * probe.PERFECT


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["overlap", "async"])
@pytest.mark.parametrize("probe", [probes.Memory, probes.Squared, probes.Agents])
def test_it_solves_in_other_modes(probe, mode):
    assert score(probe, mode=mode) >= 0.95 * probe.PERFECT


def test_without_memory_the_memory_probe_is_not_solved():
    assert score(probes.Memory, lstm=False) < 0.4 * probes.Memory.PERFECT
