"""PPO and NaN or inf: the env that made them is named, and training ends."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.errors import Diverged
from shoal.learn import PPO, evaluate
from tests.learn.small_runs import quick


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
        with pytest.raises(Diverged, match=f"diverged in update 1, at .* steps: {said[what]}"):
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
        said = r'actions are NaN or inf: observation\["speed"\] of env 1 has nan'
        with pytest.raises(Diverged, match=said):
            ppo.train()
        with pytest.raises(Diverged, match=said):
            evaluate(ppo.policy, vec, 2)
