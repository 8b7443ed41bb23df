"""The collector: recv, act, store and send until a rollout has enough full columns."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.batch import Batch
from shoal.learn.interaction import Interaction
from shoal.learn.policy import Policy
from shoal.learn.rollout import Rollout
from shoal.vector.vec import VectorEnv


class Collector(Interaction):
    """A loop that steps a vec with a policy and fills rollouts.

    Args:
        vec: Vec to step.
        policy: Policy that will act, or one with the same action space, device and LSTM.
        horizon: Number of steps of a column.
        seed: Seed of envs and actions.

    Attributes:
        steps: Number of transitions so far.
        episodes: Statistics of the finished episodes.
        seconds: Seconds spent in each hop; a learner sets them to 0 after each update.
    """

    def __init__(self, vec: VectorEnv, policy: Policy, horizon: int, seed: int) -> None:
        super().__init__(vec, policy, seed)
        self._state = policy.initial_state(vec.num_rows)
        self._arguments: dict[str, Any] = {
            "rows": vec.num_rows,
            "horizon": horizon,
            "layout": vec.observation_layout,
            "actions": policy.actions,
            "state_width": 0 if policy.lstm is None else policy.lstm.width,
            # An update needs as many full columns as rows; by then, those of one more batch may be full.
            "spare": 0 if self._whole else vec.num_rows + self._batch_rows,
        }

    def begin(self, rollouts: int) -> list[Rollout]:
        """Reset all envs; return empty rollouts, as many as `rollouts`."""
        self.reset()
        return [Rollout(**self._arguments) for _ in range(rollouts)]

    @torch.no_grad()
    def collect(self, rollout: Rollout, policy: Policy) -> None:
        """Step the envs until the rollout has enough full columns for an update."""
        clock, seconds = time.perf_counter, self.seconds
        while True:
            begun = clock()
            batch = self._recv()
            rows = self._rows_of(batch)
            received = clock()
            full = rollout.finish(batch, rows)
            if len(full):
                rollout.close(full, self._values_of(policy, batch, rows, full))
                if rollout.is_ready:
                    return
            state, masks = self._state_of(batch, rows), self._masks_of(batch)
            obs = torch.from_numpy(batch.obs).to(policy.device)
            mask = None if masks is None else torch.from_numpy(masks).to(policy.device)
            self._check_masks(policy, obs, mask, batch)
            decision = policy.act(
                obs,
                state,
                batch.env_ids,
                mask=mask,
                generator=self._random,
            )
            if decision.state is not None and self._state is not None:
                self._state[:, rows] = decision.state
            acted = clock()
            rollout.store(batch, rows, decision.actions, decision.log_probs, decision.values, state, masks)
            stored = clock()
            self._send(batch, decision.env_actions)
            seconds["wait"] += received - begun
            seconds["act"] += acted - received
            seconds["store"] += stored - acted
            seconds["send"] += clock() - stored

    def _state_of(self, batch: Batch, rows: Any) -> Tensor | None:
        """Return the LSTM's state of these rows, with zeros where an episode begins."""
        if self._state is None:
            return None
        begins = torch.from_numpy(batch.resets).to(self._state.device)
        return self._state[:, rows].masked_fill(begins[None, :, None], 0)

    def _values_of(
        self, policy: Policy, batch: Batch, rows: Any, wanted: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Predict the values of the rows `wanted`, which are some of the batch's rows."""
        obs, state = torch.from_numpy(batch.obs), self._state_of(batch, rows)
        if not self._whole:
            places = torch.from_numpy(np.flatnonzero(np.isin(rows, wanted)))
            obs, state = obs[places], None if state is None else state[:, places]
        values: NDArray[np.float32] = policy.step(obs.to(policy.device), state)[1].cpu().numpy()
        return values

    # -- saving and resuming -----------------------------------------------------------------------------

    def state_of(self, rollouts: list[Rollout]) -> dict[str, Any]:
        """Return the state of collector and rollouts, without the envs: tensors, arrays and plain values."""
        return {
            **self.state_dict(),
            "rollouts": [rollout.state_dict() for rollout in rollouts],
            "state": None if self._state is None else self._state.clone(),
        }

    def restore(self, state: dict[str, Any], envs: dict[str, Any] | None) -> list[Rollout]:
        """Restore a saved state; return the rollouts, or an empty list if the envs could not be restored.

        Args:
            state: What `state_of` returned.
            envs: What `snapshot` returned.
        """
        if not self.load_state_dict(state, envs):
            return []
        self._state = None if state["state"] is None else state["state"].clone().to(self._random.device)
        rollouts = [Rollout(**self._arguments) for _ in state["rollouts"]]
        for rollout, saved in zip(rollouts, state["rollouts"], strict=True):
            rollout.load_state_dict(saved)
        return rollouts
