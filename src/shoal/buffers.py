"""The arena: the one block of memory that holds all rows, and the copies of it that callers keep.

    observations | actions | rewards | terminations | truncations | mask | resets | episode return | length

Each column starts on its own cache line, so that no two of them share one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.layout import Layout, Rows

CACHE_LINE = 64


def count_true(flags: NDArray[np.bool_]) -> int:
    """How many are set. For a few hundred flags, a third of the price of NumPy's own."""
    return flags.tobytes().count(1)


@dataclass(frozen=True)
class Arena:
    """The columns of a run of rows. Slices of an arena share its memory.

    Attributes:
        observations: Bytes, as the observation layout says.
        actions: Bytes, as the action layout says.
        rewards: Of the last transition.
        terminations: The last transition ended the row's episode by itself.
        truncations: The last transition's episode was cut off.
        mask: The row needs an action now. Actions of other rows are never read.
        resets: The row carries no transition: its observation begins an episode.
        episode_returns: Sum of rewards; of a finished episode until its successor's first transition.
        episode_lengths: Transitions so far, likewise.
        observation_objects: Observations in custom spaces, which have no bytes (in-process only).
        action_objects: Actions in custom spaces, likewise.
    """

    observations: Rows
    actions: Rows
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    episode_returns: NDArray[np.float64]
    episode_lengths: NDArray[np.int64]
    observation_objects: NDArray[Any]
    action_objects: NDArray[Any]

    @classmethod
    def allocate(cls, num_rows: int, observation: Layout, action: Layout) -> Arena:
        """Allocate an arena on the heap: all zero, every row awaiting its first action."""
        columns: dict[str, tuple[Any, tuple[int, ...]]] = {
            "observations": (np.uint8, (num_rows, observation.nbytes)),
            "actions": (np.uint8, (num_rows, action.nbytes)),
            "rewards": (np.float64, (num_rows,)),
            "terminations": (np.bool_, (num_rows,)),
            "truncations": (np.bool_, (num_rows,)),
            "mask": (np.bool_, (num_rows,)),
            "resets": (np.bool_, (num_rows,)),
            "episode_returns": (np.float64, (num_rows,)),
            "episode_lengths": (np.int64, (num_rows,)),
        }
        offsets, end = {}, 0
        for name, (dtype, shape) in columns.items():
            offsets[name] = end
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            end += -(-nbytes // CACHE_LINE) * CACHE_LINE
        block = np.zeros(end + CACHE_LINE, np.uint8)
        block = block[-block.ctypes.data % CACHE_LINE :]
        arrays: dict[str, Any] = {
            name: np.ndarray(shape, dtype, block.data, offsets[name])
            for name, (dtype, shape) in columns.items()
        }
        arrays["observation_objects"] = np.full((num_rows, observation.num_objects), None, object)
        arrays["action_objects"] = np.full((num_rows, action.num_objects), None, object)
        arrays["mask"][:] = True
        return cls(**arrays)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rewards)

    def rows(self, first: int, last: int) -> Arena:
        """The rows from `first` up to but not including `last`, as views."""
        return Arena(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of every column, for a snapshot."""
        return {f.name: getattr(self, f.name).copy() for f in fields(self)}

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Put a copy taken by `state` back."""
        for name, column in state.items():
            getattr(self, name)[...] = column


LARGE = 1 << 17  # bytes, from which on malloc may ask the system; smaller blocks it keeps itself
SPARE_BLOCKS = 3


def copier(column: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """A function that returns a copy of the column as it then is, for a caller to keep."""
    if column.dtype == object:
        return partial(deepcopy, column)
    return column.copy if column.nbytes < LARGE else RecyclingCopier(column)


class RecyclingCopier:
    """Copies a large column; the memory of copies that were dropped is used again.

    A large block fresh from the system costs a page fault for every 4 KB, which takes many times as long as
    the copy itself; whether malloc gets one depends on what else the process does. Whether a copy has been
    dropped is known by its references: an array, tensor or buffer made of it refers to it. A caller who keeps
    more copies than there are spare blocks gets new memory.
    """

    def __init__(self, column: NDArray[Any]) -> None:
        self._column = column
        self._blocks: list[NDArray[Any]] = [np.empty(0)]
        self._unshared = self._references(0)  # how often a block is referred to that only this list holds
        self._blocks.clear()

    def _references(self, index: int) -> int:
        return sys.getrefcount(self._blocks[index])

    def __call__(self) -> NDArray[Any]:
        """The column as it is now."""
        for index in range(len(self._blocks)):
            if self._references(index) == self._unshared:
                self._blocks[index][...] = self._column
                break
        else:
            self._blocks = [*self._blocks[1 - SPARE_BLOCKS :], self._column.copy()]
            index = -1
        # A view, so that what a caller does to the array, such as freezing it, does not reach the block.
        return self._blocks[index].view()
