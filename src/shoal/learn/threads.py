"""How many threads torch has, while a policy acts and while it learns.

Threads that share a little work wait for each other longer than they help. And torch's threads wait without
sleeping, so that after each batch they are in the way of whoever steps envs: so processes that do leave the
policy one thread to act with. While it learns in sync they stand still, and there is a core for each thread.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from shoal.learn.policy import Policy
from shoal.learn.ppo_config import PPOConfig
from shoal.vector._cores import usable_cores
from shoal.vector.base import VectorEnv
from shoal.vector.multiprocessing import Multiprocessing

WORTH_SHARING = 1 << 24  # operations of a batch


class Threads(NamedTuple):
    """Of torch."""

    acting: int
    learning: int


def share_threads(policy: Policy, vec: VectorEnv, config: PPOConfig) -> Threads:
    """Choose them, and tell an LSTM, which has threads of its own."""
    lstm, asked = policy.lstm, config.torch_threads
    if asked is not None:
        acting = learning = asked
    elif config.mode != "sync":
        acting = learning = 1
    else:
        worth = WORTH_SHARING / operations(policy)  # rows
        learning = usable_cores() if config.minibatch_size >= worth else 1
        waits = isinstance(vec, Multiprocessing)
        acting = usable_cores() if vec.num_rows >= worth and not waits else 1
    if lstm is None:
        return Threads(acting, learning)
    lstm.threads = learning
    # Torch's would be in the way of the LSTM's own, which has most of the work unless layers come before it.
    layers_before = any(True for _ in policy.encoder.parameters())
    return Threads(acting, learning) if asked is not None or layers_before else Threads(1, 1)


def operations(policy: Policy) -> int:
    """Of one row: additions and multiplications in the products of matrices, and in convolutions."""
    rows = torch.from_numpy(np.zeros((2, *policy.layout.flat_shape), policy.layout.flat_dtype))
    copy = deepcopy(policy).eval()  # an encoder of somebody's own may write down what it has seen
    lstm = 0 if policy.lstm is None else 2 * policy.lstm.weights.numel()  # in the core: nobody else counts it
    with torch.no_grad(), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        copy.step(rows.to(policy.device), copy.initial_state(2))
    return counter.get_total_flops() // 2 + lstm
