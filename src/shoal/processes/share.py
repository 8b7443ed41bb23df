"""Share: the part of a vec that one worker holds, and the layout of the shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._native import handshake_nbytes
from shoal.cores import Patience
from shoal.processes.placement import Placement, WorkerBlock
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.vector.engine import BlockRange

UNSENT_NBYTES = 1 << 12  # bytes per worker for an unsent message; they take no memory until they are written


@dataclass(frozen=True)
class Share:
    """The part of a vec that one worker holds.

    The shared memory holds the handshake, a place for an unsent message of each worker, the arena, and a
    second arena if rows are kept before each step.

    Attributes:
        worker: The number of the worker.
        num_workers: The number of workers of the vec.
        most_blocks: The largest number of blocks that any worker has.
        blocks: The blocks of the worker.
        num_envs: The number of envs of the vec.
        agents: The number of rows per env.
        observation: The space of the observation in a row.
        action: The space of the action in a row.
        mode: The autoreset mode.
        flat: Whether observations and actions stay flat bytes, as for `RowSlice`.
        patience: How the worker polls for a call before it sleeps.
        keeps: Whether rows are kept in a second arena before each step.
        first_seeds: For each block, the seed of each env's first reset, unless that reset has its own seed.
            None unless the worker replaces another one.
    """

    worker: int
    num_workers: int
    most_blocks: int
    blocks: tuple[WorkerBlock, ...]
    num_envs: int
    agents: int
    observation: Space[Any]
    action: Space[Any]
    mode: AutoresetMode
    flat: bool
    patience: Patience
    keeps: bool
    first_seeds: list[list[int | None]] | None = None

    def layouts(self) -> tuple[Layout, Layout]:
        """Return the layouts of observations and actions."""
        objects = not self.flat
        return Layout(self.observation, objects=objects), Layout(self.action, objects=objects)

    def nbytes(self) -> int:
        """Return the size of the shared memory in bytes."""
        arena = Arena.nbytes(self.num_envs * self.agents, *self.layouts())
        return self._arena_start() + (2 if self.keeps else 1) * arena

    def _arena_start(self) -> int:
        return handshake_nbytes(self.num_workers, self.most_blocks) + self.num_workers * UNSENT_NBYTES

    def unsent_message(self, block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the part of the shared memory for a message that the worker could not send."""
        start = handshake_nbytes(self.num_workers, self.most_blocks) + self.worker * UNSENT_NBYTES
        return block[start : start + UNSENT_NBYTES]

    def arena(self, block: NDArray[np.uint8]) -> Arena:
        """Return the arena in the shared memory."""
        start = self._arena_start()
        return Arena.within(block[start:], self.num_envs * self.agents, *self.layouts())

    def kept(self, block: NDArray[np.uint8]) -> Arena:
        """Return the second arena, which keeps the rows from before the last step."""
        rows, layouts = self.num_envs * self.agents, self.layouts()
        return Arena.within(block[-Arena.nbytes(rows, *layouts) :], rows, *layouts)

    def rows_of(self, block: BlockRange, arena: Arena) -> Arena:
        """Return the rows of a block in an arena."""
        return arena.rows(block.first_env * self.agents, block.last_env * self.agents)


def shares_of(placement: Placement, num_envs: Sequence[int], **common: Any) -> list[Share]:
    """Return the share of each worker.

    Args:
        placement: The creators of each worker.
        num_envs: For each creator, the number of envs that it made.
        **common: The fields of `Share` that are the same for all workers.
    """
    starts = list(accumulate(num_envs, initial=0))
    blocks: list[list[WorkerBlock]] = [[] for _ in range(placement.num_workers)]
    for number, (worker, first, last) in enumerate(placement.blocks):
        blocks[worker].append(WorkerBlock(number, starts[first], starts[last], last - first))
    most = max(map(len, blocks))
    return [
        Share(worker, placement.num_workers, most, tuple(own), starts[-1], **common)
        for worker, own in enumerate(blocks)
    ]
