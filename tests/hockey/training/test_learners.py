"""Settings of learners from configuration files, and mirrored transitions."""

import numpy as np
import pytest
import torch

from shoal.errors import ArgumentError
from shoal.hockey import fine_actions
from shoal.hockey.actions import BASIC, COMBINED_24
from shoal.hockey.training.config import Agent, make_config
from shoal.hockey.training.learners import augmentation_of, learner_config
from shoal.learn import DQNConfig, SACConfig
from shoal.learn.replay import Transitions
from tests.hockey.games import one_game, put
from tests.hockey.training.small import config, phase


def settings(agent, training=None, **own):
    found = make_config(config(phase(episodes=5), phase(episodes=3), agent=agent, training=training, **own))
    return learner_config(found, 4, "cpu", 7)


def test_settings_of_every_agent():
    training = {"warmup_steps": 33, "updates_per_step": 3, "train_freq": 2}
    own = {"n_step": 3, "prioritized": True, "normalize_observations": False, "buffer_max_size": 500}
    for agent, kind in (("DDDQN", DQNConfig), ("SAC", SACConfig)):
        found = settings(agent, training, **own)
        assert type(found) is kind
        assert (found.num_envs, found.device, found.seed, found.hidden) == (4, "cpu", 7, (16,))
        assert (found.learning_rate, found.batch_size, found.gamma) == (1e-3, 16, 0.99)
        assert (found.warmup_steps, found.updates_per_step) == (33, 1.5)
        assert (found.n_step, found.prioritized, found.normalize_observations) == (3, True, False)
        assert found.replay_size == 500
    assert settings("SAC", discount=0.9).gamma == settings("DDDQN", gamma=0.9).gamma == 0.9


def test_defaults_of_dddqn_are_those_of_the_course():
    found = settings("DDDQN")
    assert (found.double, found.dueling, found.loss, found.max_grad_norm) == (True, True, "squared", 1.0)
    assert (found.epsilon_start, found.epsilon_end, found.epsilon_decay) == (1.0, 0.01, 0.9995)
    assert (found.target_rate, found.target_every) == (1.0, 50)
    assert (found.action_table, found.replay_size, found.n_step) == (BASIC, 1_000_000, 1)


def test_settings_of_dddqn():
    own = {"eps": 0.7, "eps_min": 0.2, "eps_decay": 0.5, "target_update_freq": 9, "use_huber_loss": True}
    found = settings("DDDQN", **own, action_fineness=4, double=False, dueling=False, max_grad_norm=3)
    assert (found.double, found.dueling, found.loss, found.max_grad_norm) == (False, False, "huber", 3.0)
    assert (found.target_rate, found.target_every, found.action_table) == (1.0, 9, fine_actions(4))
    # Once a game, whatever the number of steps and envs.
    assert [found.epsilon_at(999, games) for games in (0, 1, 2)] == [0.7, 0.35, 0.2]
    smooth = settings("DDDQN", tau=0.01, action_set="combined-24")
    assert (smooth.target_rate, smooth.target_every, smooth.action_table) == (0.01, 1, COMBINED_24)


def test_settings_of_sac():
    found = settings("SAC")
    assert (found.noise, found.target_rate, found.temperature, found.target_entropy) == (
        "white",
        0.005,
        None,
        None,
    )
    own = {"noise": "pink", "tau": 0.1, "learn_alpha": False, "target_entropy": -2}
    found = settings("SAC", **own)
    assert (found.noise, found.noise_steps, found.target_rate) == ("pink", 251, 0.1)
    assert (found.temperature, found.target_entropy) == (0.2, -2.0)
    assert settings("SAC", learn_alpha=False, alpha=0.5).temperature == 0.5


def test_settings_that_do_not_fit_together():
    with pytest.raises(ArgumentError, match=r"agent\.hyperparameters\.alpha: expected only with learn_alpha"):
        settings("SAC", alpha=0.5)


# -- mirrored transitions ------------------------------------------------------------------------------


def transitions(obs, actions, next_obs):
    parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in (obs, actions, next_obs)]
    count = len(parts[0])
    marks = torch.arange(count, dtype=torch.float32)
    return Transitions(
        parts[0], parts[1], marks, marks / 2, parts[2], None, None, marks / 3, np.arange(count) * 5
    )


def test_agents_learn_from_mirrored_transitions_only_if_they_are_told_to():
    assert augmentation_of(Agent("SAC", {})) is None
    assert augmentation_of(Agent("DDDQN", {"mirror": False})) is None


@pytest.mark.parametrize("agent", ["SAC", "DDDQN"])
def test_every_second_transition_is_mirrored_and_twice_is_the_identity(agent):
    rng = np.random.default_rng(0)
    obs, after = rng.normal(size=(2, 7, 18)).astype(np.float32)
    actions = np.arange(7)[:, None] if agent == "DDDQN" else rng.normal(size=(7, 4)).astype(np.float32)
    given = transitions(obs, actions, after)
    augment = augmentation_of(Agent(agent, {"mirror": True}))
    once = augment(given)
    for part in ("obs", "next_obs", "actions"):
        torch.testing.assert_close(getattr(once, part)[1::2], getattr(given, part)[1::2], rtol=0, atol=0)
    signs = np.array([1, -1, -1, 1, -1, -1] * 2 + [1, -1, 1, -1, 1, 1])
    signs = torch.from_numpy(signs.astype(np.float32))
    assert torch.equal(once.obs[::2], given.obs[::2] * signs)
    assert torch.equal(once.next_obs[::2], given.next_obs[::2] * signs)
    if agent == "DDDQN":
        assert once.actions[:, 0].tolist() == [
            0,
            1,
            2,
            3,
            3,
            5,
            5,
        ]  # 0, 2, 4 and 6 are mirrored: 4 is 3, 6 is 5
    else:
        assert torch.equal(once.actions[::2], given.actions[::2] * torch.tensor([1.0, -1, -1, 1]))
    for name in ("returns", "discounts", "weights"):
        assert getattr(once, name) is getattr(given, name)
    for one, two in zip(augment(once), given, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_mirrored_transition_is_what_the_mirrored_game_gives():
    rng = np.random.default_rng(3)
    count = 60
    own, other = (
        rng.uniform(-1, 1, (count, 6)) * [1.2, 2.4, 1, 5, 5, 5] + [-2, 0, 0, 0, 0, 0] for _ in range(2)
    )
    other *= [-1, -1, 1, -1, -1, 1]  # as player one sees it
    puck = rng.uniform(-1, 1, (count, 4)) * [3.8, 2.8, 30, 30]
    puck[::3, :2] = own[::3, :2] + [0.4, 0.1]  # at the racket
    holds = np.zeros((count, 2))
    holds[::5, 0] = 9
    obs = np.concatenate([own, other, puck, holds], 1).astype(np.float32)
    actions = rng.uniform(-1, 1, (count, 2, 4)).astype(np.float32)
    actions[::10, 0, 3] = 1  # shoot

    def play(states, chosen):
        after, rewards = np.zeros_like(states), np.zeros(count)
        with one_game() as vec:
            for place in range(count):
                vec.reset(seed=0)
                put(vec, states[place])
                found, paid, *_ = vec.step(chosen[place])
                after[place], rewards[place] = found[0], paid[0]
        return after, rewards

    after, rewards = play(obs, actions)
    both = transitions(np.repeat(obs, 2, 0), np.repeat(actions[:, 0], 2, 0), np.repeat(after, 2, 0))
    mirrored = augmentation_of(Agent("SAC", {"mirror": True}))(both)
    expected, paid = play(mirrored.obs[::2].numpy(), actions * np.array([1, -1, -1, 1], np.float32))
    np.testing.assert_array_equal(mirrored.actions[::2, 1], -actions[:, 0, 1])
    np.testing.assert_allclose(mirrored.next_obs[::2].numpy(), expected, atol=1e-4)
    np.testing.assert_allclose(paid, rewards, atol=1e-5)
    assert (after[:, 16] == 15).any()  # some have caught the puck
    assert (np.abs(after[:, 14:16]).max(1) > 40).any()  # and some have shot it
