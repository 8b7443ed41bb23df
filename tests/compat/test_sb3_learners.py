"""Stable-Baselines3's learners and `make_vec_env` on a vec, side by side with its own vector envs."""

import sys
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecMonitor,
)

from shoal.compat.sb3 import ShoalVecEnv
from shoal.testing.contract import require_equal
from tests.compat.sb3_envs import (
    ROLLOUT,
    Walk,
    backends,
    creators,
    needs_processes,
)

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Returns(BaseCallback):
    """Notes the return of every episode."""

    def __init__(self):
        super().__init__()
        self.found = []

    def _on_step(self):
        self.found += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


@backends
def test_ppo_is_the_same_as_on_dummy_vec_env(backend):
    found, create = [], [partial(gymnasium.make, "CartPole-v1")] * 4
    for env in (VecMonitor(ShoalVecEnv(create, **backend)), VecMonitor(DummyVecEnv(create))):
        model, returns = PPO("MlpPolicy", env, n_steps=64, n_epochs=2, seed=1, device="cpu"), Returns()
        model.learn(1024, callback=returns)
        found.append((returns.found, evaluate_policy(model, env, 4, return_episode_rewards=True)))
        env.close()
    assert len(found[0][0]) > 20
    assert found[0] == found[1]


# Workers that have SB3's Monitor import torch, which takes seconds: one of them is enough.
serial_or_one_worker = pytest.mark.parametrize(
    "backend",
    [
        pytest.param({"backend": "serial"}, id="serial"),
        pytest.param(
            {"num_workers": 1, "backend": "multiprocessing"}, id="one worker", marks=needs_processes
        ),
    ],
)
REPLAY = {**ROLLOUT, "learning_starts": 20, "batch_size": 8, "buffer_size": 200}
LEARNERS = {
    "PPO": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, n_epochs=1, **ROLLOUT), Discrete(3)),
    "PPO, continuous": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), Box(-1, 1, (2,))),
    "PPO, bits": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), MultiBinary(3)),
    "PPO, choices": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), MultiDiscrete([2, 3])),
    "DQN": (partial(DQN, "MlpPolicy", **REPLAY), Discrete(3)),
    "SAC": (partial(SAC, "MlpPolicy", **REPLAY), Box(-1, 1, (2,))),
}


@pytest.mark.parametrize(("learner", "actions"), LEARNERS.values(), ids=LEARNERS)
@backends
def test_learners(backend, learner, actions):
    parameters, create = [], creators(2, None, actions)
    for vec_env in (ShoalVecEnv(create, **backend), DummyVecEnv(create)):
        model = learner(env=VecMonitor(vec_env))
        model.learn(64)
        assert model.num_timesteps >= 64
        assert len(model.ep_info_buffer) > 2
        parameters.append({name: values.numpy() for name, values in model.policy.state_dict().items()})
        vec_env.close()
    require_equal(*parameters, "the same policy as on DummyVecEnv")


class Goal(gymnasium.Env):
    """Ends where it should be, or after 5 steps."""

    PLACE = Box(0, 9, (1,), np.float32)
    observation_space = Dict({"observation": PLACE, "achieved_goal": PLACE, "desired_goal": PLACE})
    action_space = Discrete(2)
    asked = 0

    def _observe(self):
        place = np.full(1, self.place, np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": np.full(1, 3, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.place = self.moment = 0
        return self._observe(), {}

    def step(self, action):
        self.place, self.moment = self.place + int(action), self.moment + 1
        return self._observe(), -1.0, self.place == 3, self.moment == 5, {"place": self.place}

    def compute_reward(self, achieved, desired, infos):
        self.asked += 1
        return np.where(achieved == desired, 0.0, -1.0).ravel()


@backends
def test_hindsight_asks_one_env_for_rewards(backend):
    env = ShoalVecEnv([Goal] * 2, **backend)
    model = DQN("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, **REPLAY)
    model.learn(60)
    first, second = env.get_attr("asked")
    assert first > 0
    assert second == 0
    env.close()


@backends
def test_dicts_for_a_learner(backend):
    env = ShoalVecEnv(creators(2, Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)})), **backend)
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, **ROLLOUT)
    model.learn(16)
    obs = env.reset()
    actions, _ = model.predict(obs)
    assert actions.shape == (2,)
    env.close()


@serial_or_one_worker
def test_make_vec_env(backend, tmp_path):
    env = make_vec_env(
        "CartPole-v1",
        n_envs=2,
        seed=0,
        monitor_dir=str(tmp_path),
        vec_env_cls=ShoalVecEnv,
        vec_env_kwargs=backend,
    )
    assert env.env_is_wrapped(Monitor) == [True, True]
    assert env.render_mode == "rgb_array"
    env.reset()
    lengths = [[], []]
    while not all(lengths):
        for own, info in zip(lengths, env.step(np.array([1, 1]))[3], strict=True):
            own += [info["episode"]["l"]] if "episode" in info else []
    assert env.env_method("get_episode_lengths") == lengths
    env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


class Short(Walk):
    """Its reset knows no options."""

    def reset(self, seed=None):
        return super().reset(seed=seed)


@serial_or_one_worker
def test_make_vec_env_of_envs_whose_reset_takes_no_options(backend):
    ours = make_vec_env(Short, 2, seed=0, vec_env_cls=ShoalVecEnv, vec_env_kwargs=backend)
    theirs = make_vec_env(Short, 2, seed=0)
    require_equal(ours.reset(), theirs.reset(), "the same first observations")
    for step in range(20):
        for mine, other in zip(ours.step([0, 1])[:3], theirs.step([0, 1])[:3], strict=True):
            require_equal(mine, other, f"the same in step {step}")
    require_equal(ours.reset(), theirs.reset(), "the same observations of a reset without a seed")
    ours.close()
