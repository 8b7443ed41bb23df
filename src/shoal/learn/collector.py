"""The collector: recv, act, store and send until a rollout has enough full columns."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from shoal.batch import Batch
from shoal.errors import ArgumentError, SnapshotError
from shoal.learn.actions import MASK, masks_from_infos
from shoal.learn.episodes import Episodes
from shoal.learn.policy import Policy
from shoal.learn.rollout import Rollout
from shoal.vector.vec import VectorEnv

HOPS = ("wait", "act", "store", "send")


class Collector:
    """A loop that steps a vec with a policy. Between rollouts it holds a received batch without actions.

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
        if vec.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ArgumentError(
                f"vec: expected one with autoreset_mode=NEXT_STEP, got {vec.autoreset_mode}: the "
                "learner reads last observations from the batch, not from infos"
            )
        self.vec, self._seed = vec, seed
        self._actions, self._masks_in_obs = policy.actions, policy.has_masks
        self._random = torch.Generator(policy.device).manual_seed(seed)
        self._state = policy.initial_state(vec.num_rows)
        self._batch: Batch | None = None
        agents = 1 if vec.rows_as_envs else vec.agents_per_env
        batch_rows = vec.batch_size * agents
        self._whole = batch_rows == vec.num_rows  # whether every batch has all rows, in order
        self._arguments: dict[str, Any] = {
            "rows": vec.num_rows,
            "horizon": horizon,
            "layout": vec.observation_layout,
            "actions": policy.actions,
            "state_width": 0 if policy.lstm is None else policy.lstm.width,
            # An update needs as many full columns as rows; by then, those of one more batch may be full.
            "spare": 0 if self._whole else vec.num_rows + batch_rows,
        }
        self.steps = 0
        self.episodes = Episodes(vec.num_rows)
        self.seconds = dict.fromkeys(HOPS, 0.0)

    def begin(self, rollouts: int) -> list[Rollout]:
        """Reset all envs; return empty rollouts, as many as `rollouts`."""
        # Spread, because env i of a vec is reset with seed + i: runs with the seeds 1 and 2 would share most
        # of their episodes. The number of steps is part of the seed, so that fresh episodes after a resume
        # differ from earlier ones.
        spread = np.random.SeedSequence([self._seed, self.steps]).generate_state(1)[0]
        self.vec.async_reset(seed=int(spread) >> 2)  # some envs take only 31 bits, and there are many envs
        self._batch = self.vec.recv()
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
            decision = policy.act(
                torch.from_numpy(batch.obs).to(policy.device),
                state,
                batch.env_ids,
                mask=None if masks is None else torch.from_numpy(masks).to(policy.device),
                generator=self._random,
            )
            if decision.state is not None and self._state is not None:
                self._state[:, rows] = decision.state
            acted = clock()
            rollout.store(batch, rows, decision.actions, decision.log_probs, decision.values, state, masks)
            self.steps += int(batch.mask.sum())
            stored = clock()
            self._batch = None
            self.vec.send(decision.env_actions)
            seconds["wait"] += received - begun
            seconds["act"] += acted - received
            seconds["store"] += stored - acted
            seconds["send"] += clock() - stored

    def _recv(self) -> Batch:
        """Return the batch left over from the last rollout, or else receive one."""
        if self._batch is None:
            self._batch = self.vec.recv()
            self.episodes.add(self._batch, self._rows_of(self._batch))
        return self._batch

    def _rows_of(self, batch: Batch) -> Any:
        """Return the indices of the batch's rows in the vec; a slice if they are all rows."""
        if self._whole:
            return slice(None)
        return batch.env_ids * self.vec.agents_per_env + batch.agent_ids

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

    def _masks_of(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Return the action masks in infos; None if there are none, or if observations have their own."""
        if self._masks_in_obs:
            return None
        return masks_from_infos(batch.infos, len(batch.mask), self._actions.num_logits)

    # -- saving and resuming -----------------------------------------------------------------------------

    def state_dict(self, rollouts: list[Rollout]) -> dict[str, Any]:
        """Return the state of collector and rollouts, without the envs: tensors, arrays and plain values."""
        return {
            "rollouts": [rollout.state_dict() for rollout in rollouts],
            "random": self._random.get_state(),
            "state": None if self._state is None else self._state.clone(),
            "batch": None if self._batch is None else deepcopy(tuple(self._without_infos(self._batch))),
            "steps": self.steps,
            "episodes": self.episodes.state_dict(),
        }

    def snapshot(self) -> dict[str, Any] | None:
        """Return the snapshot of the envs; None if they cannot be pickled."""
        try:
            return self.vec.snapshot()
        except SnapshotError:
            return None

    def load_state_dict(self, state: dict[str, Any], envs: dict[str, Any] | None) -> list[Rollout]:
        """Restore a saved state; return the rollouts, or an empty list if the envs could not be restored.

        Args:
            state: What `state_dict` returned.
            envs: What `snapshot` returned.
        """
        self._random.set_state(state["random"])
        self.steps = state["steps"]
        self.episodes.load_state_dict(state["episodes"])
        try:
            if envs is not None:
                self.vec.restore(envs)
        except SnapshotError:  # the vec was made with other arguments
            envs = None
        except Exception as error:  # of an env
            raise SnapshotError(f"{type(error).__name__}: {error}") from error
        if envs is None:
            self.episodes.abandon()
            return []
        self._state = None if state["state"] is None else state["state"].clone().to(self._random.device)
        self._batch = None if state["batch"] is None else Batch(*state["batch"])
        rollouts = [Rollout(**self._arguments) for _ in state["rollouts"]]
        for rollout, saved in zip(rollouts, state["rollouts"], strict=True):
            rollout.load_state_dict(saved)
        return rollouts

    def _without_infos(self, batch: Batch) -> Batch:
        """Drop all infos except action masks: the others are not read, and may be impossible to save."""
        masks = self._masks_of(batch)
        return batch._replace(
            infos={} if masks is None else {MASK: masks, f"_{MASK}": np.ones(len(masks), np.bool_)}
        )
