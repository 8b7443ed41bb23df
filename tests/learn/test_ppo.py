"""PPO: what is right by construction, each with a test that names it."""

import hashlib

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal import NativeEnv
from shoal.envs import probes
from shoal.errors import ArgumentError, Diverged
from shoal.learn import PPO, PPOConfig, evaluate

QUICK = {"num_envs": 8, "horizon": 16, "minibatch_size": 64, "epochs": 2, "hidden": (16, 16)}


def quick(**settings):
    return PPOConfig(**{**QUICK, "total_steps": 1000, **settings})


def digest(ppo):
    """Of all weights, and of the normaliser's sums."""
    found = hashlib.sha256()
    for name, tensor in sorted(ppo.policy.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def trained(env="shoal/CartPole-v1", **settings):
    with PPO(env, quick(**settings)) as ppo:
        ppo.train()
    return digest(ppo)


class Endless(NativeEnv):
    """Gives 1 for ever, and is cut off every five steps: with a discount of 0.98 all of it is worth 50."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)
    max_episode_steps = 5

    @staticmethod
    def reset(obs):
        obs[0] = 1.0

    @staticmethod
    def step(obs):
        obs[0] = 1.0
        return 1.0, False


@pytest.mark.timeout(120)
@pytest.mark.parametrize("normalize_returns", [False, True])
def test_truncation_bootstraps(normalize_returns):
    # CHECKLIST 24.
    config = PPOConfig(
        total_steps=100_000,
        num_envs=32,
        horizon=32,
        gamma=0.98,
        learning_rate=2e-2 if not normalize_returns else 5e-3,
        max_grad_norm=100.0,
        normalize_returns=normalize_returns,
    )
    with PPO(Endless, config) as ppo:
        ppo.train()
    assert ppo.policy.value_batch(np.ones((1, 1), np.float32))[0] == pytest.approx(50, abs=1)


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
    class Rich(NativeEnv):
        observation_space = Box(0, 1, (1,), np.float32)
        action_space = Discrete(2)
        max_episode_steps = 4

        @staticmethod
        def reset(obs):
            obs[0] = 1.0

        @staticmethod
        def step(obs):
            return 1000.0, False

    with PPO(Rich, quick(total_steps=200)) as ppo:
        ppo.train()
        assert ppo.episodes.mean_return() == 4000


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


def test_an_encoder_of_ones_own_receives_nested_tensors():
    seen = {}

    class Own(torch.nn.Module):
        out_features = 5

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 5)

        def forward(self, obs):
            seen.update(obs)
            return self.layer(obs["place"].float())

    class Structured(NativeEnv):
        observation_space = Dict({"place": Box(0, 1, (2,), np.float32), "kind": Discrete(3)})
        action_space = Discrete(2)
        max_episode_steps = 3

        @staticmethod
        def reset(obs):
            obs.place[0] = 1.0
            obs.kind = 2

        @staticmethod
        def step(obs):
            return 1.0, False

    with PPO(Structured, quick(total_steps=100), encoder=Own()) as ppo:
        ppo.train()
    assert seen["place"].shape[1:] == (2,)
    assert set(seen["kind"].tolist()) == {2}


class Masked(gymnasium.Env):
    """Four actions, of which one is allowed; any other is an error. The mask is in infos."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(4)

    def _seen(self):
        self.allowed = int(self.np_random.integers(4))
        return np.zeros(1, np.float32), {"action_mask": np.arange(4) == self.allowed}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen()

    def step(self, action):
        assert action == self.allowed
        obs, info = self._seen()
        return obs, 1.0, self.np_random.random() < 0.2, False, info


class MaskedInside(Masked):
    """Likewise, with the mask in its observations."""

    observation_space = Dict({"see": Box(0, 1, (1,), np.float32), "action_mask": Box(0, 1, (4,), np.int8)})

    def _seen(self):
        obs, info = super()._seen()
        return {"see": obs, "action_mask": info["action_mask"].astype(np.int8)}, {}


class MaskedLate(Masked):
    """Likewise, with no mask before the first step."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.allowed = None
        return obs, {}

    def step(self, action):
        self.allowed = action if self.allowed is None else self.allowed
        return super().step(action)


@pytest.mark.parametrize("env", [Masked, MaskedInside, MaskedLate])
@pytest.mark.parametrize("lstm", [False, True])
def test_actions_that_are_not_allowed_are_never_taken(env, lstm):
    with shoal.Serial(env, 8, flat=True) as vec, PPO(vec, quick(total_steps=600, lstm=lstm)) as ppo:
        moved = []
        ppo.train(lambda update: moved.append(update.losses["approx_kl"]))
        assert max(moved) < 0.05  # what was allowed when acting is allowed when learning
        evaluate(ppo.policy, vec, 10, deterministic=False)


class GameOver(gymnasium.Env):
    """Choices of different sizes, and at the end of an episode nothing is allowed."""

    observation_space = Dict({"action_mask": Box(0, 1, (7,), np.int8)})
    action_space = gymnasium.spaces.MultiDiscrete([2, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"action_mask": np.ones(7, np.int8)}, {}

    def step(self, action):
        over = self.np_random.random() < 0.2
        return {"action_mask": np.full(7, not over, np.int8)}, 1.0, over, False, {}


@pytest.mark.parametrize("lstm", [False, True])
def test_where_nothing_is_allowed_nothing_unheard_of_is_drawn(lstm):
    with shoal.Serial(GameOver, 8, flat=True) as vec, PPO(vec, quick(lstm=lstm)) as ppo:
        assert ppo.train().steps >= 1000


def test_a_mask_of_another_size_is_refused():
    class Wrong(MaskedInside):
        action_space = Discrete(5)

    vec = shoal.Serial(Wrong, 8, flat=True)
    with vec, pytest.raises(ArgumentError, match="observation 'action_mask': expected 5 entries"):
        PPO(vec, quick())


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


def test_overlap_learns_from_all_that_it_collects():
    with PPO("shoal/Pendulum-v1", quick(mode="overlap", total_steps=512)) as ppo:
        result = ppo.train()
    assert (result.steps, result.updates) == (512, 4)


def test_stopped_before_it_has_begun():
    with PPO("shoal/CartPole-v1", PPOConfig(total_steps=10_000)) as ppo:
        ppo.stop()
        result = ppo.train()
        assert result.stopped
        assert result.updates == 0
        assert not ppo.train().stopped  # it was for that once


class Broken(gymnasium.Env):
    """Something in it is not a number."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, what):
        self.what = what

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        seen = np.full(2, {"observations": np.nan, "infinite": np.inf}.get(self.what, 1), np.float32)
        return seen, float("nan") if self.what == "rewards" else 1.0, self.np_random.random() < 0.1, False, {}


@pytest.mark.filterwarnings("ignore:observation of env:UserWarning")
@pytest.mark.parametrize("what", ["observations", "rewards", "infinite"])
def test_what_is_not_a_number_is_said_and_ends_training(what):
    said = {
        "observations": "observation of env 0 has nan. Correct the env",
        "rewards": "env 0 gave nan as a reward",
        "infinite": "observation of env 0 has inf. Correct the env",
    }
    with shoal.Serial(lambda: Broken(what), 8) as vec, PPO(vec, quick()) as ppo:
        with pytest.raises(Diverged, match=f"update 1, at .* no numbers to go on with: {said[what]}"):
            ppo.train()
        if what == "infinite":  # they are cut off, so that the loss is a number
            assert ppo.policy.encoder.moments.mean.isfinite().all()


@pytest.mark.filterwarnings("ignore:observation:UserWarning")
def test_what_is_not_a_number_is_not_blamed_on_the_action():
    class Steered(Broken):
        observation_space = Dict({"map": Box(0, 9, (2,), np.int8), "speed": Broken.observation_space})
        action_space = Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            speed, infos = super().reset(seed=seed)
            return {"map": np.zeros(2, np.int8), "speed": speed}, infos

        def step(self, action):
            speed, *rest = super().step(action)
            return {"map": np.zeros(2, np.int8), "speed": speed}, *rest

    with (
        shoal.Serial([lambda: Steered(""), lambda: Steered("observations")], flat=True) as vec,
        PPO(vec, quick(minibatch_size=16)) as ppo,
    ):
        said = r'actions of the policy are not numbers: observation\["speed"\] of env 1 has nan'
        with pytest.raises(Diverged, match=said):
            ppo.train()
        with pytest.raises(Diverged, match=said):
            evaluate(ppo.policy, vec, 2)


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


class Mixed(gymnasium.Env):
    """Integers from -3 to 4 and a number, and an observation that begins at 5."""

    observation_space = Discrete(3, start=5)
    action_space = Dict({"whole": Box(-3, 4, (1,), np.int32), "part": Box(0, 1, (1,), np.float32)})
    taken = set()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 6, {}

    def step(self, action):
        Mixed.taken.add(int(action["whole"][0]))
        assert 0 <= action["part"][0] <= 1
        return 7, 1.0, self.np_random.random() < 0.1, False, {}


def test_integers_of_a_structured_action_keep_their_bounds():
    with shoal.Serial(Mixed, 8, flat=True) as vec, PPO(vec, quick(total_steps=1000)) as ppo:
        ppo.train()
    assert Mixed.taken == set(range(-3, 5))
    vec = shoal.Serial(Mixed, 8)
    with vec, pytest.raises(TypeError, match="make the vec with flat=True"):
        PPO(vec, quick())


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_steps": 0}, "total_steps: expected at least 1, got 0"),
        ({"gamma": 1.5}, "gamma: expected at least 0 and at most 1, got 1.5"),
        ({"mode": "fast"}, "mode: expected 'sync', 'overlap' or 'async', got 'fast'"),
        ({"activation": "sin"}, "activation: expected one of"),
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


def test_a_number_may_be_written_as_one_likes():
    config = PPOConfig(total_steps=1e5, hidden=[32], num_envs=np.int64(4), gamma=np.float32(0.5))
    assert type(config.gamma) is float
    assert (config.total_steps, config.hidden, config.num_envs) == (100_000, (32,), 4)
    assert type(config.total_steps) is type(config.num_envs) is int


def test_a_dict_is_no_config():
    with pytest.raises(TypeError, match=r"expected a PPOConfig \(of a dict: PPOConfig.of\(a_dict\)\), got"):
        PPO("shoal/CartPole-v1", {"total_steps": 5})


def test_an_lstm_learns_whole_columns():
    config = PPOConfig(lstm=True, minibatch_size=16, horizon=32)
    with pytest.raises(
        ArgumentError, match="expected at least the horizon with lstm=True, 32, because whole"
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
    vec = shoal.Serial(MaskedInside, 8)
    with vec, pytest.raises(TypeError, match="make the vec with flat=True"):
        PPO(vec, quick())
