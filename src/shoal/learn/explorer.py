"""The explorer: one step of a vec with actions that explore, for learners with a replay."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.batch import Batch
from shoal.learn.base_policy import BasePolicy
from shoal.learn.interaction import Interaction


class Step(NamedTuple):
    """What a step of the vec brought, and the actions that it was answered with."""

    batch: Batch
    rows: NDArray[np.int64]
    """Index of each of the batch's rows in the vec."""
    actions: NDArray[Any]
    """Flat actions."""
    masks: NDArray[np.bool_] | None
    """Allowed alternatives, if infos give them."""


class Explorer(Interaction):
    """A loop that steps a vec with actions that explore."""

    def step(
        self,
        policy: BasePolicy,
        choose: Callable[[BasePolicy, Tensor, Step, torch.Generator], Tensor],
        keep: Callable[[Step], None],
    ) -> None:
        """Receive a batch, choose actions for it, keep both, and send the actions.

        Args:
            policy: Policy that acts.
            choose: Function that returns flat actions. It is given the policy, observations on its device,
                the step without actions, and a generator.
            keep: Function that is given the step. The batch is valid inside the call only.
        """
        clock, seconds = time.perf_counter, self.seconds
        begun = clock()
        batch = self._recv()
        received = clock()
        rows = self._rows_of(batch)
        rows = np.arange(self.vec.num_rows) if isinstance(rows, slice) else rows
        step = Step(_without_restarts(batch), rows, np.zeros(0), self._masks_of(batch))
        obs = torch.from_numpy(batch.obs).to(policy.device)
        masks = None if step.masks is None else torch.from_numpy(step.masks).to(policy.device)
        self._check_masks(policy, obs, masks, batch)
        chosen = choose(policy, obs, step, self._random)
        env_actions = policy.to_env(chosen, obs, batch.env_ids)
        acted = clock()
        keep(step._replace(actions=chosen.cpu().numpy()))
        stored = clock()
        self._send(batch, env_actions)
        seconds["wait"] += received - begun
        seconds["act"] += acted - received
        seconds["store"] += stored - acted
        seconds["send"] += clock() - stored

    def hold(self) -> None:
        """Receive the batch under way and hold it, so that no env is being stepped."""
        begun = time.perf_counter()
        self._recv()
        self.seconds["wait"] += time.perf_counter() - begun


def _without_restarts(batch: Batch) -> Batch:
    """Mark rows whose worker process was replaced as reset: the outcome of their last action is not known."""
    restarted = batch.infos.get("_restarted")
    return batch if restarted is None else batch._replace(resets=batch.resets | restarted)


def copied(step: Step) -> Step:
    """Return a step whose batch stays valid."""
    return step._replace(batch=Batch(*deepcopy(tuple(step.batch._replace(infos={})))))
