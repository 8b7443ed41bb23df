"""All learners by the short names of their algorithms."""

from __future__ import annotations

from shoal.learn.dqn import DQN
from shoal.learn.learner import Learner
from shoal.learn.ppo import PPO
from shoal.learn.sac import SAC

LEARNERS: dict[str, type[Learner]] = {each.algorithm: each for each in (PPO, DQN, SAC)}
