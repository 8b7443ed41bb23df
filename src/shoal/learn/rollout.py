"""The experience buffer: what rows did and saw, in columns of `horizon` steps.

Rows arrive in whatever order a vec hands them out; each writes down its own column, so that its steps stay
whole and in order. A column that is full waits for the learner and its row goes on in a fresh one. The
learner takes as many columns as there are rows, whichever are full first: it never waits for the slowest.

An entry, [step, column], is an observation, the action chosen then, and what came of it. An env that is being
reset has an entry that counts for nothing: `acts` is False there.
"""

from __future__ import annotations

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

Index = Any  # of rows: an array of their numbers, or a slice for all


@dataclass(frozen=True)
class Experience:
    """Full columns, for one update. Arrays are [steps, columns], views where nothing had to be gathered."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    acts: NDArray[np.bool_]
    carries: NDArray[np.bool_]
    starts: Tensor
    last_values: NDArray[np.float32]
    action_masks: Tensor | None
    states: Tensor | None
    """Of an LSTM, before the first steps."""
    rows: NDArray[np.int64]
    """Whose columns they are."""
    transitions: int
    """Entries that act, those that are left out because their rows wait for the rest included."""

    def advantages(
        self, gamma: float, lam: float, rewards: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Of the entries that act, by generalised advantage estimation; 0 elsewhere.

        Args:
            gamma: Discount.
            lam: Of the mean over horizons.
            rewards: Instead of its own: scaled ones, say.
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


class Rollout:
    """Columns in the making, and those that are full.

    Args:
        rows: Rows of the vec.
        horizon: Steps of a column.
        layout: Of the observations.
        actions: What an action consists of.
        state_width: Of an LSTM, or 0.
        spare: Columns beside one for each row. None are needed where all rows arrive together.
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
        self._masks: NDArray[np.bool_] | None = None  # made when the first one comes
        self._mask_shape = (*shape, actions.num_logits)
        self._states = torch.zeros(2, columns, state_width) if state_width else None
        self._column, self._cursor = np.arange(rows), np.zeros(rows, np.int64)
        self._owner = np.arange(columns)
        self._free = list(range(rows, columns))
        self._full: list[int] = []

    @property
    def is_ready(self) -> bool:
        """Whether there are enough full columns for an update."""
        return len(self._full) >= self.rows

    def _at(self, rows: Index, back: int = 0) -> Any:
        """Where rows write, or wrote last."""
        if self._together:
            return int(self._cursor[0]) - back
        return self._cursor[rows] - back, self._column[rows]

    def finish(self, batch: Batch, rows: Index) -> NDArray[np.int64]:
        """Write down what came of the last actions; returns rows whose columns lack only a last value."""
        # Before its first action a row has nothing to finish: what is written then is written over later.
        at, carries = self._at(rows, 1), ~batch.resets
        # An agent that has not acted yet may be rewarded: no action is to blame for it.
        self._rewards[at] = np.where(carries, batch.rewards, 0)
        self._terminations[at], self._truncations[at] = batch.terminations, batch.truncations
        self._carries[at] = carries
        if self._together:
            return np.arange(self.rows) if self._cursor[0] == self.horizon else np.zeros(0, np.int64)
        full: NDArray[np.int64] = rows[self._cursor[rows] == self.horizon]
        return full

    def close(self, rows: NDArray[np.int64], last_values: NDArray[np.float32]) -> None:
        """Columns of these rows are full, and what they see now is worth this much; they begin fresh ones."""
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
        """Write down what rows see and do now; `state` is what an LSTM had before it saw that."""
        at = self._at(rows)
        self._obs[at] = batch.obs  # a copy: the arena's rows are written again by the next step
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
        """The columns for an update. They are free again after `release`."""
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
        """The columns last taken may be written again."""
        if not self._together:
            self._free.extend(reversed(self._taken))
        self._taken = []

    def state_dict(self) -> dict[str, Any]:
        """All of it, to go on from; nothing if all columns are empty."""
        if not self._full and not self._cursor.any():
            return {}
        return {name: _copied(value) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, _copied(value))


def without_unfinished(
    acts: NDArray[np.bool_], carries: NDArray[np.bool_], ends: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Leave out the last actions of columns that end while their rows wait.

    What a row is paid while it waits belongs to its last action, and some of that comes in the next column.
    Such an action is not learnt from; its value is what the one before it is bootstrapped with.
    """
    waiting = np.flatnonzero(~acts[-1] & carries[-1])
    if not len(waiting):
        return acts, carries
    acts, carries = acts.copy(), carries.copy()
    known = acts | ends | ~carries  # where one need not look farther back
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
    """The discounted sum of rewards so far at each entry; `sums` goes on from column to column of a row."""
    found = np.empty_like(experience.rewards)
    left = np.arange(len(experience.rows))
    while len(left):  # a row may have several columns, in order of time: one at a time
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
