"""Learners, policies and run folders. Only this package of Shoal imports torch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('shoal.learn needs torch: pip install "shoal[learn]"') from error

from shoal._core import gae
from shoal.learn.actions import Actions
from shoal.learn.base_policy import BasePolicy
from shoal.learn.collector import Collector
from shoal.learn.configs.dqn import DQNConfig
from shoal.learn.configs.ppo import PPOConfig
from shoal.learn.configs.replay import ReplayConfig
from shoal.learn.configs.sac import SACConfig
from shoal.learn.dqn import DQN
from shoal.learn.episodes import Episodes
from shoal.learn.evaluate import Evaluation, evaluate
from shoal.learn.learner import Learner
from shoal.learn.off_policy import OffPolicyLearner
from shoal.learn.policy import Policy
from shoal.learn.ppo import PPO
from shoal.learn.progress import Result, Update
from shoal.learn.q_policy import QPolicy
from shoal.learn.replay import Replay, Transitions
from shoal.learn.rollout import Rollout
from shoal.learn.runs.options import RunOptions
from shoal.learn.runs.policy_file import load
from shoal.learn.runs.resuming import resume
from shoal.learn.runs.run import Run
from shoal.learn.sac import SAC
from shoal.learn.sac_policy import SACPolicy
from shoal.learn.stopping import stop_on_signals
from shoal.learn.targets import Target
from shoal.learn.unpack import unpack

__all__ = [
    "DQN",
    "PPO",
    "SAC",
    "Actions",
    "BasePolicy",
    "Collector",
    "DQNConfig",
    "Episodes",
    "Evaluation",
    "Learner",
    "OffPolicyLearner",
    "PPOConfig",
    "Policy",
    "QPolicy",
    "Replay",
    "ReplayConfig",
    "Result",
    "Rollout",
    "Run",
    "RunOptions",
    "SACConfig",
    "SACPolicy",
    "Target",
    "Transitions",
    "Update",
    "evaluate",
    "gae",
    "load",
    "resume",
    "stop_on_signals",
    "unpack",
]
