"""PPO: what is right by construction, each with a test that names it."""

import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import NativeEnv
from shoal.envs import probes
from shoal.errors import ArgumentError
from shoal.learn import PPO, PPOConfig, evaluate
from tests.conftest import wait_until
from tests.learn.small_runs import digest, quick, trained


class Endless(NativeEnv):
    """Gives 1 for ever, and is cut off every five steps: with a discount of 0.9 all of it is worth 10."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)
    max_episode_steps = 5
    parameters = {"reward": 1.0}

    @staticmethod
    def reset(obs):
        obs[0] = 1.0

    @staticmethod
    def step(obs, config):
        obs[0] = 1.0
        return config.reward, False


@pytest.mark.parametrize("normalize_returns", [False, True])
def test_truncation_bootstraps(normalize_returns):
    # CHECKLIST 24. Without the value of what comes after, five steps are worth 4.1 at most.
    config = PPOConfig(
        total_steps=20_000,
        num_envs=32,
        horizon=32,
        minibatch_size=256,
        gamma=0.9,
        learning_rate=1e-2,
        max_grad_norm=100.0,
        normalize_returns=normalize_returns,
        torch_threads=1,
    )
    with PPO(Endless, config) as ppo:
        ppo.train()
    assert ppo.policy.value_batch(np.ones((1, 1), np.float32))[0] == pytest.approx(10, abs=0.2)


def test_a_horizon_of_h_stores_h_transitions():
    # CHECKLIST 25: 8 envs whose episodes do not end here.
    with PPO("shoal/Pendulum-v1", quick(total_steps=128)) as ppo:
        result = ppo.train()
    assert (result.updates, result.steps) == (1, 8 * 16)


def test_steps_in_which_an_env_is_reset_are_neither_counted_nor_learnt():
    # CHECKLIST 25: an episode of a bandit is one step, so that every second entry is a reset.
    with PPO(probes.Bandit, quick(total_steps=64)) as ppo:
        assert ppo.train().steps == 8 * 16 / 2
        assert ppo.episodes.count == 64
        assert set(ppo.episodes.lengths) == {1}


def test_rewards_are_not_clamped():
    # CHECKLIST 27.
    with PPO(Endless, quick(total_steps=200), env_kwargs={"reward": 1000.0}) as ppo:
        ppo.train()
        assert ppo.episodes.mean_return() == 5000


@pytest.mark.parametrize("mode", ["sync", "overlap"])
@pytest.mark.parametrize("lstm", [False, True])
def test_the_same_seed_gives_the_same_weights(mode, lstm):
    # CHECKLIST 29.
    first, second = (trained(mode=mode, lstm=lstm) for _ in range(2))
    assert first == second
    assert trained(mode=mode, lstm=lstm, seed=2) != first


def test_workers_do_not_change_the_result():
    class Python(gymnasium.Env):
        observation_space = Box(-1, 1, (2,), np.float32)
        action_space = Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.low, {}

        def step(self, action):
            seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
            return seen, float(seen[0]) * float(action), self.np_random.random() < 0.1, False, {}

    weights = []
    for backend in (shoal.Serial, shoal.Multiprocessing):
        if backend is shoal.Multiprocessing and shoal._core.NAME != "native":
            pytest.skip("there are no workers without the core")
        with backend(Python, 8, flat=True, copy=False) as vec, PPO(vec, quick(total_steps=500)) as ppo:
            ppo.train()
            weights.append(digest(ppo))
    assert weights[0] == weights[1]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("lstm", [False, True])
def test_actions_are_as_likely_when_learnt_as_when_drawn(mode, lstm):
    """In the only minibatch of each update the policy is still the one that acted, with the same memory."""
    settings = {"epochs": 1, "minibatch_size": 128, "mode": mode, "lstm": lstm, "num_workers": 2}
    moved = []
    # Fast learning, so that what an LSTM remembers soon makes a difference.
    with PPO("shoal/CartPole-v1", quick(learning_rate=5e-2, anneal=False, **settings)) as ppo:
        ppo.train(lambda update: moved.append(abs(update.losses["approx_kl"])))
    if mode == "async":  # some columns of later updates have begun under the policy before
        del moved[1:]
    assert max(moved) < 1e-6


def seeds_of_envs(seed):
    """The seeds that eight envs are reset with."""
    seeds = []

    class Seeded(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    with (
        shoal.Serial(lambda: Seeded(gymnasium.make("CartPole-v1")), 8) as vec,
        PPO(vec, quick(seed=seed)) as ppo,
    ):
        ppo.train(lambda update: ppo.stop())
    assert set(seeds[8:]) <= {None}
    return seeds[:8]


def test_envs_are_seeded():
    first, second = seeds_of_envs(70), seeds_of_envs(71)
    assert first == list(range(first[0], first[0] + 8))
    assert first == seeds_of_envs(70)
    assert not set(first) & set(second)  # neighbouring seeds share no episode


@pytest.mark.parametrize("num_envs", [8, 64])
def test_updates_per_sample_do_not_depend_on_the_number_of_envs(num_envs):
    # CHECKLIST 32.
    steps = []
    with PPO("shoal/Pendulum-v1", quick(num_envs=num_envs, total_steps=1024)) as ppo:
        step = ppo.optimizer.step
        ppo.optimizer.step = lambda: (steps.append(1), step())
        ppo.train()
    assert len(steps) == 1024 / 64 * 2  # whole episodes of 200 steps: none is reset meanwhile


def test_rewards_of_every_episode_are_counted():
    # CHECKLIST 30.
    with PPO("shoal/CartPole-v1", quick(total_steps=3000)) as ppo:
        result = ppo.train()
    assert result.episodes > 20
    assert 8 < result.mean_return < 200


@pytest.mark.parametrize(
    "settings",
    [{"clip_value": 0.001}, {"target_kl": 1e-6}, {"anneal": False}, {"activation": "relu"}, {"hidden": ()}],
)
def test_settings_matter(settings):
    assert trained(**settings) != trained()


def test_a_kl_that_is_too_large_ends_an_update():
    steps = []
    with PPO("shoal/CartPole-v1", quick(target_kl=1e-9, total_steps=128, epochs=50)) as ppo:
        step = ppo.optimizer.step
        ppo.optimizer.step = lambda: (steps.append(1), step())
        ppo.train()
    assert len(steps) < 10


def test_an_update_reports_how_much_it_learnt():
    bounded, unbounded = [], []
    for target_kl, found in ((1e-9, bounded), (0.0, unbounded)):
        with PPO("shoal/CartPole-v1", quick(target_kl=target_kl, total_steps=128, torch_threads=2)) as ppo:
            ppo.train(found.append)
    assert [update.passes for update in unbounded] == [2.0] * len(unbounded)  # epochs
    assert all(update.passes <= 1 for update in bounded)
    assert all(update.learning_threads == 2 and update.learning_cpu > 0 for update in unbounded)


def test_a_policy_that_has_moved_before_the_update_is_not_held_back():
    """In overlap mode the policy has moved since it acted: only how far the update moves it counts."""
    passes = []
    config = quick(mode="overlap", target_kl=0.02, learning_rate=5e-3, epochs=4, total_steps=5000)
    with PPO("shoal/CartPole-v1", config) as ppo:
        descend, limit = ppo._descend, 1.5 * ppo.config.target_kl

        def check(experience, targets):
            steps = descend(experience, targets)
            moved = [float(step.figures.approx_kl) for step in steps]
            assert all(kl - moved[0] <= limit for kl in moved[:-1])
            if len(steps) < 4 * ppo._num_minibatches:
                assert moved[-1] - moved[0] > limit
            passes.append(moved[0] > 1e-6)
            return steps

        ppo._descend = check
        ppo.train()
    assert any(passes)


def test_overlap_learns_from_all_that_it_collects():
    with PPO("shoal/Pendulum-v1", quick(mode="overlap", total_steps=512)) as ppo:
        result = ppo.train()
    assert (result.steps, result.updates) == (512, 4)


def test_an_interrupted_update_does_not_learn_from_its_rollout_again(monkeypatch):
    seen = []

    def descend(experience, targets):
        seen.append(experience.obs.numpy().tobytes())
        if len(seen) == 1:
            raise KeyboardInterrupt("now")
        return original(experience, targets)

    def collects():
        return any(thread.name.startswith("shoal-collect") for thread in threading.enumerate())

    with PPO("shoal/Pendulum-v1", quick(mode="overlap", total_steps=512)) as ppo:
        original = ppo._descend
        monkeypatch.setattr(ppo, "_descend", descend)
        with pytest.raises(KeyboardInterrupt, match="now"):
            ppo.train()
        assert wait_until(lambda: not collects(), 60)
        result = ppo.train()
        monkeypatch.undo()
    assert (result.steps, result.updates) == (512, 3)
    assert len(set(seen)) == 4


def test_stopped_before_it_has_begun():
    with PPO("shoal/CartPole-v1", PPOConfig(total_steps=10_000)) as ppo:
        ppo.stop()
        result = ppo.train()
        assert result.stopped
        assert result.updates == 0
        assert not ppo.train().stopped  # it was for that once


def test_a_stop_ends_with_its_training():
    def fail(update):
        ppo.stop()
        raise ValueError("no more")

    with PPO("shoal/CartPole-v1", quick()) as ppo:
        with pytest.raises(ValueError, match="no more"):
            ppo.train(fail)
        assert not ppo.train().stopped


def test_gradients_are_nobody_elses_business():
    """Somebody who clears them, or moves weights, in between changes nothing."""

    def meddle(update):
        ppo.policy.zero_grad()
        ppo.optimizer.zero_grad()
        for parameter in ppo.policy.parameters():
            parameter.data = parameter.data.clone()

    with PPO("shoal/CartPole-v1", quick()) as ppo:
        ppo.train(meddle)
    assert digest(ppo) == trained()


def test_an_episode_without_end_is_no_evaluation_without_end():
    with (
        PPO("shoal/CartPole-v1", PPOConfig(total_steps=2048)) as ppo,
        pytest.raises(ArgumentError, match="max_steps: expected episodes of at most 5 steps, got one in row"),
    ):
        evaluate(ppo.policy, "shoal/CartPole-v1", 2, max_steps=5)


def test_nobody_acts_in_a_whole_rollout():
    # Episodes of one step, and every second entry a reset.
    config = quick(horizon=1, minibatch_size=2, num_envs=4, total_steps=40)
    with PPO(probes.Bandit, config) as ppo:
        assert ppo.train().steps == 40
    assert all(tensor.isfinite().all() for tensor in ppo.policy.state_dict().values())


@pytest.mark.parametrize(
    ("settings", "horizon"),
    [({}, 32), ({"num_envs": 8}, 256), ({"num_envs": 3}, 683), ({"num_envs": 2, "lstm": True}, 512)],
)
def test_by_default_a_rollout_is_long_enough_for_its_minibatches(settings, horizon):
    updates = []
    with PPO("shoal/CartPole-v1", PPOConfig(total_steps=1, epochs=1, **settings)) as ppo:
        ppo.train(updates.append)
        rows = ppo.vec.num_rows
    # A step in which an env is reset is no transition.
    assert len(updates) == 1
    assert horizon * rows - updates[0].episodes <= updates[0].steps <= horizon * rows
