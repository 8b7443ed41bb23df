"""Envs that several tests share."""

import gymnasium.spaces as sp

import shoal
from shoal.testing import CrashEnv, SentinelEnv


class Turns(shoal.Env):
    """Two players move in turn; whoever makes the third move wins, and the other one loses by waiting."""

    observation_space = sp.Discrete(9)
    action_space = sp.Discrete(2)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.moves = 0
        self.observations[:] = 0
        self.mask[:] = (True, False)

    def step(self, actions):
        mover = self.moves % 2
        self.moves += 1
        self.observations[:] = self.moves
        self.mask[:] = (mover == 1, mover == 0)
        if self.moves == 3:
            self.rewards[mover], self.rewards[1 - mover] = 1, -1
            self.terminations[:] = True


class Fragile(SentinelEnv):
    """Fails at every step whose action is 999, in the way it is told."""

    def __init__(self, env_id, how="kill", max_length=10**6):
        super().__init__(env_id, max_length)
        self.crash = CrashEnv(env_id, how=how)

    def step(self, action):
        if action == 999:
            self.crash._fail()
        return super().step(action)
