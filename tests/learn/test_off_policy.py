"""What DQN and SAC have in common: counts, determinism, modes, masks, and what they refuse."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import shoal
from shoal.errors import ArgumentError, Diverged
from shoal.learn import DQN, SAC, DQNConfig, SACConfig, evaluate, load
from shoal.testing import SampleEnv
from tests.learn.off_policy import LEARNERS, digest, make, trained

BOTH = pytest.mark.parametrize("name", LEARNERS)


@BOTH
@pytest.mark.parametrize("num_envs", [1, 4, 16])
@pytest.mark.parametrize("ratio", [0.25, 1 / 3])
def test_gradient_steps_per_transition_do_not_depend_on_the_number_of_envs(name, num_envs, ratio):
    # CHECKLIST 32.
    learner = trained(name, num_envs=num_envs, updates_per_step=ratio, hidden=(8,), total_steps=400)
    expected = (learner.steps - 100) * ratio
    assert learner.updates == pytest.approx(expected, abs=1 + num_envs * ratio)


@BOTH
def test_reports_tell_what_happened(name, monkeypatch):
    monkeypatch.setattr("shoal.learn.off_policy.REPORT_STEPS", 200)
    with make(name) as learner:
        updates = []
        result = learner.train(updates.append)
    assert [update.steps // 200 for update in updates] == [1, 2, 3]
    assert updates[-1].updates == result.updates == learner.updates
    assert updates[-1].steps == result.steps >= 600
    assert {"value", "q_values", "grad_norm"} <= set(updates[-1].losses)
    assert all(np.isfinite(list(updates[-1].losses.values())))
    assert updates[-1].learning_rate == learner.config.learning_rate
    assert set(updates[-1].split) == {"wait", "act", "store", "send", "learn"}


@BOTH
@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_the_same_seed_gives_the_same_result(name, mode):
    # CHECKLIST 29.
    first, second, other = (digest(trained(name, mode=mode, seed=seed)) for seed in (5, 5, 6))
    assert first == second != other


@BOTH
def test_backends_give_the_same_result(name):
    env = {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[name]
    settings = {"total_steps": 300, "warmup_steps": 50}
    serial = trained(name, env, backend="serial", **settings)
    workers = trained(name, env, backend="multiprocessing", num_workers=2, **settings)
    assert digest(serial) == digest(workers)


@BOTH
def test_rows_are_learnt_from_as_they_arrive(name):
    env = {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[name]
    settings = {"mode": "async", "backend": "multiprocessing", "num_workers": 2}
    learner = trained(name, env, total_steps=300, **settings)
    assert learner.steps >= 300
    assert len(learner.replay) >= 280


@BOTH
def test_overlap_acts_with_the_policy_of_the_step_before(name):
    with make(name, mode="overlap", warmup_steps=0, updates_per_step=1.0) as learner:
        seen = []
        choose = learner._choose

        def spy(policy, obs, step, generator):
            seen.append(next(policy.parameters()).detach().clone())
            return choose(policy, obs, step, generator)

        learner._choose = spy
        weights = []
        step_once = learner._step_overlapping

        def record(executor):
            weights.append(next(learner.policy.parameters()).detach().clone())
            step_once(executor)

        learner._step_overlapping = record
        learner.config = learner.config_class(**{**vars(learner.config), "total_steps": 40})
        learner.train()
    # When a step begins, the policy has learnt from all before it; the one that acts begins it too.
    for acted, begun in zip(seen, weights, strict=True):
        assert torch.equal(acted, begun)
    assert not torch.equal(weights[3], weights[-1])


@BOTH
def test_random_actions_come_first(name):
    with make(name, total_steps=90, warmup_steps=100, updates_per_step=0) as learner:
        before = {key: value.clone() for key, value in learner.policy.state_dict().items()}
        learner.train()
        after = learner.policy.state_dict()
    assert learner.updates == 0
    weights = [key for key in before if "moments" not in key]
    assert all(torch.equal(before[key], after[key]) for key in weights)


@BOTH
def test_a_policy_is_saved_loaded_and_evaluated(name, tmp_path):
    learner = trained(name, total_steps=300)
    learner.save(tmp_path)
    policy = load(tmp_path)
    assert type(policy) is type(learner.policy)
    obs = np.random.default_rng(0).standard_normal((5, *policy.layout.flat_shape)).astype(np.float32)
    for deterministic in (True, False):
        same = [
            each.act_batch(obs, deterministic, generator=torch.Generator().manual_seed(1))
            for each in (policy, learner.policy)
        ]
        assert (same[0] == same[1]).all()
    assert np.isfinite(policy.value_batch(obs)).all()
    assert evaluate(policy, LEARNERS[name][2], episodes=3).episodes == 3


@BOTH
def test_stop_ends_training_soon(name):
    with make(name, total_steps=10**6) as learner:
        learner.stop()
        result = learner.train()
        assert result.stopped
        assert result.steps == 0


# -- other envs ----------------------------------------------------------------------------------------------


def test_agents_that_come_and_go_are_learnt_from():
    from shoal.envs import probes

    learner = trained("dqn", probes.Agents, num_envs=2, total_steps=500)
    assert len(learner.replay) > 300


@pytest.mark.parametrize(
    "space", [Dict({"a": Box(-1, 1, (3,)), "b": Discrete(4)}), Box(0, 255, (36, 36, 3), np.uint8)]
)
@BOTH
def test_encoders_with_weights_learn(name, space):
    actions = Discrete(3) if name == "dqn" else Box(-1, 1, (2,))
    with make(
        name, lambda: SampleEnv(space, actions), total_steps=60, warmup_steps=20, batch_size=8
    ) as learner:
        before = [parameter.detach().clone() for parameter in learner.policy.encoder.parameters()]
        learner.train()
        after = list(learner.policy.encoder.parameters())
    assert before
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@BOTH
def test_an_encoder_of_ones_own_learns(name):
    class Own(torch.nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer, self.out_features = torch.nn.Linear(space.shape[0], 7), 7

        def forward(self, obs):
            return self.layer(obs).relu()

    learner_class, config_class, env = LEARNERS[name]
    config = config_class(total_steps=200, warmup_steps=50, hidden=(8,), num_envs=4, updates_per_step=0.2)
    with learner_class(env, config, encoder=Own) as learner:
        before = learner.policy.encoder.layer.weight.detach().clone()
        learner.train()
    assert not torch.equal(before, learner.policy.encoder.layer.weight)


# -- what is refused -----------------------------------------------------------------------------------------


class NaNReward(SampleEnv):
    def step(self, action):
        return *super().step(action)[:1], float("nan"), False, False, {}


@BOTH
def test_a_reward_that_is_not_a_number_ends_training_before_it_is_learnt_from(name):
    actions = Discrete(3) if name == "dqn" else Box(-1, 1, (2,))
    with (
        make(name, lambda: NaNReward(Box(-1, 1, (3,)), actions), warmup_steps=0) as learner,
        pytest.raises(Diverged, match="at 4 steps: env 0 gave nan as a reward"),
    ):
        learner.train()
    assert learner.updates == 0
    assert len(learner.replay) == 0


@pytest.mark.parametrize(
    ("learner", "space", "message"),
    [
        (DQN, Box(-1, 1, (2,)), "DQN chooses among alternatives.*For continuous actions: SAC or PPO"),
        (SAC, Discrete(3), "SAC needs continuous actions.*For discrete choices: DQN"),
        (SAC, MultiDiscrete([2, 2]), "SAC needs continuous actions"),
        (SAC, Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)}), "SAC needs continuous actions"),
        (DQN, Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)}), "DQN chooses among alternatives"),
        (SAC, Box(-np.inf, np.inf, (2,)), "expected a Box with finite bounds"),
        (SAC, Box(0, np.inf, (2,)), "expected a Box with finite bounds"),
    ],
)
def test_actions_of_another_kind_are_refused(learner, space, message):
    with pytest.raises(ArgumentError, match=message):
        learner(lambda: SampleEnv(Box(-1, 1, (3,)), space))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay_size": 100}, "replay_size: expected at least 256"),
        ({"total_steps": 900}, "warmup_steps: expected less than total_steps, 900.*got 1,000"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"updates_per_step": -1}, "updates_per_step: expected at least 0"),
        ({"target_rate": 1.5}, "target_rate: expected at least 0 and at most 1"),
        ({"n_step": 0}, "n_step: expected at least 1"),
        ({"n_step": 200_000}, "replay_size: expected at least 1,600,008"),
        ({"frame_stack": 3}, "frame_stack: expected the length of the first or last axis"),
    ],
)
@pytest.mark.parametrize("name", LEARNERS)
def test_settings_that_make_no_sense(name, settings, message):
    learner, config, env = LEARNERS[name]
    with pytest.raises(ArgumentError, match=message):
        learner(env, config(**settings))


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(ArgumentError, match="loss: expected 'huber' or 'squared', got 'cubed'"):
        DQNConfig(loss="cubed")
    with pytest.raises(ArgumentError, match="noise: expected 'white', 'pink' or 'red', got 'blue'"):
        SACConfig(noise="blue")
    with pytest.raises(ArgumentError, match=r"tau: SAC has no such setting: did you mean target_rate\?"):
        SACConfig.of({"tau": 0.1})


def test_a_vec_with_batches_of_some_rows_needs_async():
    vec = shoal.make("CartPole-v1", 4, num_workers=2, batch_size=2, flat=True)
    with vec, pytest.raises(ArgumentError, match="mode: expected 'async'"):
        DQN(vec)
