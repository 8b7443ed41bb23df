"""Thread counts of torch while a policy acts and while it learns.

Threads that share little work wait for each other longer than they save. Torch's threads also wait without
sleeping, so that after each batch they take cores from processes that step envs: with such processes, the
policy acts on one thread. In sync mode those processes are idle while the policy learns, or soon are, and
learning may use all cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from shoal.cores import usable_cores
from shoal.learn.base_policy import BasePolicy
from shoal.learn.configs.base import LearnerConfig
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.vec import VectorEnv

WORTH_SHARING = 1 << 24  # operations per batch, from which several threads are faster


class Threads(NamedTuple):
    """Thread counts. A run keeps them, because the order of sums changes the last digits of results."""

    acting: int = 1
    """Torch threads while the policy acts."""
    learning: int = 1
    """Torch threads while the policy learns."""
    lstm: int = 1
    """Threads of the core for an LSTM."""


def choose_threads(policy: BasePolicy, vec: VectorEnv, config: LearnerConfig, batch_size: int) -> Threads:
    """Choose thread counts for acting, learning and the LSTM.

    Args:
        policy: BasePolicy that acts and learns.
        vec: Vec that it acts in.
        config: Settings of the learner.
        batch_size: Number of transitions in a gradient step.
    """
    asked = config.torch_threads
    if asked is not None:
        return Threads(asked, asked, asked)
    if config.mode != "sync":
        return Threads()
    acting, learning = acting_threads(policy, vec), _threads_for(policy, batch_size)
    if _lstm_has_most_work(policy):
        return Threads(acting, lstm=learning)
    return Threads(acting, learning, learning)


def acting_threads(policy: BasePolicy, vec: VectorEnv) -> int:
    """Choose the number of torch threads for one forward pass over all rows of the vec."""
    if isinstance(vec, Multiprocessing) or _lstm_has_most_work(policy):
        return 1
    return _threads_for(policy, vec.num_rows)


def _lstm_has_most_work(policy: BasePolicy) -> bool:
    """Return whether torch's threads would only be in the way of those of the LSTM, which are not torch's."""
    return policy.lstm is not None and not any(True for _ in policy.encoder.parameters())


def _threads_for(policy: BasePolicy, rows: int) -> int:
    # Each weight costs a multiplication and an addition per row, and more in a convolution.
    operations = 2 * rows * sum(weights.numel() for weights in policy.parameters())
    cores = min(usable_cores(), torch.get_num_threads())  # fewer, if set by OMP_NUM_THREADS or the user
    return cores if operations >= WORTH_SHARING else 1


@contextmanager
def use_torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads inside the block, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
