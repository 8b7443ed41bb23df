"""PPO and action masks: what is not allowed is neither done nor learnt."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.errors import ArgumentError
from shoal.learn import PPO, evaluate
from tests.learn.small_runs import quick


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
