"""PPO and structured spaces: an encoder of one's own, and actions of several parts."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.learn import PPO
from tests.learn.small_runs import quick


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

    class Structured(gymnasium.Env):
        observation_space = Dict({"place": Box(0, 1, (2,), np.float32), "kind": Discrete(3)})
        action_space = Discrete(2)
        seen = {"place": np.array([1, 0], np.float32), "kind": 2}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.seen, {}

        def step(self, action):
            return self.seen, 1.0, self.np_random.random() < 0.3, False, {}

    with (
        shoal.Serial(Structured, 8, flat=True) as vec,
        PPO(vec, quick(total_steps=100), encoder=Own()) as ppo,
    ):
        ppo.train()
    assert seen["place"].shape[1:] == (2,)
    assert set(seen["kind"].flatten().tolist()) == {2}
    assert set(seen["place"].flatten().tolist()) == {0, 1}


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
