"""What the parent tells a worker: the world it lives in, and its share of the vec."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._native import lines_nbytes
from shoal.buffers import Arena
from shoal.layout import Layout
from shoal.vector._cores import Patience


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

    def enter(self) -> None:
        """Make it this process's own."""
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        if self.folder is not None:
            os.chdir(self.folder)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        for pickled in self.registrations:
            with suppress(Exception):  # one that cannot be had here is missed only if it is asked for
                name, spec = pickle.loads(pickled)
                gymnasium.registry[name] = spec


@dataclass(frozen=True)
class Share:
    """A worker's part of the vec.

    Attributes:
        worker: Its number.
        num_workers: Of the pool.
        rows: All rows of the vec.
        first_env: Its first env.
        num_envs: How many it has.
        first_row: Its first row.
        last_row: One past its last row.
        observation: The space of a row's observation.
        action: The space of a row's action.
        mode: The autoreset mode.
        flat: As for `Run`.
        patience: How long to wait for a call in which way.
        keeps: Whether rows are kept before each step, in a second arena behind the first.
        due: For a worker in the place of another: the seed of each env's first reset, unless told otherwise.
    """

    worker: int
    num_workers: int
    rows: int
    first_env: int
    num_envs: int
    first_row: int
    last_row: int
    observation: Space[Any]
    action: Space[Any]
    mode: AutoresetMode
    flat: bool
    patience: Patience
    keeps: bool
    due: list[int | None] | None = None

    def layouts(self) -> tuple[Layout, Layout]:
        """Of observations and actions."""
        return Layout(self.observation), Layout(self.action)

    def nbytes(self) -> int:
        """Of the memory: the lines of the handshake, the arena, and a second one if rows are kept."""
        arena = Arena.nbytes(self.rows, *self.layouts())
        return lines_nbytes(self.num_workers) + (2 if self.keeps else 1) * arena

    def arena(self, block: NDArray[np.uint8]) -> Arena:
        """The arena in the memory."""
        return Arena.within(block[lines_nbytes(self.num_workers) :], self.rows, *self.layouts())

    def kept(self, block: NDArray[np.uint8]) -> Arena:
        """The rows as they were before the last step."""
        layouts = self.layouts()
        return Arena.within(block[-Arena.nbytes(self.rows, *layouts) :], self.rows, *layouts)
