"""How many threads torch has."""

from functools import cache

import pytest
import torch
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import _core
from shoal.learn import PPO, Policy, PPOConfig, threads
from shoal.learn.threads import Threads, acting_threads, choose_threads
from shoal.testing import SampleEnv

SPACES = {"vector": Box(-1, 1, (4,)), "frames": Box(0, 255, (4, 84, 84), "uint8")}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@cache
def a_policy(kind, lstm):
    """Made once: to draw the weights of a network for frames takes a second."""
    return Policy(shoal.layout(SPACES[kind]), Discrete(2), hidden=(64, 64), lstm=lstm)


def chosen(kind, *, vec_class=shoal.Serial, **settings):
    config = PPOConfig(hidden=(64, 64), **settings)
    with vec_class(lambda: SampleEnv(SPACES[kind], Discrete(2)), 8, flat=True) as vec:
        return choose_threads(a_policy(kind, config.lstm), vec, config, config.minibatch_size)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("frames", {"minibatch_size": 256}, (4, 4, 4)),
        ("frames", {"minibatch_size": 256, "lstm": True}, (4, 4, 4)),
        ("vector", {"minibatch_size": 512}, (1, 1, 1)),
        ("vector", {"minibatch_size": 4096}, (1, 4, 4)),
        ("vector", {"minibatch_size": 4096, "lstm": True}, (1, 1, 4)),
        ("frames", {"minibatch_size": 256, "mode": "overlap"}, (1, 1, 1)),
        ("frames", {"minibatch_size": 256, "torch_threads": 3}, (3, 3, 3)),
    ],
)
def test_threads_share_what_is_worth_it(kind, settings, expected):
    assert chosen(kind, **settings) == expected


@pytest.mark.parametrize(
    ("kind", "lstm", "expected"),
    [("vector", False, 4), ("vector", True, 1), ("frames", False, 4), ("frames", True, 4)],
)
def test_torch_shares_no_work_that_an_lstm_has(kind, lstm, expected, monkeypatch):
    """With an encoder of frames, there is other work than the LSTM's."""
    monkeypatch.setattr(threads, "WORTH_SHARING", 1)
    with shoal.Serial(lambda: SampleEnv(SPACES[kind], Discrete(2)), 8, flat=True) as vec:
        assert acting_threads(a_policy(kind, lstm), vec) == expected
    assert chosen(kind, lstm=lstm).acting == expected


def test_who_says_fewer_is_heard(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # by OMP_NUM_THREADS, say
    assert chosen("frames") == (2, 2, 2)


@pytest.mark.skipif(_core.NAME != "native", reason="there are no processes without the core")
def test_acting_is_not_in_the_way_of_processes_that_step():
    assert chosen("frames", vec_class=shoal.Multiprocessing) == (1, 4, 4)


def test_torch_has_them_while_it_learns_and_then_as_many_as_before(monkeypatch):
    monkeypatch.undo()
    before, seen = torch.get_num_threads(), []
    with (
        shoal.Serial(lambda: SampleEnv(SPACES["vector"], Discrete(2)), 4, flat=True) as vec,
        PPO(vec, PPOConfig(total_steps=100, horizon=32, minibatch_size=64)) as ppo,
    ):
        ppo.threads, learn = Threads(acting=1, learning=2), ppo._learn
        monkeypatch.setattr(
            ppo, "_learn", lambda rollout: seen.append(torch.get_num_threads()) or learn(rollout)
        )
        ppo.train(lambda update: seen.append(torch.get_num_threads()))
    assert seen == [2, 1]
    assert torch.get_num_threads() == before
