"""How many threads torch has."""

import pytest
import torch
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import _core
from shoal.learn import PPO, Policy, PPOConfig, threads
from shoal.learn.threads import Threads, choose_threads
from shoal.testing import SampleEnv

VECTOR, FRAMES = Box(-1, 1, (4,)), Box(0, 255, (4, 84, 84), "uint8")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


def chosen(space, *, vec_class=shoal.Serial, rows=8, hidden=(64, 64), **settings):
    config = PPOConfig(hidden=hidden, **settings)
    with vec_class(lambda: SampleEnv(space, Discrete(2)), rows, flat=True) as vec:
        policy = Policy(vec.observation_layout, Discrete(2), hidden=hidden, lstm=config.lstm)
        return choose_threads(policy, vec, config)


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        (FRAMES, {"minibatch_size": 256}, (4, 4, 4)),
        (FRAMES, {"minibatch_size": 256, "lstm": True}, (4, 4, 4)),
        (VECTOR, {"minibatch_size": 512}, (1, 1, 1)),
        (VECTOR, {"minibatch_size": 4096}, (1, 4, 4)),
        (VECTOR, {"minibatch_size": 4096, "lstm": True}, (1, 1, 4)),
        (FRAMES, {"minibatch_size": 256, "mode": "overlap"}, (1, 1, 1)),
        (FRAMES, {"minibatch_size": 256, "torch_threads": 3}, (3, 3, 3)),
    ],
)
def test_threads_share_what_is_worth_it(space, settings, expected):
    assert chosen(space, **settings) == expected


def test_who_says_fewer_is_heard(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # by OMP_NUM_THREADS, say
    assert chosen(FRAMES) == (2, 2, 2)


@pytest.mark.skipif(_core.NAME != "native", reason="there are no processes without the core")
def test_acting_is_not_in_the_way_of_processes_that_step():
    assert chosen(FRAMES, vec_class=shoal.Multiprocessing) == (1, 4, 4)


def test_torch_has_them_while_it_learns_and_then_as_many_as_before(monkeypatch):
    monkeypatch.undo()
    before, seen = torch.get_num_threads(), []
    with (
        shoal.Serial(lambda: SampleEnv(VECTOR, Discrete(2)), 4, flat=True) as vec,
        PPO(vec, PPOConfig(total_steps=100, horizon=32, minibatch_size=64)) as ppo,
    ):
        ppo.threads, learn = Threads(acting=1, learning=2), ppo._learn
        monkeypatch.setattr(
            ppo, "_learn", lambda rollout: seen.append(torch.get_num_threads()) or learn(rollout)
        )
        ppo.train(lambda update: seen.append(torch.get_num_threads()))
    assert seen == [2, 1]
    assert torch.get_num_threads() == before
