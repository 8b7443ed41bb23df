"""Placement: decide which worker holds which envs: creators -> workers -> blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from shoal.errors import ArgumentError
from shoal.vector.batching import Batching
from shoal.vector.engine import BlockRange
from shoal.vector.options import positive_integer


@dataclass(frozen=True)
class Placement:
    """How the creators of a vec are split, in the order of their rows.

    Attributes:
        own: The number of creators whose envs this process steps itself. They come first.
        blocks: For each block, its worker, its first creator and one past its last creator.
    """

    own: int
    blocks: list[tuple[int, int, int]]

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return 1 + max(worker for worker, _, _ in self.blocks)

    def of_worker(self, worker: int) -> list[int]:
        """Return the creators of a worker."""
        return [unit for owner, first, last in self.blocks if owner == worker for unit in range(first, last)]


@dataclass(frozen=True)
class WorkerBlock(BlockRange):
    """A block of a worker.

    Attributes:
        units: The number of creators whose envs are in it.
    """

    units: int


def place(
    batching: Batching, num_workers: Any, envs_per_worker: Any, cores: int, *, parent_steps: bool
) -> Placement:
    """Decide which worker holds which creators.

    Raises:
        ArgumentError: If the arguments cannot be satisfied.
    """
    count = len(batching.creators)
    if batching.order is None:
        return place_sync(count, num_workers, envs_per_worker, cores, parent_steps=parent_steps)
    return place_async(
        count, num_workers, envs_per_worker, cores, batch_size=batching.batch_size, order=batching.order
    )


def place_sync(
    creators: int, num_workers: Any, envs_per_worker: Any, cores: int, *, parent_steps: bool
) -> Placement:
    """Give each worker one block, for a vec whose batches hold all blocks.

    Raises:
        ArgumentError: If the arguments cannot be satisfied.
    """
    sizes = split(creators, num_workers, envs_per_worker, cores, parent_steps=parent_steps)
    ends = list(pairwise(accumulate(sizes, initial=0)))
    blocks = [(worker, *end) for worker, end in enumerate(ends[parent_steps:])]
    return Placement(sizes[0] if parent_steps else 0, blocks)


def place_async(
    creators: int, num_workers: Any, envs_per_worker: Any, cores: int, *, batch_size: int, order: str
) -> Placement:
    """Give each worker several blocks, of a size that divides the batch size.

    Raises:
        ArgumentError: If the arguments cannot be satisfied.
    """
    sizes = split(creators, num_workers, envs_per_worker, cores, parent_steps=False)
    workers = len(sizes)
    spread = order == "fifo" and envs_per_worker is None
    if spread and creators % batch_size == 0 and batch_size % workers == 0:
        # Each batch is spread over all workers, and its rows adjoin. All cores step the next batch while the
        # learner uses the last one.
        size = batch_size // workers
        owners = [block % workers for block in range(creators // size)]
    else:
        size = math.gcd(batch_size, *sizes)
        # With a single block, a worker would be idle while its rows are in a batch. In smaller blocks, fewer
        # envs wait for a slow one.
        least = 2 if order == "fifo" else 8
        while size > 1 and min(sizes) // size < least:
            size //= next(factor for factor in range(2, size + 1) if size % factor == 0)
        owners = [worker for worker, own in enumerate(sizes) for _ in range(own // size)]
    blocks = [(owner, block * size, (block + 1) * size) for block, owner in enumerate(owners)]
    return Placement(0, blocks)


def split(
    creators: int,
    num_workers: Any,
    envs_per_worker: Any,
    cores: int,
    *,
    parent_steps: bool,
) -> list[int]:
    """Return the number of creators of each process; the parent comes first if it steps envs.

    Raises:
        ArgumentError: If the arguments cannot be satisfied.
    """
    for name, value in (("num_workers", num_workers), ("envs_per_worker", envs_per_worker)):
        if value is not None:
            positive_integer(name, value)
    if num_workers is not None and envs_per_worker is not None:
        raise ArgumentError("num_workers and envs_per_worker: each follows from the other, pass one of them")
    most = creators - parent_steps
    if most < 1:
        raise ArgumentError("parent_steps: expected at least 2 envs, one for a worker, got 1")
    if envs_per_worker is not None:
        if parent_steps and envs_per_worker >= creators:
            raise ArgumentError(
                f"envs_per_worker: expected less than {creators}, so that something is left for a worker, "
                f"got {envs_per_worker}"
            )
        return [min(envs_per_worker, creators - first) for first in range(0, creators, envs_per_worker)]
    if num_workers is None:
        num_workers = max(1, min(cores - parent_steps, most))
    if num_workers > most:
        raise ArgumentError(f"num_workers: expected at most {most}, one per creator, got {num_workers}")
    processes = int(num_workers) + parent_steps
    return [creators // processes + (process < creators % processes) for process in range(processes)]
