"""What PPO and its policy refuse, and in which words."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.errors import ArgumentError
from shoal.learn import PPO, DQNConfig, PPOConfig, SACConfig
from shoal.testing import SampleEnv
from tests.learn.small_runs import quick


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_steps": 0}, "total_steps: expected at least 1, got 0"),
        ({"gamma": 1.5}, "gamma: expected at least 0 and at most 1, got 1.5"),
        ({"mode": "fast"}, "mode: expected 'sync', 'overlap' or 'async', got 'fast'"),
        ({"activation": "sin"}, "activation: expected 'relu' or 'tanh', got 'sin'"),
        ({"learning_rate": "1e-3"}, "learning_rate: expected a number, got '1e-3'"),
        ({"num_envs": 8.5}, "num_envs: expected a whole number, got 8.5"),
        ({"horizon": True}, "horizon: expected a whole number, got True"),
        ({"lstm": "no"}, "lstm: expected True or False, got 'no'"),
        ({"seed": -1}, "seed: expected at least 0 and at most .*, got -1"),
        ({"total_steps": float("inf")}, "total_steps: expected a whole number, got inf"),
        ({"hidden": 64}, r"hidden: expected widths, such as \(64, 64\), got 64"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ArgumentError, match=message):
        PPOConfig(**settings)


def test_a_misspelt_key_is_an_error():
    # CHECKLIST 31.
    with pytest.raises(
        ArgumentError, match="learning_rat: PPO has no such setting: did you mean learning_rate"
    ):
        PPOConfig.of({"learning_rat": 1})


@pytest.mark.parametrize(
    ("usual", "ours"),
    [
        ("ent_coef", "entropy"),
        ("clip_coef", "clip"),
        ("vf_coef", "value_weight"),
        ("n_steps", "horizon"),
        ("batch_size", "minibatch_size"),
    ],
)
def test_a_name_of_other_libraries_is_understood(usual, ours):
    with pytest.raises(ArgumentError, match=f"{usual}: PPO has no such setting: did you mean {ours}[?]"):
        PPOConfig.of({usual: 1})


@pytest.mark.parametrize("config", [PPOConfig, DQNConfig, SACConfig])
def test_names_of_other_libraries_stand_for_ours(config):
    ours = set(config.__dataclass_fields__)
    assert set(config.USUAL_NAMES.values()) <= ours
    assert not ours & set(config.USUAL_NAMES)


def test_a_number_may_be_written_as_one_likes():
    config = PPOConfig(total_steps=1e5, hidden=[32], num_envs=np.int64(4), gamma=np.float32(0.5))
    assert type(config.gamma) is float
    assert (config.total_steps, config.hidden, config.num_envs) == (100_000, (32,), 4)
    assert type(config.total_steps) is type(config.num_envs) is int


def test_a_dict_is_no_config():
    with pytest.raises(TypeError, match=r"expected a PPOConfig \(from a dict: PPOConfig.of\(a_dict\)\), got"):
        PPO("shoal/CartPole-v1", {"total_steps": 5})


def test_an_lstm_learns_whole_columns():
    config = PPOConfig(lstm=True, minibatch_size=16, horizon=32)
    with pytest.raises(
        ArgumentError, match="expected at least the horizon with lstm=True, 32, because minibatches"
    ):
        PPO("shoal/CartPole-v1", config)


def test_what_a_policy_is_given_is_checked():
    with PPO("shoal/CartPole-v1", quick(lstm=True)) as ppo:
        obs, policy = np.zeros((3, 4), np.float32), ppo.policy
    with pytest.raises(ArgumentError, match="got ndarray of dtype float64 and shape"):
        policy.act_batch(obs.astype(np.float64), state=policy.initial_state(3))
    with pytest.raises(ArgumentError, match=r"obs: expected flat rows.* got dict"):
        policy.act_batch({}, state=policy.initial_state(3))
    for call in (policy.act_batch, policy.value_batch):
        with pytest.raises(ArgumentError, match=r"expected policy.initial_state\(3\).* got one of 2 rows"):
            call(obs, state=policy.initial_state(2))
        with pytest.raises(ArgumentError, match=r"expected policy.initial_state\(3\).* got None"):
            call(obs)
    with pytest.raises(ArgumentError, match=r"expected policy.initial_state\(3\).* got None"):
        policy.step(torch.from_numpy(obs), None)


def test_minibatches_must_fit():
    with pytest.raises(
        ArgumentError, match="minibatch_size: expected at most 128, 8 rows times a horizon of 16"
    ):
        PPO("shoal/CartPole-v1", quick(minibatch_size=4096))


def test_a_vec_must_suit():
    vec = shoal.make("shoal/CartPole-v1", 8, autoreset_mode="SameStep")
    with vec, pytest.raises(ArgumentError, match="vec: expected one with autoreset_mode=NEXT_STEP"):
        PPO(vec, quick())
    vec = shoal.make("shoal/CartPole-v1", 8, batch_size=4)
    with vec, pytest.raises(ArgumentError, match="mode: expected 'async'"):
        PPO(vec, quick())
    structured = Dict({"see": Box(0, 1, (1,)), "place": Discrete(2)})
    vec = shoal.Serial(lambda: SampleEnv(structured, Discrete(2)), 8)
    with vec, pytest.raises(TypeError, match="make the vec with flat=True"):
        PPO(vec, quick())
