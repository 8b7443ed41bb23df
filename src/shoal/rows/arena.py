"""The arena: the one block of memory that holds all rows, and the copies of it that callers keep.

    observations | actions | rewards | terminations | truncations | mask | resets | starts | return | length

Each column starts on its own cache line, so that no two of them share one.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.limits import obtaining
from shoal.rows.copies import copied_column
from shoal.rows.layout import Layout, Rows

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
        starts: The row's env was reset after its last transition, so that the next one begins an episode.
            Its totals are cleared only then: those of a finished episode can be read until its successor's
            first transition. (Of a row that waits for its reset this says nothing.)
        episode_returns: Sum of rewards; of a finished episode until its successor's first transition.
        episode_lengths: Transitions so far, likewise.
        observation_objects: Values of observations that have no bytes (Sequence, Graph, custom spaces): one
            row each, one column a field. Each process has its own; they travel by message.
        action_objects: Values of actions that have no bytes, in the same form.
    """

    observations: Rows
    actions: Rows
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    episode_returns: NDArray[np.float64]
    episode_lengths: NDArray[np.int64]
    observation_objects: NDArray[Any]
    action_objects: NDArray[Any]

    @classmethod
    def allocate(cls, num_rows: int, observation: Layout, action: Layout) -> Arena:
        """Allocate an arena on the heap: all zero, every row awaiting its first action."""
        block = np.zeros(cls.nbytes(num_rows, observation, action) + CACHE_LINE, np.uint8)
        arena = cls.within(block[-block.ctypes.data % CACHE_LINE :], num_rows, observation, action)
        arena.begin()
        return arena

    @classmethod
    def nbytes(cls, num_rows: int, observation: Layout, action: Layout) -> int:
        """Bytes that an arena of so many rows takes."""
        return sum(nbytes for _, _, nbytes in _columns(num_rows, observation, action).values())

    @classmethod
    def within(cls, block: NDArray[np.uint8], num_rows: int, observation: Layout, action: Layout) -> Arena:
        """The arena whose columns lie in this block, as they are."""
        arrays: dict[str, Any] = {}
        start = 0
        for name, (dtype, shape, nbytes) in _columns(num_rows, observation, action).items():
            arrays[name] = np.ndarray(shape, dtype, block.data, start)
            start += nbytes
        arrays["observation_objects"] = np.full((num_rows, observation.num_objects), None, object)
        arrays["action_objects"] = np.full((num_rows, action.num_objects), None, object)
        return cls(**arrays)

    def begin(self) -> None:
        """Be as at first: every row awaits the first action of its first episode."""
        self.mask[:] = self.starts[:] = True

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rewards)

    def rows(self, first: int, last: int) -> Arena:
        """The rows from `first` up to but not including `last`, as views."""
        return Arena(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of every column, for a snapshot. Objects of actions have been used: they are left out."""
        names = [f.name for f in fields(self) if f.name != "action_objects"]
        return {name: _copy(getattr(self, name)) for name in names}

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Put a copy taken by `state` back."""
        for name, column in state.items():
            getattr(self, name)[...] = _copy(column) if column.dtype == object else column

    def copy_from(self, other: Arena) -> None:
        """Copy the rows of another arena, except for actions and objects."""
        for f in fields(self):
            if f.name not in ("actions", "observation_objects", "action_objects"):
                getattr(self, f.name)[...] = getattr(other, f.name)

    def copy_objects_from(self, other: Arena) -> None:
        """Refer to the objects of another arena's observations."""
        self.observation_objects[...] = other.observation_objects


def _copy(column: NDArray[Any]) -> NDArray[Any]:
    return copied_column(column) if column.dtype == object else column.copy()


def _columns(
    num_rows: int, observation: Layout, action: Layout
) -> dict[str, tuple[Any, tuple[int, ...], int]]:
    """The dtype and shape of each column, and its bytes up to the next cache line."""
    columns: dict[str, tuple[Any, tuple[int, ...]]] = {
        "observations": (np.uint8, (num_rows, observation.nbytes)),
        "actions": (np.uint8, (num_rows, action.nbytes)),
        "rewards": (np.float64, (num_rows,)),
        "terminations": (np.bool_, (num_rows,)),
        "truncations": (np.bool_, (num_rows,)),
        "mask": (np.bool_, (num_rows,)),
        "resets": (np.bool_, (num_rows,)),
        "starts": (np.bool_, (num_rows,)),
        "episode_returns": (np.float64, (num_rows,)),
        "episode_lengths": (np.int64, (num_rows,)),
    }

    def padded(dtype: Any, shape: tuple[int, ...]) -> int:
        nbytes: int = math.prod(shape) * np.dtype(dtype).itemsize
        return -(-nbytes // CACHE_LINE) * CACHE_LINE

    return {name: (dtype, shape, padded(dtype, shape)) for name, (dtype, shape) in columns.items()}


class SharedMemory:
    """Memory that processes share by handing its descriptor on.

    It has no name in any file system, so it is gone when the last process that has it is gone, however that
    ends; and it does not count against /dev/shm, which is small in containers.

    Args:
        nbytes: How much.
        descriptor: Of a memory made by another process; it is taken over.

    Attributes:
        block: The bytes, zero at first.
        descriptor: To hand on.
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.descriptor = -1 if descriptor is None else descriptor
        try:
            with obtaining(f"{nbytes:,} bytes of shared memory", "Use fewer envs, or smaller spaces"):
                if descriptor is None:
                    self.descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                    os.ftruncate(self.descriptor, nbytes)
                    _seal(self.descriptor)
                # The map, which has a descriptor of its own, goes with the last array that refers to it.
                self.block: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.descriptor, nbytes), np.uint8)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """It is not handed on any more. The block stays as long as an array refers to it."""
        if self.descriptor >= 0:
            with suppress(OSError):  # an env in this process may have closed it
                os.close(self.descriptor)
        self.descriptor = -1


def _seal(descriptor: int) -> None:
    """Keep a shared memory as large as it is.

    Envs have its descriptor. If one truncated it, the kernel would kill every process that touches the rows.
    """
    import fcntl  # which there is not everywhere

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


LARGE = 1 << 17  # bytes, from which on malloc may ask the system; smaller blocks it keeps itself
SPARE_BLOCKS = 3


def copier(column: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """A function that returns a copy of the column as it then is, for a caller to keep."""
    if column.dtype == object:
        return partial(copied_column, column)
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
