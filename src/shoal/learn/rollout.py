"""The experience buffer: observations, actions and outcomes of rows, in columns of `horizon` steps.

Each row writes into a column of its own, so that its steps stay together and in order, in any order of
batches. When a column is full, its row continues in a free column. An update takes as many full columns as
there are rows, the first that were full, so that it never waits for the slowest env.

An entry, [step, column], is an observation, the action taken then, and its outcome. The entry of an env
that is being reset is not learnt from: `acts` is False there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal import _core
from shoal.batch import Batch
from shoal.learn.actions import Actions
from shoal.rows.layout import Layout

Index = Any  # indices of rows: an array, or a slice for all rows


@dataclass(frozen=True)
class Experience:
    """Full columns for one update. Arrays are [steps, columns, ...]; views, if all rows arrive together."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    acts: NDArray[np.bool_]
    """True for entries to learn from: the row acted, and the outcome of the action is complete."""
    carries: NDArray[np.bool_]
    """True for entries with a transition; False where an env was reset."""
    starts: Tensor
    """True where an episode begins."""
    last_values: NDArray[np.float32]
    """Value of the observation after each column."""
    action_masks: Tensor | None
    """Allowed alternatives, if infos give them."""
    states: Tensor | None
    """States of the LSTM before the first step of each column."""
    rows: NDArray[np.int64]
    """Row of each column."""
    transitions: int
    """Number of entries in which a row acted, with those that `without_unfinished` leaves out."""

    def advantages(
        self, gamma: float, lam: float, rewards: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Estimate the advantages of entries that act by GAE; those of the other entries are 0.

        Args:
            gamma: Discount.
            lam: Weight of long horizons, from 0 (one step) to 1 (the whole episode).
            rewards: Rewards to use instead of the stored ones, for example scaled ones.
        """
        found = np.empty_like(self.rewards)
        _core.gae(
            self.rewards if rewards is None else rewards,
            self.values.numpy(),
            self.last_values,
            self.terminations,
            self.truncations,
            self.acts,
            self.carries,
            gamma,
            lam,
            found,
        )
        return found

    def minibatches(
        self,
        advantages: Tensor,
        returns: Tensor,
        count: int,
        generator: torch.Generator,
        *,
        whole_columns: bool,
    ) -> Iterator[Minibatch]:
        """Yield all entries that act once, in random order.

        Args:
            advantages: Advantage of each entry.
            returns: Return of each entry.
            count: Number of minibatches.
            generator: Generator of the random order.
            whole_columns: Whether to shuffle columns, which an LSTM needs, instead of entries.
        """
        numbers = torch.stack([self.log_probs, advantages, returns, self.values], -1)
        parts: list[Tensor | None] = [self.obs, self.actions, numbers, self.action_masks]
        if whole_columns:
            parts += [self.states, torch.from_numpy(self.acts).float(), self.starts]
            axis, candidates = 1, torch.arange(self.obs.shape[1])
        else:
            parts = [None if part is None else part.flatten(0, 1) for part in parts]
            axis, candidates = 0, torch.from_numpy(np.flatnonzero(self.acts))
        order = candidates[torch.randperm(len(candidates), generator=generator)]
        for chosen in order.tensor_split(max(1, min(count, len(order)))):
            if not len(chosen):
                return  # no entry acts
            if whole_columns and not self.acts[:, chosen].any():
                continue
            picked: Any = [None if part is None else part.index_select(axis, chosen) for part in parts]
            yield Minibatch(*picked)


@dataclass(frozen=True)
class Minibatch:
    """Entries, [entries, ...], or with an LSTM whole columns, [steps, columns, ...]."""

    obs: Tensor
    actions: Tensor
    numbers: Tensor
    """Log-probability, advantage, return and value of each entry: [..., 4]."""
    masks: Tensor | None
    """Allowed alternatives, if infos give them."""
    states: Tensor | None = None
    """With an LSTM: the state before the first step of each column."""
    weights: Tensor | None = None
    """With an LSTM: 1 for entries that act, 0 for the others."""
    starts: Tensor | None = None
    """With an LSTM: True where an episode begins."""

    def to(self, device: torch.device) -> Minibatch:
        """Return the minibatch on a device."""
        moved: Any = [None if part is None else part.to(device) for part in vars(self).values()]
        return Minibatch(*moved)


class Rollout:
    """Buffer of columns: one that each row writes into, full ones, and free ones.

    Args:
        rows: Number of rows of the vec.
        horizon: Number of steps of a column.
        layout: Layout of the observations.
        actions: Form of the actions.
        state_width: Width of the LSTM, or 0.
        spare: Number of columns in addition to one for each row; 0 if every batch has all rows.
    """

    def __init__(
        self,
        rows: int,
        horizon: int,
        layout: Layout,
        actions: Actions,
        *,
        state_width: int = 0,
        spare: int = 0,
    ) -> None:
        self.rows, self.horizon, self._together = rows, horizon, spare == 0
        columns, shape = rows + spare, (horizon, rows + spare)
        self._obs = np.zeros((*shape, *layout.flat_shape), layout.flat_dtype)
        self._actions = torch.zeros((*shape, actions.width), dtype=actions.dtype)
        self._log_probs, self._values = torch.zeros(shape), torch.zeros(shape)
        self._rewards = np.zeros(shape, np.float32)
        self._terminations, self._truncations = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._acts, self._carries = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._starts = np.zeros(shape, np.bool_)
        self._last_values = np.zeros(columns, np.float32)
        self._masks: NDArray[np.bool_] | None = None  # allocated when the first one arrives
        self._mask_shape = (*shape, actions.num_logits)
        self._states = torch.zeros(2, columns, state_width) if state_width else None
        self._column, self._cursor = np.arange(rows), np.zeros(rows, np.int64)
        self._owner = np.arange(columns)
        self._free = list(range(rows, columns))
        self._full: list[int] = []

    @property
    def is_ready(self) -> bool:
        """Whether the rollout has enough full columns for an update."""
        return len(self._full) >= self.rows

    def _at(self, rows: Index, back: int = 0) -> Any:
        """Return the index of the entries of rows, `back` steps before the next one."""
        if self._together:
            return int(self._cursor[0]) - back
        return self._cursor[rows] - back, self._column[rows]

    def finish(self, batch: Batch, rows: Index) -> NDArray[np.int64]:
        """Store the outcome of the last actions; return the rows whose columns lack only a last value."""
        # Before its first action a row has no entry to finish; the values written here are overwritten later.
        at, carries = self._at(rows, 1), ~batch.resets
        # A reward without a transition belongs to no action.
        self._rewards[at] = np.where(carries, batch.rewards, 0)
        self._terminations[at], self._truncations[at] = batch.terminations, batch.truncations
        self._carries[at] = carries
        if self._together:
            return np.arange(self.rows) if self._cursor[0] == self.horizon else np.zeros(0, np.int64)
        full: NDArray[np.int64] = rows[self._cursor[rows] == self.horizon]
        return full

    def close(self, rows: NDArray[np.int64], last_values: NDArray[np.float32]) -> None:
        """Mark the columns of `rows` as full, store their last values, and give each row a free column."""
        columns = self._column[rows]
        self._last_values[columns] = last_values
        self._full.extend(columns.tolist())
        self._cursor[rows] = 0
        if not self._together:
            self._column[rows] = [self._free.pop() for _ in range(len(rows))]
            self._owner[self._column[rows]] = rows

    def store(
        self,
        batch: Batch,
        rows: Index,
        actions: Tensor,
        log_probs: Tensor,
        values: Tensor,
        state: Tensor | None,
        masks: NDArray[np.bool_] | None,
    ) -> None:
        """Store observations and actions of rows; `state` is the LSTM's state before this step."""
        at = self._at(rows)
        self._obs[at] = batch.obs  # a copy, because the next step overwrites the rows of the arena
        self._actions[at], self._log_probs[at] = actions.cpu(), log_probs.cpu()
        self._values[at] = values.cpu()
        self._acts[at], self._starts[at] = batch.mask, batch.resets
        if self._masks is None and masks is not None:
            self._masks = np.ones(self._mask_shape, np.bool_)
        if self._masks is not None:
            self._masks[at] = True if masks is None else masks
        if self._states is not None and state is not None:
            fresh = self._cursor[rows] == 0
            if fresh.any():
                self._states[:, torch.from_numpy(self._column[rows][fresh])] = state[
                    :, torch.from_numpy(fresh)
                ].cpu()
        self._cursor[rows] += 1

    def take(self) -> Experience:
        """Take the columns for an update; `release` frees them again."""
        self._taken, self._full = self._full[: self.rows], self._full[self.rows :]
        chosen: Any = slice(None) if self._together else np.array(self._taken)

        def pick(array: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(array[:, chosen])

        ends = pick(self._terminations | self._truncations)
        acts, carries = without_unfinished(pick(self._acts), pick(self._carries), ends)
        return Experience(
            obs=torch.from_numpy(pick(self._obs)),
            actions=self._actions[:, chosen],
            log_probs=self._log_probs[:, chosen],
            values=self._values[:, chosen],
            rewards=pick(self._rewards),
            terminations=pick(self._terminations),
            truncations=pick(self._truncations),
            acts=acts,
            carries=carries,
            starts=torch.from_numpy(pick(self._starts)),
            last_values=self._last_values[chosen],
            action_masks=None if self._masks is None else torch.from_numpy(pick(self._masks)),
            states=None if self._states is None else self._states[:, chosen],
            rows=self._owner[chosen],
            transitions=int(pick(self._acts).sum()),
        )

    def release(self) -> None:
        """Free the columns last taken."""
        if not self._together:
            self._free.extend(reversed(self._taken))
        self._taken = []

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; an empty dict if all columns are empty."""
        if not self._full and not self._cursor.any():
            return {}
        return {name: _copied(value) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        if not set(state) <= set(vars(self)) | {"_taken"}:
            raise ValueError(f"expected the state of a rollout, got {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, _copied(value))


def without_unfinished(
    acts: NDArray[np.bool_], carries: NDArray[np.bool_], ends: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Exclude the last action of each column that ends while its row waits for other agents.

    Rewards of a waiting row belong to its last action, and some of them arrive in the next column. Such an
    action is not learnt from; its value bootstraps the action before it. Returns new `acts` and `carries`.
    """
    waiting = np.flatnonzero(~acts[-1] & carries[-1])
    if not len(waiting):
        return acts, carries
    acts, carries = acts.copy(), carries.copy()
    known = acts | ends | ~carries  # where the search backwards ends
    steps = len(acts) - 1 - known[::-1, waiting].argmax(0)
    open_ = acts[steps, waiting] & ~ends[steps, waiting]
    steps, columns = steps[open_], waiting[open_]
    acts[steps, columns] = carries[steps, columns] = False
    return acts, carries


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return value.copy() if isinstance(value, (np.ndarray, list)) else value


def discounted_sums(experience: Experience, gamma: float, sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the discounted sum of past rewards at each entry.

    Args:
        experience: Entries.
        gamma: Discount.
        sums: Sum of each row before its columns; updated in place to the sum after them.
    """
    found = np.empty_like(experience.rewards)
    left = np.arange(len(experience.rows))
    while len(left):  # a row may have several columns; take one of each row at a time, the oldest first
        rows, first = np.unique(experience.rows[left], return_index=True)
        columns = left[first]
        now = sums[rows]
        for step in range(len(found)):
            now = now * np.float32(gamma) + experience.rewards[step, columns]
            found[step, columns] = now
            now[experience.terminations[step, columns] | experience.truncations[step, columns]] = 0
        sums[rows] = now
        left = np.delete(left, first)
    return found
