"""How many threads torch has, while a policy acts and while it learns.

Threads that share a little work wait for each other longer than they help. And torch's threads wait without
sleeping, so that after each batch they are in the way of whoever steps envs: so processes that do leave the
policy one thread to act with. While it learns in sync they stand still, and there is a core for each thread.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from shoal.learn.policy import Policy
from shoal.learn.ppo_config import PPOConfig
from shoal.vector._cores import usable_cores
from shoal.vector.base import VectorEnv
from shoal.vector.multiprocessing import Multiprocessing

WORTH_SHARING = 1 << 24  # operations of a batch


class Threads(NamedTuple):
    """Of torch, and an LSTM's own. Sums in another order have other last digits, so a run keeps them."""

    acting: int = 1
    learning: int = 1
    lstm: int = 1


def choose_threads(policy: Policy, vec: VectorEnv, config: PPOConfig) -> Threads:
    """As many as help."""
    asked = config.torch_threads
    if asked is not None:
        return Threads(asked, asked, asked)
    if config.mode != "sync":
        return Threads()
    # A weight is multiplied and added once for each row, and more often in a convolution.
    cores = min(usable_cores(), torch.get_num_threads())  # fewer, if OMP_NUM_THREADS or somebody says so
    operations = 2 * sum(weights.numel() for weights in policy.parameters())
    learning = cores if config.minibatch_size * operations >= WORTH_SHARING else 1
    worth_acting = vec.num_rows * operations >= WORTH_SHARING and not isinstance(vec, Multiprocessing)
    acting = cores if worth_acting else 1
    if policy.lstm is not None and not any(True for _ in policy.encoder.parameters()):
        # It has most of the work, and torch's threads would be in the way of its own.
        return Threads(lstm=learning)
    return Threads(acting, learning, learning)
