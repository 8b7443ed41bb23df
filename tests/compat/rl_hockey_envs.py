"""An env like the original hockey env, of another package, which the tests of our stand-in step."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Foreign(gymnasium.Env):
    """Counts its steps; an episode has three, and every second one ends by a goal."""

    observation_space = Box(-np.inf, np.inf, (18,), np.float32)
    action_space = Box(-1, 1, (8,), np.float32)

    def __init__(self):
        self.episode, self.count = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._obs(1), {}

    def step(self, action):
        self.count += 1
        goal = self.count == 3 and self.episode % 2 == 0
        late = self.count == 3 and not goal
        info = {"winner": int(goal), "reward_touch_puck": float(action[7])}
        return self._obs(1), float(action[0]), goal, late, info

    def obs_agent_two(self):
        return self._obs(-1)

    def _obs(self, sign):
        return np.full(18, sign * (10 * self.episode + self.count), np.float32)
