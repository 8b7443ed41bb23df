"""The replay: a ring of observations, actions and outcomes, from which transitions are sampled.

    recv -> Batch -> add:  outcome of the last action of each row, then a place for each row that acts
                           -> sample: places -> n steps ahead -> observations, actions, returns

A place holds an observation, the action taken then, its reward, and the place of the row's next observation.
So an observation is stored once, in any order of arrival. Where an episode is cut off, its last observation
has a place of its own without an action; the observation after a reset never follows another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.batch import Batch
from shoal.errors import ArgumentError, Diverged, OutOfResources
from shoal.learn.actions import Actions
from shoal.learn.encoder import find_not_finite
from shoal.learn.observation_store import (
    SLACK,
    Frames,
    ObservationStore,
    WholeRows,
    check_fits,
    joined,
    put_joined,
)
from shoal.learn.priorities import Priorities
from shoal.limits import free_memory
from shoal.rows.layout import Layout

UNKNOWN, TERMINAL = -1, -2  # instead of a next place: the outcome is not known; the episode ended by itself
SMALLEST_ERROR = 1e-6  # added to each error, so that every transition keeps a chance


class Transitions(NamedTuple):
    """Sampled transitions, [entries, ...]."""

    obs: Tensor
    actions: Tensor
    """Flat actions, [entries, width]; see `Actions`."""
    returns: Tensor
    """Sum of the discounted rewards of `n_step` steps, or of fewer if the episode ends before."""
    discounts: Tensor
    """Factor of the value of `next_obs`: gamma to the number of steps; 0 if the episode ended by itself."""
    next_obs: Tensor
    """Observation after these steps; any observation where the discount is 0."""
    masks: Tensor | None
    """Allowed alternatives, if infos give them."""
    next_masks: Tensor | None
    """Allowed alternatives in `next_obs`."""
    weights: Tensor | None
    """With priorities: weight of each entry in the loss, at most 1."""
    places: NDArray[np.int64]
    """Place of each entry, for `Replay.set_errors`."""

    def to(self, device: torch.device) -> Transitions:
        """Return the transitions on a device."""
        moved: Any = [part.to(device) if isinstance(part, Tensor) else part for part in self]
        return Transitions(*moved)

    def split(self, size: int) -> Iterator[Transitions]:
        """Yield batches of `size` entries."""
        for first in range(0, len(self.places), size):
            part: Any = [None if each is None else each[first : first + size] for each in self]
            yield Transitions(*part)


class Replay:
    """Ring of transitions of all rows of a vec.

    Args:
        capacity: Number of places.
        rows: Number of rows of the vec.
        layout: Layout of the observations.
        actions: Form of the actions.
        seed: Seed of the sampling.
        frame_stack: Number of frames that an observation is a stack of, each of which is stored once; 0 to
            store observations whole.
        prioritized: Whether to sample transitions in proportion to their priority instead of uniformly.

    Attributes:
        nbytes: Number of bytes when the replay is full.
        generation: Number of times that the replay was cleared or loaded.
        total: Number of places taken since it was last cleared.

    Example:
        >>> import numpy as np, shoal
        >>> from shoal.learn import Actions, Replay
        >>> with shoal.make("shoal/CartPole-v1", num_envs=4) as vec:
        ...     actions = Actions(vec.single_action_space)
        ...     replay = Replay(1000, vec.num_rows, vec.observation_layout, actions)
        ...     vec.async_reset(seed=0)
        ...     for _ in range(10):
        ...         batch = vec.recv()
        ...         chosen = np.random.default_rng(0).integers(0, 2, (4, 1))
        ...         replay.add(batch, chosen)
        ...         vec.send(chosen[:, 0])
        >>> len(replay), tuple(replay.sample(32, gamma=0.99).obs.shape)
        (36, (32, 4))
    """

    def __init__(
        self,
        capacity: int,
        rows: int,
        layout: Layout,
        actions: Actions,
        *,
        seed: int = 0,
        frame_stack: int = 0,
        prioritized: bool = False,
    ) -> None:
        if capacity < 2 * rows:
            raise ArgumentError(
                f"capacity: expected at least twice the number of rows, {2 * rows}, got {capacity}"
            )
        self.capacity, self._layout, self._all_rows = capacity, layout, np.arange(rows)
        self._observations: ObservationStore = (
            Frames(capacity, rows, layout, frame_stack) if frame_stack else WholeRows(capacity, layout)
        )
        kind = np.float32 if actions.num_continuous else np.int32
        self._actions = np.empty((capacity, actions.width), kind)
        self._rewards, self._next = np.empty(capacity, np.float32), np.full(capacity, UNKNOWN, np.int32)
        # What masks in infos forbid; made when the first one arrives.
        self._forbidden: NDArray[np.bool_] | None = None
        self._mask_width = actions.num_logits
        self._sizes = None if actions.num_continuous else np.array(actions.sizes)
        self._priorities = Priorities(capacity) if prioritized else None
        self._largest = 1.0  # of all priorities so far: that of new transitions
        self._open = np.full(rows, -1)  # the serial number of each row's last action without an outcome
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._complete = self.total = self.generation = 0
        self.nbytes = self._observations.nbytes + sum(
            each.nbytes for each in (self._actions, self._rewards, self._next)
        )
        if prioritized:
            self.nbytes += 8 * capacity

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self._complete

    def __repr__(self) -> str:
        """Return the number of transitions and the size when full."""
        size = f"{self.nbytes / 1e6:,.1f} MB" if self.nbytes < 1e9 else f"{self.nbytes / 1e9:.1f} GB"
        return f"{self.capacity:,} transitions, {size} when full, {len(self):,} so far"

    # -- adding ------------------------------------------------------------------------------------------

    def add(
        self,
        batch: Batch,
        actions: NDArray[Any],
        *,
        rows: NDArray[np.int64] | None = None,
        masks: NDArray[np.bool_] | None = None,
    ) -> None:
        """Store the outcomes that a batch brings, and the actions for its rows.

        Args:
            batch: Batch received.
            actions: Flat actions, [rows, width]; those of rows without `batch.mask` are not read.
            rows: Index of each of the batch's rows in the vec; by default the batch has all rows in order.
            masks: Allowed alternatives, if infos give them.

        Raises:
            Diverged: If a reward or an observation is NaN or inf. Nothing was stored then.
        """
        rows = self._all_rows if rows is None else rows
        if not len(rows) == len(batch.mask) == len(actions):
            raise ArgumentError(
                f"rows: expected an index and an action for each of the {len(batch.mask)} rows of the batch, "
                f"got {len(rows)} and {len(actions)}"
            )
        self._check_finite(batch)
        opened = self._open[rows]
        # Not those whose places this batch will take.
        carries = (opened >= max(0, self.total + len(rows) - self.capacity)) & ~batch.resets
        terminated = batch.terminations & carries
        truncated = batch.truncations & carries & ~terminated
        acts = batch.mask & ~batch.terminations & ~batch.truncations
        at = opened % self.capacity
        earning = at[carries]
        self._rewards[earning] += batch.rewards[carries]
        new = self._take_places(batch, rows, np.flatnonzero(acts | truncated), actions, masks)
        follow = np.full(len(rows), UNKNOWN)
        follow[terminated] = TERMINAL
        linked = carries & (acts | truncated)
        follow[linked] = new[linked] % self.capacity
        known = terminated | linked
        self._next[at[known]] = follow[known]
        self._complete += int(known.sum())
        if self._priorities is not None:
            self._priorities.set(at[known], self._largest)
        waits = ~(acts | batch.terminations | batch.truncations | batch.resets)
        self._open[rows] = np.where(acts, new, np.where(waits, opened, -1))

    def _take_places(
        self,
        batch: Batch,
        rows: NDArray[np.int64],
        chosen: NDArray[np.int64],
        actions: NDArray[Any],
        masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64]:
        """Store observations and actions of the chosen rows; return serial numbers, -1 for other rows."""
        new = np.full(len(rows), -1)
        if not len(chosen):
            return new
        serials = np.arange(self.total, self.total + len(chosen))
        places = serials % self.capacity
        if serials[-1] >= self.capacity:  # the oldest transitions go
            self._complete -= int((self._next[places] != UNKNOWN).sum())
        self._next[places], self._rewards[places] = UNKNOWN, 0
        self._actions[places] = actions[chosen]
        if masks is not None:
            self._have_masks()
        if self._forbidden is not None:
            self._forbidden[places] = False if masks is None else ~masks[chosen]
        whole = len(chosen) == len(rows)
        self._observations.write(
            serials, rows if whole else rows[chosen], batch.obs if whole else batch.obs[chosen]
        )
        if self._priorities is not None:
            self._priorities.set(places, 0.0)
        self.total += len(chosen)
        new[chosen] = serials
        return new

    def _have_masks(self) -> None:
        if self._forbidden is None:
            # Zeros, because memory for them is taken only when something else is written.
            self._forbidden = np.zeros((self.capacity, self._mask_width), np.bool_)
            self.nbytes += self._forbidden.nbytes

    def _check_finite(self, batch: Batch) -> None:
        if not np.isfinite(batch.rewards).all():
            row = int(np.flatnonzero(~np.isfinite(batch.rewards))[0])
            raise Diverged(f"env {batch.env_ids[row]} gave {batch.rewards[row]} as a reward")
        kind = np.dtype(self._layout.flat_dtype).kind
        if kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):
                if np.isfinite(batch.obs.sum(dtype=np.float64)):
                    return
        elif not self._layout.is_bytes:
            return
        problem = find_not_finite(torch.from_numpy(batch.obs), self._layout, batch.env_ids)
        if problem is not None:
            raise Diverged(problem)

    def abandon(self) -> None:
        """Give up the actions whose outcome is not known yet, because new episodes begin."""
        self._open[:] = -1

    def observations(self, first: int, last: int) -> NDArray[Any]:
        """Return the observations with the serial numbers from `first` to `last`, as far as they are kept."""
        return self._observations.read(np.arange(max(first, self.oldest), last) % self.capacity)

    def clear(self) -> None:
        """Forget all transitions. Outcomes of earlier actions are dropped when they arrive."""
        self._next[:], self._open[:] = UNKNOWN, -1
        self._observations.clear()
        if self._priorities is not None:
            self._priorities.fill(0.0)
        self._largest, self._complete, self.total = 1.0, 0, 0
        self.generation += 1

    # -- sampling ----------------------------------------------------------------------------------------

    def sample(self, size: int, *, gamma: float, n_step: int = 1, correction: float = 1.0) -> Transitions:
        """Sample transitions with replacement.

        Args:
            size: Number of transitions.
            gamma: Discount.
            n_step: Number of steps whose rewards are summed.
            correction: With priorities, how much weights correct for sampling some transitions more often:
                0 is not at all, 1 is fully.

        Raises:
            ArgumentError: If the replay has no transition yet.
        """
        if not self._complete:
            raise ArgumentError("sample: expected a replay with at least one transition, got none")
        places = self._draw(size)
        returns, ahead, discounts = self._look_ahead(places, gamma, n_step)
        return Transitions(
            torch.from_numpy(self._observations.read(places)),
            self._actions_at(places),
            torch.from_numpy(returns),
            torch.from_numpy(discounts),
            torch.from_numpy(self._observations.read(ahead)),
            None if self._forbidden is None else torch.from_numpy(~self._forbidden[places]),
            None if self._forbidden is None else torch.from_numpy(~self._forbidden[ahead]),
            self._weights(places, correction),
            places,
        )

    def _actions_at(self, places: NDArray[np.int64]) -> Tensor:
        taken = torch.from_numpy(self._actions.take(places, 0))
        return taken if taken.is_floating_point() else taken.long()

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Draw places of transitions whose outcome is known."""
        places = self._candidates(size)
        wrong = np.flatnonzero(~self._usable(places))
        for _ in range(20):
            if not len(wrong):
                return places
            again = self._candidates(len(wrong))
            places[wrong] = again
            wrong = wrong[~self._usable(again)]
        if len(wrong):  # there are few: list them all
            usable = np.flatnonzero(self._usable(np.arange(min(self.total, self.capacity))))
            if not len(usable):
                raise ArgumentError("sample: expected a replay with at least one transition, got none")
            places[wrong] = usable[self._random.integers(0, len(usable), len(wrong))]
        return places

    def _candidates(self, size: int) -> NDArray[np.int64]:
        if self._priorities is not None:
            return self._priorities.draw(self._random.random(size))
        return self._random.integers(0, min(self.total, self.capacity), size)

    def _usable(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        usable: NDArray[np.bool_] = self._next[places] != UNKNOWN
        stored = self._observations.has(places)
        return usable if stored is None else usable & stored

    def _look_ahead(
        self, places: NDArray[np.int64], gamma: float, n_step: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
        """Return the discounted rewards of some steps, the place after them, and the discount there."""
        returns, follow = self._rewards[places], self._next[places]
        if n_step == 1:
            ended = follow == TERMINAL
            return returns, np.where(ended, places, follow), np.where(ended, 0, np.float32(gamma))
        returns = returns.astype(np.float64)
        discounts, here = np.full(len(places), gamma), np.where(follow >= 0, follow, places)
        discounts[follow == TERMINAL] = 0.0
        going = (follow >= 0) & (self._next[here] != UNKNOWN)
        for _ in range(n_step - 1):
            if not going.any():
                break
            at = here[going]
            returns[going] += discounts[going] * self._rewards[at]
            after = self._next[at]
            discounts[going] *= np.where(after == TERMINAL, 0.0, gamma)
            here[going] = np.where(after == TERMINAL, at, after)
            going[going] = (after >= 0) & (self._next[np.maximum(after, 0)] != UNKNOWN)
        return returns.astype(np.float32), here, discounts.astype(np.float32)

    def _weights(self, places: NDArray[np.int64], correction: float) -> Tensor | None:
        """Return what corrects the loss for sampling by priority, relative to the largest weight."""
        if self._priorities is None:
            return None
        chances = self._priorities.values[places] / self._priorities.total
        weights = (self._complete * chances) ** -correction
        return torch.from_numpy((weights / weights.max()).astype(np.float32))

    def set_errors(self, places: NDArray[np.int64], errors: NDArray[np.float32], exponent: float) -> None:
        """Set the priorities of sampled transitions to the sizes of their errors, to the power `exponent`."""
        if self._priorities is None:
            return
        if not np.isfinite(errors).all():
            raise Diverged("a prediction is NaN or inf: take a smaller learning_rate")
        values = (np.abs(errors.astype(np.float64)) + SMALLEST_ERROR) ** exponent
        self._priorities.set(places, values)
        self._largest = max(self._largest, float(values.max()))

    # -- saving ------------------------------------------------------------------------------------------

    def rest(self) -> dict[str, Any]:
        """Return what is not in the parts: counts, random numbers, priorities."""
        taken = min(self.total, self.capacity)  # a resumed run may have another capacity
        return {
            "total": self.total,
            "open": self._open.copy(),
            "random": self._random.bit_generator.state,
            "largest": self._largest,
            "priorities": None if self._priorities is None else self._priorities.values[:taken].copy(),
            "masks": self._forbidden is not None,
            "observations": self._observations.rest(),
        }

    def part(self, first: int, last: int, changed: NDArray[np.int64]) -> dict[str, Any]:
        """Return the places with the serial numbers from `first` to `last`, as arrays.

        Args:
            first: First serial number.
            last: Serial number after the last.
            changed: Serial numbers of earlier places whose outcomes are returned too.
        """
        changed = changed[changed >= max(0, self.total - self.capacity)]
        at = changed % self.capacity
        return {
            "first": first,
            "last": last,
            "actions": joined(self._actions, first, last),
            "rewards": joined(self._rewards, first, last),
            "next": joined(self._next, first, last),
            "forbidden": None if self._forbidden is None else joined(self._forbidden, first, last),
            "observations": self._observations.part(first, last),
            "changed": changed,
            "changed_rewards": self._rewards[at],
            "changed_next": self._next[at],
        }

    @property
    def oldest(self) -> int:
        """Serial number of the oldest place."""
        return max(0, self.total - self.capacity)

    @property
    def opened(self) -> NDArray[np.int64]:
        """Serial numbers of the places whose outcome is not known yet."""
        return self._open[self._open >= self.oldest]

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: tensors, arrays and plain values."""
        return {**self.rest(), "parts": [self.part(self.oldest, self.total, np.zeros(0, np.int64))]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Args:
            state: What `state_dict` returned, or `rest` with ``parts`` from the oldest on.

        Raises:
            ValueError: If the state does not fit.
        """
        self.clear()
        total, opened = int(state["total"]), state["open"]
        check_fits(opened, self._open, len(self._open))
        if not opened.max(initial=-1) < total < 1 << 62:
            raise ValueError("the replay has actions at places that do not exist")
        if state["masks"]:
            self._have_masks()
        self._observations.put_rest(state["observations"])
        self._put_parts(state["parts"], total)
        known = self._next[: min(total, self.capacity)]
        if len(known) and not (known.min() >= TERMINAL and known.max() < len(known)):
            raise ValueError("the replay has places that do not exist")
        complete = np.flatnonzero(known != UNKNOWN)
        actions = self._actions[complete]
        if self._sizes is not None and not ((actions >= 0) & (actions < self._sizes)).all():
            raise ValueError("the replay has actions that do not exist")
        self._complete, self.total = len(complete), total
        self._open[:] = opened
        self._random.bit_generator.state = state["random"]
        if self._priorities is not None:
            self._put_priorities(state["priorities"], float(state["largest"]), complete)

    def _put_priorities(
        self, values: NDArray[np.float64], largest: float, complete: NDArray[np.int64]
    ) -> None:
        assert self._priorities is not None
        check_fits(values, self._priorities.values, min(self.total, self.capacity))
        if not (0 < largest < np.inf and np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("the replay has priorities that are negative, NaN or inf")
        if not values[complete].all():
            raise ValueError("the replay has transitions without a priority")
        self._largest = largest
        self._priorities.set(np.arange(len(values)), values)

    def _put_parts(self, parts: Iterable[dict[str, Any]], total: int) -> None:
        reached = oldest = max(0, total - self.capacity)
        for part in parts:
            first, last = int(part["first"]), int(part["last"])
            # The ring may have overwritten the begin of the first part.
            if not (0 <= first <= reached <= last <= total and (first == reached or reached == oldest)):
                raise ValueError(f"expected places from {reached}, got {first} to {last}")
            put_joined(self._actions, first, last, part["actions"])
            put_joined(self._rewards, first, last, part["rewards"])
            put_joined(self._next, first, last, part["next"])
            if part["forbidden"] is not None and self._forbidden is not None:
                put_joined(self._forbidden, first, last, part["forbidden"])
            self._observations.put(first, last, part["observations"])
            changed, rewards, follow = part["changed"], part["changed_rewards"], part["changed_next"]
            check_fits(changed, self._open, len(changed))
            check_fits(rewards, self._rewards, len(changed))
            check_fits(follow, self._next, len(changed))
            if not ((changed >= 0) & (changed < first)).all():
                raise ValueError(f"expected changed places before {first}, got others")
            at = changed % self.capacity
            self._rewards[at], self._next[at] = rewards, follow
            reached = last
        if reached != total:
            raise ValueError(f"expected places up to {total}, got {reached}")


def bytes_per_transition(layout: Layout, actions: Actions, frame_stack: int, *, prioritized: bool) -> float:
    """Return the number of bytes that a replay takes for each transition, without frames of its rows."""
    obs: float = layout.nbytes
    if frame_stack:
        obs = obs / frame_stack * (1 + SLACK) + 8 * frame_stack
    return obs + 4 * actions.width + 8 + 8 * prioritized


def check_memory(capacity: int, nbytes: float) -> None:
    """Check that a replay fits into the free memory.

    Raises:
        OutOfResources: If it does not.
    """
    free = free_memory()
    if free is not None and nbytes > free:
        raise OutOfResources(
            f"replay_size: {capacity:,} transitions take {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB of "
            "memory are free. Take a smaller replay_size, or free memory. Stacked frames take less with "
            "frame_stack"
        )
