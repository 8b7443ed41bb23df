"""How many threads torch has."""

import pytest
import torch
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.learn import PPO, Policy, PPOConfig
from shoal.learn import threads as threads_module
from shoal.learn.threads import operations, share_threads
from shoal.testing import SampleEnv

FRAMES = Box(0, 255, (4, 84, 84), "uint8")


def a_policy(space, **settings):
    return Policy(shoal.layout(space), Discrete(2), **settings)


def test_operations_are_counted():
    # Both layers and the layer of outputs: a multiplication and an addition for each weight.
    assert operations(a_policy(Box(-1, 1, (4,)))) == 2 * (4 * 64 + 64 * 64 + 64 * 3)
    lstm = a_policy(Box(-1, 1, (4,)), hidden=(32,), lstm=True)
    assert operations(lstm) == 2 * ((4 + 32 + 1) * 4 * 32 + 32 * 3)
    convolutions = 20 * 20 * 4 * 64 * 32 + 9 * 9 * 32 * 16 * 64 + 7 * 7 * 64 * 9 * 64
    assert operations(a_policy(FRAMES, hidden=())) == 2 * (convolutions + 7 * 7 * 64 * 512 + 512 * 3)


def test_counting_leaves_an_encoder_as_it_was():
    class Seen(torch.nn.Module):
        out_features = 2

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout())

        def forward(self, obs):
            return self.layers(obs)

    policy = a_policy(Box(-1, 1, (2,)), encoder=Seen())
    before, drawn = policy.encoder.layers[0].num_batches_tracked.clone(), torch.random.get_rng_state()
    operations(policy)
    assert policy.training
    assert policy.encoder.layers[0].num_batches_tracked == before
    assert torch.equal(torch.random.get_rng_state(), drawn)


def shared(monkeypatch, env, space, **settings):
    monkeypatch.setattr(threads_module, "usable_cores", lambda: 4)
    with env as vec:
        return share_threads(a_policy(space), vec, PPOConfig(**settings))


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        (FRAMES, {"minibatch_size": 256}, (4, 4)),
        (Box(-1, 1, (4,)), {"minibatch_size": 512}, (1, 1)),
        (Box(-1, 1, (4,)), {"minibatch_size": 4096}, (1, 4)),
        (FRAMES, {"minibatch_size": 256, "mode": "overlap"}, (1, 1)),
        (FRAMES, {"minibatch_size": 256, "torch_threads": 3}, (3, 3)),
    ],
)
def test_threads_share_what_is_worth_it(monkeypatch, space, settings, expected):
    vec = shoal.Serial(lambda: SampleEnv(space, Discrete(2)), 4, flat=True)
    assert shared(monkeypatch, vec, space, **settings) == expected


def test_processes_that_step_are_not_in_the_way_of_acting(monkeypatch):
    vec = shoal.Multiprocessing(lambda: SampleEnv(FRAMES, Discrete(2)), 4, num_workers=2, flat=True)
    assert shared(monkeypatch, vec, FRAMES) == (1, 4)


def test_torch_has_as_many_threads_as_before(monkeypatch):
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(threads_module, "WORTH_SHARING", 1)
    monkeypatch.setattr(threads_module, "usable_cores", lambda: 2)
    vec = shoal.Serial(lambda: SampleEnv(Box(-1, 1, (4,)), Discrete(2)), 4, flat=True)
    config = PPOConfig(total_steps=100, horizon=32, minibatch_size=64)
    with vec, PPO(vec, config) as ppo:
        learn = ppo._learn
        monkeypatch.setattr(
            ppo, "_learn", lambda rollout: (seen.append(torch.get_num_threads()), learn(rollout))[1]
        )
        ppo.train()
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
