"""What the parent tells a worker: the world it lives in, and its share of the vec."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._native import handshake_nbytes
from shoal.cores import Patience
from shoal.processes.placement import Placement, WorkerBlock
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.vector.engine import BlockRange

LAST_WORDS = 1 << 12  # bytes, of each worker; they take no memory until they are written


@dataclass(frozen=True)
class World:
    """What a new process must know of its parent before it can unpickle a creator.

    Attributes:
        path: The parent's ``sys.path``.
        folder: Its working directory.
        environment: Its environment variables.
        arguments: Its ``sys.argv``.
        show_crashes: Whether Python is to print a traceback if it crashes.
        registrations: Its registry of Gymnasium ids: pickles of each with its spec.
    """

    path: list[str]
    folder: str | None
    environment: dict[str, str]
    arguments: list[str]
    show_crashes: bool
    registrations: list[bytes]

    def enter(self) -> dict[str, EnvSpec]:
        """Make it this process's own; returns what was registered."""
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        if self.folder is not None:
            os.chdir(self.folder)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        specs: dict[str, EnvSpec] = {}
        for pickled in self.registrations:
            with suppress(Exception):  # one that cannot be had here is missed only if it is asked for
                specs.update([pickle.loads(pickled)])
        gymnasium.registry.update(specs)
        return specs


@dataclass(frozen=True)
class Share:
    """A worker's part of the vec.

    Attributes:
        worker: Its number.
        num_workers: Of the pool.
        most_blocks: That any of them has.
        blocks: The blocks of the worker.
        num_envs: Of the vec.
        agents: Rows of an env.
        observation: The space of a row's observation.
        action: The space of a row's action.
        mode: The autoreset mode.
        flat: As for `RowSlice`.
        patience: How long to wait for a call in which way.
        keeps: Whether rows are kept before each step, in a second arena behind the first.
        due: For a worker in the place of another: the seed of each env's first reset, unless told otherwise,
            by block.
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
    due: list[list[int | None]] | None = None

    def layouts(self) -> tuple[Layout, Layout]:
        """Of observations and actions."""
        objects = not self.flat
        return Layout(self.observation, objects=objects), Layout(self.action, objects=objects)

    def nbytes(self) -> int:
        """Of the memory: what the handshake needs, last words, the arena, a second one if rows are kept."""
        arena = Arena.nbytes(self.num_envs * self.agents, *self.layouts())
        return self._arena_start() + (2 if self.keeps else 1) * arena

    def _arena_start(self) -> int:
        return handshake_nbytes(self.num_workers, self.most_blocks) + self.num_workers * LAST_WORDS

    def last_message(self, block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Where the worker leaves a message that it could not send."""
        start = handshake_nbytes(self.num_workers, self.most_blocks) + self.worker * LAST_WORDS
        return block[start : start + LAST_WORDS]

    def arena(self, block: NDArray[np.uint8]) -> Arena:
        """The arena in the memory."""
        start = self._arena_start()
        return Arena.within(block[start:], self.num_envs * self.agents, *self.layouts())

    def kept(self, block: NDArray[np.uint8]) -> Arena:
        """The rows as they were before the last step."""
        rows, layouts = self.num_envs * self.agents, self.layouts()
        return Arena.within(block[-Arena.nbytes(rows, *layouts) :], rows, *layouts)

    def rows_of(self, block: BlockRange, arena: Arena) -> Arena:
        """A block's rows."""
        return arena.rows(block.first_env * self.agents, block.last_env * self.agents)


def shares_of(placement: Placement, num_envs: Sequence[int], **common: Any) -> list[Share]:
    """Return the share of each worker, now that it is known how many envs each creator made."""
    starts = list(accumulate(num_envs, initial=0))
    blocks: list[list[WorkerBlock]] = [[] for _ in range(placement.num_workers)]
    for number, (worker, first, last) in enumerate(placement.blocks):
        blocks[worker].append(WorkerBlock(number, starts[first], starts[last], last - first))
    most = max(map(len, blocks))
    return [
        Share(worker, placement.num_workers, most, tuple(own), starts[-1], **common)
        for worker, own in enumerate(blocks)
    ]
