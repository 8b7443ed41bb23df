"""Collecting experience: recv, act, store, send, until a rollout has enough full columns."""

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
from shoal.learn.actions import MASK, masks_in
from shoal.learn.episodes import Episodes
from shoal.learn.finite import check_actions
from shoal.learn.policy import Policy
from shoal.learn.rollout import Rollout
from shoal.vector.vec import VectorEnv

HOPS = ("wait", "act", "store", "send")


class Collector:
    """Steps a vec with a policy. Between two rollouts it holds a batch that was received and not acted on.

    Args:
        vec: To step.
        policy: That will act, or one like it.
        horizon: Steps of a column.
        seed: Of envs and actions.

    Attributes:
        steps: Transitions so far.
        episodes: Those that have ended.
        seconds: Spent in each hop since somebody emptied it.
    """

    def __init__(self, vec: VectorEnv, policy: Policy, horizon: int, seed: int) -> None:
        if vec.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ArgumentError(
                f"vec: expected one with autoreset_mode=NEXT_STEP, got {vec.autoreset_mode}: last "
                "observations are looked for in their place"
            )
        self.vec, self._seed = vec, seed
        self._actions, self._masks_in_obs = policy.actions, policy.has_masks
        self._random = torch.Generator(policy.device).manual_seed(seed)
        self._state = policy.initial_state(vec.num_rows)
        self._batch: Batch | None = None
        agents = 1 if vec.rows_as_envs else vec.agents_per_env
        batch_rows = vec.batch_size * agents
        self._whole = batch_rows == vec.num_rows  # every batch has all rows, in order
        self._arguments: dict[str, Any] = {
            "rows": vec.num_rows,
            "horizon": horizon,
            "layout": vec.observation_layout,
            "actions": policy.actions,
            "state_width": 0 if policy.lstm is None else policy.lstm.width,
            # Full columns wait until there are as many as rows; those of one more batch may be full by then.
            "spare": 0 if self._whole else vec.num_rows + batch_rows,
        }
        self.steps = 0
        self.episodes = Episodes(vec.num_rows)
        self.seconds = dict.fromkeys(HOPS, 0.0)

    def begin(self, rollouts: int) -> list[Rollout]:
        """Reset all envs; returns as many rollouts to write into."""
        # After a resume without the envs' state, not with the seeds that were played already.
        self.vec.async_reset(seed=self._seed + self.steps)
        self._batch = self.vec.recv()
        return [Rollout(**self._arguments) for _ in range(rollouts)]

    @torch.no_grad()
    def collect(self, rollout: Rollout, policy: Policy) -> None:
        """Step envs until enough columns are full."""
        clock, seconds = time.perf_counter, self.seconds
        while True:
            begun = clock()
            if self._batch is None:
                self._batch = self.vec.recv()
                self.episodes.add(self._batch, self._rows_of(self._batch))
            batch = self._batch
            rows = self._rows_of(batch)
            received = clock()
            full = rollout.finish(batch, rows)
            if len(full):
                rollout.close(full, self._values_of(policy, batch, rows, full))
                if rollout.is_ready:
                    return
            obs = torch.from_numpy(batch.obs).to(policy.device)
            before = self._state_of(batch, rows)
            outputs, values, after = policy.step(obs, before)
            masks = self._masks_of(batch)
            allowed = policy.mask_in(obs) if masks is None else torch.from_numpy(masks).to(policy.device)
            actions, log_probs = policy.actions.sample(outputs, policy.log_std, allowed, self._random)
            if after is not None and self._state is not None:
                self._state[:, rows] = after
            chosen = policy.actions.to_env(actions)
            if policy.actions.num_quantities:
                check_actions(chosen, obs, policy.layout, batch.env_ids)
            acted = clock()
            rollout.store(batch, rows, actions, log_probs, values, before, masks)
            self.steps += int(batch.mask.sum())
            stored = clock()
            self._batch = None
            self.vec.send(chosen)
            seconds["wait"] += received - begun
            seconds["act"] += acted - received
            seconds["store"] += stored - acted
            seconds["send"] += clock() - stored

    def _rows_of(self, batch: Batch) -> Any:
        if self._whole:
            return slice(None)
        return batch.env_ids * self.vec.agents_per_env + batch.agent_ids

    def _state_of(self, batch: Batch, rows: Any) -> Tensor | None:
        """Of an LSTM, for these rows; zeros where an episode begins."""
        if self._state is None:
            return None
        begins = torch.from_numpy(batch.resets).to(self._state.device)
        return self._state[:, rows].masked_fill(begins[None, :, None], 0)

    def _values_of(
        self, policy: Policy, batch: Batch, rows: Any, wanted: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """What the observations of some rows of a batch are worth."""
        obs, state = torch.from_numpy(batch.obs), self._state_of(batch, rows)
        if not self._whole:
            places = torch.from_numpy(np.flatnonzero(np.isin(rows, wanted)))
            obs, state = obs[places], None if state is None else state[:, places]
        values: NDArray[np.float32] = policy.step(obs.to(policy.device), state)[1].cpu().numpy()
        return values

    def _masks_of(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Actions that are allowed, if infos say so and observations do not."""
        if self._masks_in_obs:
            return None
        return masks_in(batch.infos, len(batch.mask), self._actions.num_logits)

    # -- to go on later ----------------------------------------------------------------------------------

    def state_dict(self, rollouts: list[Rollout]) -> dict[str, Any]:
        """All of it, rollouts included. Under ``"envs"`` is a snapshot, or None if they cannot be pickled."""
        try:
            envs = self.vec.snapshot() if rollouts else None
        except SnapshotError:
            envs = None
        return {
            "envs": envs,
            "rollouts": [rollout.state_dict() for rollout in rollouts],
            "random": self._random.get_state(),
            "state": None if self._state is None else self._state.clone(),
            "batch": None if self._batch is None else deepcopy(tuple(_without_infos(self._batch))),
            "steps": self.steps,
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[Rollout]:
        """Go on from there; returns the rollouts, or none if the envs were not saved and must begin anew."""
        self._random.set_state(state["random"])
        self.steps = state["steps"]
        self.episodes.load_state_dict(state["episodes"])
        try:
            if state["envs"] is not None:
                self.vec.restore(state["envs"])
        except SnapshotError:  # of a vec that was made otherwise
            state = {**state, "envs": None}
        if state["envs"] is None:
            self.episodes.abandon()
            return []
        self._state = None if state["state"] is None else state["state"].clone().to(self._random.device)
        self._batch = None if state["batch"] is None else Batch(*state["batch"])
        rollouts = [Rollout(**self._arguments) for _ in state["rollouts"]]
        for rollout, saved in zip(rollouts, state["rollouts"], strict=True):
            rollout.load_state_dict(saved)
        return rollouts


def _without_infos(batch: Batch) -> Batch:
    """But for masks: nobody reads the others, and they may be what cannot be copied."""
    kept = {name: value for name, value in batch.infos.items() if name in (MASK, f"_{MASK}")}
    return batch._replace(infos=kept)
