"""The interaction of a learner with its vec: seeds, batches under way, counts of steps and episodes."""

from __future__ import annotations

from collections.abc import Callable
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
from shoal.learn.base_policy import BasePolicy
from shoal.learn.episodes import Episodes
from shoal.vector.vec import VectorEnv

HOPS = ("wait", "act", "store", "send")


class Interaction:
    """A vec that a policy acts in. Between two updates it holds a received batch without actions.

    Args:
        vec: Vec to step.
        policy: Policy that will act, or one with the same action space and device.
        seed: Seed of envs and actions.

    Attributes:
        steps: Number of transitions so far.
        episodes: Statistics of the finished episodes.
        seconds: Seconds spent in each hop; a learner sets them to 0 after each report.
        on_batch: Function to call with each batch that is received; see `Learner.watch`.
    """

    on_batch: Callable[[Batch], None] | None = None

    def __init__(self, vec: VectorEnv, policy: BasePolicy, seed: int) -> None:
        if vec.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ArgumentError(
                f"vec: expected one with autoreset_mode=NEXT_STEP, got {vec.autoreset_mode}: the "
                "learner reads last observations from the batch, not from infos"
            )
        self.vec, self._seed = vec, seed
        self._actions, self._masks_in_obs = policy.actions, policy.has_masks
        self._random = torch.Generator(policy.device).manual_seed(seed)
        self._batch: Batch | None = None
        agents = 1 if vec.rows_as_envs else vec.agents_per_env
        self._batch_rows = vec.batch_size * agents
        self._whole = self._batch_rows == vec.num_rows  # whether every batch has all rows, in order
        self.steps = 0
        self.episodes = Episodes(vec.num_rows)
        self.seconds = dict.fromkeys(HOPS, 0.0)

    def reset(self) -> None:
        """Reset all envs, and receive their first batch."""
        # Spread, because env i of a vec is reset with seed + i: runs with the seeds 1 and 2 would share most
        # of their episodes. The number of steps is part of the seed, so that fresh episodes after a resume
        # differ from earlier ones.
        spread = np.random.SeedSequence([self._seed, self.steps]).generate_state(1)[0]
        self.vec.async_reset(seed=int(spread) >> 2)  # some envs take only 31 bits, and there are many envs
        self._batch = self.vec.recv()

    def _recv(self) -> Batch:
        """Return the batch that is left over, or else receive one."""
        if self._batch is None:
            self._batch = self.vec.recv()
            self.episodes.add(self._batch, self._rows_of(self._batch))
            if self.on_batch is not None:
                self.on_batch(self._batch)
        return self._batch

    def _send(self, batch: Batch, env_actions: NDArray[Any]) -> None:
        """Send the actions for a batch, and count its transitions."""
        self.steps += int(batch.mask.sum())
        self._batch = None
        self.vec.send(env_actions)

    def _rows_of(self, batch: Batch) -> Any:
        """Return the indices of the batch's rows in the vec; a slice if they are all rows."""
        if self._whole:
            return slice(None)
        return batch.env_ids * self.vec.agents_per_env + batch.agent_ids

    def _masks_of(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Return the action masks in infos; None if there are none, or if observations have their own."""
        if self._masks_in_obs:
            return None
        return masks_from_infos(batch.infos, len(batch.mask), self._actions.num_logits)

    def _check_masks(self, policy: BasePolicy, obs: Tensor, masks: Tensor | None, batch: Batch) -> None:
        """Raise an `ArgumentError` if an action mask forbids all that a row could do."""
        mask = policy.mask_from_obs(obs) if masks is None else masks
        if mask is not None:
            acts = batch.mask & ~batch.terminations & ~batch.truncations
            self._actions.check_allowed(mask, acts, batch.env_ids)

    # -- saving and resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the envs: tensors, arrays and plain values."""
        return {
            "random": self._random.get_state(),
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

    def load_state_dict(self, state: dict[str, Any], envs: dict[str, Any] | None) -> bool:
        """Restore a saved state; return whether the envs were restored too.

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
            return False
        self._batch = None if state["batch"] is None else Batch(*state["batch"])
        return True

    def _without_infos(self, batch: Batch) -> Batch:
        """Drop all infos except action masks: the others are not read, and may be impossible to save."""
        masks = self._masks_of(batch)
        return batch._replace(
            infos={} if masks is None else {MASK: masks, f"_{MASK}": np.ones(len(masks), np.bool_)}
        )
