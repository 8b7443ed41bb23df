"""The arena: the one block of memory that holds all rows; also the copies of it that callers get.

    observations | actions | rewards | terminations | truncations | mask | resets | starts | return | length

Each column starts on a new cache line, so that no two columns share one.
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
    """Count the flags that are set. For a few hundred flags this takes a third of NumPy's time."""
    return flags.tobytes().count(1)


@dataclass(frozen=True)
class Arena:
    """The columns of a run of rows. Slices of an arena share its memory.

    Attributes:
        observations: The bytes of each observation, in the observation layout.
        actions: The bytes of each action, in the action layout.
        rewards: The reward of each row's last transition.
        terminations: Whether the row's last transition terminated its episode.
        truncations: Whether the row's last transition truncated its episode.
        mask: Whether the row needs an action now. Actions of other rows are never read.
        resets: Whether the row has no transition in this batch: its observation begins an episode.
        starts: Whether the row's next transition is the first of an episode, because its env was reset after
            the last one. That transition clears the row's return and length, so those of a finished episode
            can be read until then. (The flag has no meaning for a row that still waits for its reset.)
        episode_returns: The sum of rewards of the row's episode. The sum of a finished episode stays until
            the first transition of the next episode.
        episode_lengths: The number of transitions of the row's episode. It stays as long as the return.
        observation_objects: The parts of observations that have no bytes (Sequence, Graph, custom spaces),
            with one column for each field. Each process has its own; they travel in messages.
        action_objects: The parts of actions that have no bytes, in the same form.
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
        """Allocate an arena on the heap: all zero, and every row waits for its first action."""
        block = np.zeros(cls.nbytes(num_rows, observation, action) + CACHE_LINE, np.uint8)
        arena = cls.within(block[-block.ctypes.data % CACHE_LINE :], num_rows, observation, action)
        arena.begin()
        return arena

    @classmethod
    def nbytes(cls, num_rows: int, observation: Layout, action: Layout) -> int:
        """Return the number of bytes that an arena of `num_rows` rows takes."""
        return sum(nbytes for _, _, nbytes in _columns(num_rows, observation, action).values())

    @classmethod
    def within(cls, block: NDArray[np.uint8], num_rows: int, observation: Layout, action: Layout) -> Arena:
        """Return the arena whose columns lie in `block`. The bytes of the block stay as they are."""
        arrays: dict[str, Any] = {}
        start = 0
        for name, (dtype, shape, nbytes) in _columns(num_rows, observation, action).items():
            arrays[name] = np.ndarray(shape, dtype, block.data, start)
            start += nbytes
        arrays["observation_objects"] = np.full((num_rows, observation.num_objects), None, object)
        arrays["action_objects"] = np.full((num_rows, action.num_objects), None, object)
        return cls(**arrays)

    def begin(self) -> None:
        """Put the flags into their first state: every row waits for the first action of its first episode."""
        self.mask[:] = self.starts[:] = True

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rewards)

    def rows(self, first: int, last: int) -> Arena:
        """Return views of the rows from `first` up to but not including `last`."""
        return Arena(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy every column, for a snapshot. Objects of actions are left out, because they have been used."""
        names = [f.name for f in fields(self) if f.name != "action_objects"]
        return {name: _copy(getattr(self, name)) for name in names}

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the columns from a copy that `state` made."""
        for name, column in state.items():
            getattr(self, name)[...] = _copy(column) if column.dtype == object else column

    def copy_from(self, other: Arena) -> None:
        """Copy the rows of `other`, except for actions and objects."""
        for f in fields(self):
            if f.name not in ("actions", "observation_objects", "action_objects"):
                getattr(self, f.name)[...] = getattr(other, f.name)

    def copy_objects_from(self, other: Arena) -> None:
        """Take over the observation objects of `other`, without copying them."""
        self.observation_objects[...] = other.observation_objects


def _copy(column: NDArray[Any]) -> NDArray[Any]:
    return copied_column(column) if column.dtype == object else column.copy()


def _columns(
    num_rows: int, observation: Layout, action: Layout
) -> dict[str, tuple[Any, tuple[int, ...], int]]:
    """Return the dtype and shape of each column, and its bytes padded to whole cache lines."""
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
    """Memory that processes share by passing on its file descriptor.

    The memory has no name in a file system. So the kernel frees it when the last process that uses it ends,
    even if that process is killed. It also does not count against /dev/shm, which is small in containers.

    Args:
        nbytes: The size in bytes.
        descriptor: The descriptor of memory that another process made. This object then owns the descriptor.

    Attributes:
        block: The bytes; all are zero at first.
        descriptor: The file descriptor to pass to other processes; -1 after `close`.
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.descriptor = -1 if descriptor is None else descriptor
        try:
            with obtaining(f"{nbytes:,} bytes of shared memory", "Use fewer envs, or smaller spaces"):
                if descriptor is None:
                    self.descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                    os.ftruncate(self.descriptor, nbytes)
                    _seal(self.descriptor)
                # The map has its own descriptor. It lives until the last array that refers to it is freed.
                self.block: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.descriptor, nbytes), np.uint8)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor. The block stays mapped as long as an array refers to it."""
        if self.descriptor >= 0:
            with suppress(OSError):  # an env in this process may have closed it
                os.close(self.descriptor)
        self.descriptor = -1


def _seal(descriptor: int) -> None:
    """Fix the size of a shared memory.

    Envs can reach its descriptor. If an env shrank it, the kernel would kill processes that read the rows.
    """
    import fcntl  # here, because not every platform has it

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


LARGE = 1 << 17  # bytes. From this size on malloc may map new pages; it reuses smaller blocks itself
SPARE_BLOCKS = 3


def copier(column: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """Return a function that copies the current content of the column, for a caller to keep."""
    if column.dtype == object:
        return partial(copied_column, column)
    return column.copy if column.nbytes < LARGE else RecyclingCopier(column)


class RecyclingCopier:
    """Copies a large column, and reuses the memory of copies that the caller has dropped.

    A large block that is new from the system causes a page fault for every 4 KB. The page faults take many
    times as long as the copy itself. Whether malloc returns such a block depends on what else the process
    does. The reference count of a block shows whether its copy was dropped: every array, tensor or buffer
    made from the copy refers to the block. If a caller keeps more copies than there are spare blocks, the
    next copy uses new memory.
    """

    def __init__(self, column: NDArray[Any]) -> None:
        self._column = column
        self._blocks: list[NDArray[Any]] = [np.empty(0)]
        self._unshared = self._references(0)  # the reference count of a block that only this list holds
        self._blocks.clear()

    def _references(self, index: int) -> int:
        return sys.getrefcount(self._blocks[index])

    def __call__(self) -> NDArray[Any]:
        """Return a copy of the column's current content."""
        for index in range(len(self._blocks)):
            if self._references(index) == self._unshared:
                self._blocks[index][...] = self._column
                break
        else:
            self._blocks = [*self._blocks[1 - SPARE_BLOCKS :], self._column.copy()]
            index = -1
        # A view, so that the block stays writable if the caller makes the array read-only.
        return self._blocks[index].view()
