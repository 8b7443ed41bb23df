"""Thread counts of torch while a policy acts and while it learns.

Threads that share little work wait for each other longer than they save. Torch's threads also wait without
sleeping, so that after each batch they take cores from processes that step envs: with such processes, the
policy acts on one thread. In sync mode those processes are idle while the policy learns, or soon are, and
learning may use all cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
        policy: Policy that acts and learns.
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


class Crowding:
    """Finds out whether other processes take the cores, so that one thread is faster than several.

    Threads that share a product wait for the slowest. If one of them gets no core for a while, a step takes
    ten times as long or more. The CPU time that a step got tells: it is less than the time of all threads.

    Args:
        threads: Number of threads if there is no crowd.
        clock: Function that returns the time in seconds.

    Attributes:
        threads: Number of threads to use now: all, or 1.
    """

    JUDGED = 0.2  # seconds of learning that are judged together
    LEAST = 0.8  # of the CPU time of all threads
    FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds until several threads are tried again

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = self.threads = threads
        self._clock = clock
        self._seconds = self._cpu_seconds = 0.0
        self._pause, self._until = self.FIRST_PAUSE, 0.0

    def add(self, seconds: float, cpu_seconds: float) -> None:
        """Add the time of some gradient steps, and the CPU time that this process got meanwhile."""
        if self._most == 1:
            return
        if self.threads == 1:
            if self._clock() >= self._until:
                self.threads, self._seconds, self._cpu_seconds = self._most, 0.0, 0.0
            return
        self._seconds += seconds
        self._cpu_seconds += cpu_seconds
        if self._seconds < self.JUDGED:
            return
        if self._cpu_seconds < self.LEAST * self._most * self._seconds:
            self.threads, self._until = 1, self._clock() + self._pause
            self._pause = min(2 * self._pause, self.LONGEST_PAUSE)
        else:
            self._pause = self.FIRST_PAUSE
        self._seconds = self._cpu_seconds = 0.0


@contextmanager
def use_torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads inside the block, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
