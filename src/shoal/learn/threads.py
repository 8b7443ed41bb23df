"""How many threads torch has, while a policy acts and while it learns.

Threads that share a little work wait for each other longer than they help. And torch's threads wait without
sleeping, so that after each batch they are in the way of whoever steps envs: so processes that do leave the
policy one thread to act with. While it learns in sync they stand still, and there is a core for each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from shoal.cores import usable_cores
from shoal.learn.policy import Policy
from shoal.learn.ppo_config import PPOConfig
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.vec import VectorEnv

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
    acting, learning = threads_to_act(policy, vec), _threads_for(policy, config.minibatch_size)
    if policy.lstm is not None and not any(True for _ in policy.encoder.parameters()):
        # It has most of the work, and torch's threads would be in the way of its own.
        return Threads(lstm=learning)
    return Threads(acting, learning, learning)


def threads_to_act(policy: Policy, vec: VectorEnv) -> int:
    """Choose the number of torch threads for one forward pass over all rows of the vec."""
    return 1 if isinstance(vec, Multiprocessing) else _threads_for(policy, vec.num_rows)


def _threads_for(policy: Policy, rows: int) -> int:
    # A weight is multiplied and added once for each row, and more often in a convolution.
    operations = 2 * rows * sum(weights.numel() for weights in policy.parameters())
    cores = min(usable_cores(), torch.get_num_threads())  # fewer, if OMP_NUM_THREADS or the user says so
    return cores if operations >= WORTH_SHARING else 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give torch `count` threads inside the block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
