"""The observations of a replay: whole rows, or stacks of frames that are stored once each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.rows.layout import Layout

SLACK = 1 / 16  # frames beyond one for each observation: an episode begins with several
MOST_NEW = 2.0  # new frames for each observation, above which observations are no stacks


class ObservationStore(Protocol):
    """A ring of observations. A serial number counts all observations ever written."""

    nbytes: int

    def write(self, serials: NDArray[np.int64], rows: NDArray[np.int64], obs: NDArray[Any]) -> None:
        """Write the observations of rows under consecutive serial numbers."""

    def read(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the observations of places of the ring."""

    def has(self, places: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which places are still stored; None if all that were written are."""

    def part(self, first: int, last: int) -> dict[str, Any]:
        """Return what was written under the serial numbers from `first` to `last`, as arrays."""

    def put(self, first: int, last: int, part: dict[str, Any]) -> None:
        """Write what `part` returned."""

    def rest(self) -> dict[str, Any]:
        """Return what is not in the parts."""

    def put_rest(self, rest: dict[str, Any]) -> None:
        """Restore what `rest` returned, before the parts."""

    def clear(self) -> None:
        """Forget all observations."""


class WholeRows:
    """A ring of flat rows.

    Args:
        capacity: Number of observations.
        layout: Layout of the observations.
    """

    def __init__(self, capacity: int, layout: Layout) -> None:
        self._rows = np.empty((capacity, *layout.flat_shape), layout.flat_dtype)
        self.nbytes = self._rows.nbytes

    def write(self, serials: NDArray[np.int64], rows: NDArray[np.int64], obs: NDArray[Any]) -> None:
        """Write the observations of rows under consecutive serial numbers."""
        done = 0
        for span in spans(int(serials[0]), int(serials[-1]) + 1, len(self._rows)):
            count = span.stop - span.start
            self._rows[span] = obs[done : done + count]
            done += count

    def read(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the observations of places of the ring."""
        return self._rows.take(places, 0)

    def has(self, places: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which places are still stored; None if all that were written are."""
        return None

    def part(self, first: int, last: int) -> dict[str, Any]:
        """Return what was written under the serial numbers from `first` to `last`, as arrays."""
        return {"rows": joined(self._rows, first, last)}

    def put(self, first: int, last: int, part: dict[str, Any]) -> None:
        """Write what `part` returned."""
        put_joined(self._rows, first, last, part["rows"])

    def rest(self) -> dict[str, Any]:
        """Return what is not in the parts."""
        return {}

    def put_rest(self, rest: dict[str, Any]) -> None:
        """Restore what `rest` returned."""

    def clear(self) -> None:
        """Forget all observations."""


class Frames:
    """A ring of frames, and for each observation the numbers of the frames that it is a stack of.

    A frame is compared with the row's last observation, and stored if it is new. So what is read is exactly
    what was written, whatever the env does at the beginning of episodes.

    Args:
        capacity: Number of observations.
        rows: Number of rows of the vec.
        layout: Layout of the observations: one array, with frames along its first or last axis.
        stack: Number of frames in an observation.
    """

    def __init__(self, capacity: int, rows: int, layout: Layout, stack: int) -> None:
        self._shape, self._capacity, self._stack = tuple(layout.flat_shape), capacity, stack
        if stack < 2 or len(self._shape) < 2 or stack not in (self._shape[0], self._shape[-1]):
            raise ArgumentError(
                f"frame_stack: expected the length of the first or last axis of the observations, of shape "
                f"{self._shape}, got {stack}"
            )
        self._last_axis = self._shape[0] != stack
        dtype = np.dtype(layout.flat_dtype)
        nbytes = math.prod(self._shape) // stack * dtype.itemsize
        # Compared and copied as the largest words that a frame is made of: eight times as fast as bytes.
        word = next(each for each in (8, 4, 2, 1) if nbytes % each == 0)
        self._dtype, self._word = dtype, np.dtype(f"i{word}")
        self._count = frames_for(capacity, rows, stack)
        self._frames = np.empty((self._count, nbytes // word), self._word)
        self._index = np.zeros((capacity, stack), np.int64)
        # The frames of each row's last observation that the next one should begin with.
        self._previous = np.zeros((rows, stack - 1, nbytes // word), self._word)
        self._previous_index, self._all_rows = np.full((rows, stack), -1), np.arange(rows)
        self._total = self._written = 0  # frames and observations
        self.nbytes = self._frames.nbytes + self._index.nbytes + self._previous.nbytes

    def _split(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return observations as [rows, frames, words]."""
        obs = np.moveaxis(obs, -1, 1) if self._last_axis else obs
        return np.ascontiguousarray(obs).reshape(len(obs), self._stack, -1).view(self._word)

    def write(self, serials: NDArray[np.int64], rows: NDArray[np.int64], obs: NDArray[Any]) -> None:
        """Write the observations of rows under consecutive serial numbers."""
        now = self._split(obs)
        at: Any = slice(None) if np.array_equal(rows, self._all_rows) else rows  # then nothing is copied
        index = np.empty((len(rows), self._stack), np.int64)
        index[:, :-1] = self._previous_index[at, 1:]
        stored = index[:, 0] > max(-1, self._total - self._count)  # -1: there is no observation before
        goes_on = (self._previous[at] == now[:, :-1]).all((1, 2)) & stored
        new = np.flatnonzero(goes_on)
        index[new, -1] = self._add(now[:, -1] if len(new) == len(now) else now[new, -1])
        for row in np.flatnonzero(~goes_on).tolist():
            for place in range(self._stack):
                if place and (now[row, place] == now[row, place - 1]).all():
                    index[row, place] = index[row, place - 1]
                else:
                    index[row, place] = self._add(now[row, place : place + 1])[0]
        self._previous[at], self._previous_index[at] = now[:, 1:], index
        self._index[serials % self._capacity] = index
        self._written += len(rows)
        if self._total > MOST_NEW * self._written + self._stack * len(self._previous) + 1000:
            raise ArgumentError(
                f"frame_stack: expected stacks of {self._stack} frames that share all but one with the "
                "observation before, got mostly new frames. Use frame_stack=0"
            )

    def _add(self, frames: NDArray[Any]) -> NDArray[np.int64]:
        first, self._total = self._total, self._total + len(frames)
        put_joined(self._frames, first, self._total, frames)
        return np.arange(first, self._total)

    def read(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the observations of places of the ring."""
        # By torch, which uses several threads.
        numbers = torch.from_numpy(self._index[places].reshape(-1) % self._count)
        found = torch.from_numpy(self._frames).index_select(0, numbers).numpy().view(self._dtype)
        if not self._last_axis:
            return found.reshape(len(places), *self._shape)
        shaped = found.reshape(len(places), self._stack, *self._shape[:-1])
        return np.ascontiguousarray(np.moveaxis(shaped, 1, -1))

    def has(self, places: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which places are still stored; None if all that were written are."""
        if self._total <= self._count:
            return None
        alive: NDArray[np.bool_] = self._index[places].min(1) >= self._total - self._count
        return alive

    def part(self, first: int, last: int) -> dict[str, Any]:
        """Return what was written under the serial numbers from `first` to `last`, as arrays."""
        # With all frames of these observations, so that earlier parts are not needed for them.
        index = joined(self._index, first, last)
        numbers = np.unique(index)
        numbers = numbers[numbers >= self._total - self._count]
        return {"index": index, "numbers": numbers, "frames": self._frames[numbers % self._count]}

    def put(self, first: int, last: int, part: dict[str, Any]) -> None:
        """Write what `part` returned."""
        index, numbers, frames = part["index"], part["numbers"], part["frames"]
        put_joined(self._index, first, last, index)
        check_fits(numbers, self._index[:, 0], len(frames))
        check_fits(frames, self._frames, len(frames))
        for each in (index, numbers):
            if not ((each >= 0) & (each < self._total)).all():
                raise ValueError(f"expected frames from 0 to {self._total}, got others")
        self._frames[numbers % self._count] = frames

    def rest(self) -> dict[str, Any]:
        """Return what is not in the parts."""
        return {
            "previous": self._previous.copy(),
            "previous_index": self._previous_index.copy(),
            "counts": (self._total, self._written),
        }

    def put_rest(self, rest: dict[str, Any]) -> None:
        """Restore what `rest` returned."""
        previous, index, (total, written) = rest["previous"], rest["previous_index"], rest["counts"]
        check_fits(previous, self._previous, len(self._previous))
        check_fits(index, self._previous_index, len(self._previous))
        if not (0 <= total < 1 << 62 and written >= 0 and (index >= -1).all() and (index < total).all()):
            raise ValueError(f"expected frames from 0 to {total}, got others")
        self._previous[:], self._previous_index[:] = previous, index
        self._total, self._written = int(total), int(written)

    def clear(self) -> None:
        """Forget all observations."""
        self._previous_index[:] = -1
        self._total = self._written = 0


def frames_for(capacity: int, rows: int, stack: int) -> int:
    """Return the number of frames to store for a number of observations."""
    return int(capacity * (1 + SLACK)) + 2 * stack * rows


def spans(first: int, last: int, capacity: int) -> Iterator[slice]:
    """Yield the slices of a ring that hold the serial numbers from `first` to `last`."""
    while first < last:
        start = first % capacity
        stop = min(capacity, start + last - first)
        yield slice(start, stop)
        first += stop - start


def joined(ring: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """Return a copy of the part of a ring with the serial numbers from `first` to `last`."""
    parts = [ring[span] for span in spans(first, last, len(ring))]
    return np.concatenate(parts) if parts else ring[:0].copy()


def check_fits(values: NDArray[Any], ring: NDArray[Any], count: int) -> None:
    """Check that values can be a number of entries of a ring.

    Raises:
        ValueError: If they cannot.
    """
    shape = (count, *ring.shape[1:])
    if values.shape != shape or values.dtype != ring.dtype:
        raise ValueError(
            f"expected values of shape {shape} and {ring.dtype}, got {values.shape} and {values.dtype}"
        )


def put_joined(ring: NDArray[Any], first: int, last: int, values: NDArray[Any]) -> None:
    """Write a part of a ring that `joined` returned.

    Raises:
        ValueError: If the values do not fit.
    """
    check_fits(values, ring, last - first)
    if last - first > len(ring):
        raise ValueError(f"expected at most {len(ring)} values, got {last - first}")
    done = 0
    for span in spans(first, last, len(ring)):
        count = span.stop - span.start
        ring[span] = values[done : done + count]
        done += count
