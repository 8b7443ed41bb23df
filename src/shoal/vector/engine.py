"""Engine: the protocol of the part of a vec that runs the envs.

    vec.send --(actions in the arena)--> engine.begin_steps --> envs step, rows are written
    vec.recv <--(views of the rows)----- engine.wait_for <----- blocks are done

The vec (`vec.py`) checks arguments and the order of the verbs, and returns rows. The engine moves the envs.
It does not handle actions and observations: envs and vec read and write them in the arena.

An engine moves envs, and waits for them, in blocks. A synchronous vec always moves all blocks at once. An
asynchronous vec moves some blocks while the caller holds the others.

    HELD --(begin_steps, begin_reset)--> MOVING --(all its envs are done)--> DONE --(wait_for)--> HELD

Guarantees that an engine gives
  - The rows of a block change only while it is MOVING.
  - If a verb raises, the vec counts as failed until `begin_reset` of all blocks, or `restore`. Both work in
    any state of the engine: they drop blocks that are MOVING or DONE, and replace lost workers if possible.
  - `close` may be called in any state, and twice. It ends everything.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WorkerError
from shoal.stepping.row_slice import Infos


@dataclass(frozen=True)
class BlockRange:
    """The envs of one block.

    Attributes:
        number: The block's number in the vec.
        first_env: The first env of the block.
        last_env: The number after the last env of the block.
    """

    number: int
    first_env: int
    last_env: int

    @property
    def envs(self) -> slice:
        """The envs of the block, as a slice of all envs."""
        return slice(self.first_env, self.last_env)

    @property
    def num_envs(self) -> int:
        """The number of envs in the block."""
        return self.last_env - self.first_env


@dataclass(frozen=True)
class Reset:
    """The reset that the caller asked for.

    Attributes:
        chosen: Whether to reset each env of the vec. An engine does not change it.
        seeds: The seed of each env of the vec; with None, the env continues its random stream.
        options: The options for `reset` of each env.
    """

    chosen: NDArray[np.bool_]
    seeds: Sequence[int | None]
    options: dict[str, Any] | None

    @property
    def is_whole(self) -> bool:
        """Whether all envs are reset."""
        return bool(self.chosen.all())


class Engine(ABC):
    """Runs the envs of a vec.

    Attributes:
        blocks: The blocks of the vec, in the order of their envs.
    """

    blocks: Sequence[BlockRange]
    needs_first_reset = False
    """Whether envs have no state before their first reset, so that they cannot be stepped."""
    fast_step: Callable[[Any], Any] | None = None
    """A function that checks actions, steps all blocks with them, and returns what `VectorEnv.step` returns.
    It returns None if it does not accept these actions, and False if an env raised. The attribute is None if
    the engine has no fast path."""

    info_arrays: Callable[[Sequence[int]], dict[str, Any]] | None = None
    """A function that returns infos of blocks as arrays over their rows, in Gymnasium's form. The vec adds
    them to those of `take_infos`. The attribute is None if the engine has no such infos."""

    def fast_step_error(self) -> Exception:
        """Make the error of a `fast_step` that returned False."""
        raise NotImplementedError

    # -- moving ----------------------------------------------------------------------------------------

    def check(self, reset: Reset) -> None:  # noqa: B027 - optional
        """Raise if the envs do not accept this reset. No env has moved yet."""

    @abstractmethod
    def begin_reset(self, blocks: Sequence[int], reset: Reset) -> None:
        """Begin to reset the chosen envs of these blocks.

        If these are all blocks of the vec, first drop the verbs that are under way.
        """

    @abstractmethod
    def begin_steps(self, blocks: Sequence[int]) -> None:
        """Begin to step all envs of these blocks with the actions in the arena."""

    def step_all(self) -> Infos | None:
        """Begin a step of all blocks of a synchronous vec.

        Returns:
            The infos if the step is over when this returns. None if the vec must call `wait_for` and
            `take_infos`.
        """
        self.begin_steps(range(len(self.blocks)))
        return None

    @abstractmethod
    def wait_for(self, blocks: Sequence[int]) -> None:
        """Wait until these blocks are done. Then the caller holds them.

        Raises:
            Exception: The error of an env, or of the worker that holds it.
        """

    def wait_for_any(self, count: int) -> list[int]:
        """Wait until `count` blocks are done, and return the first ones. Then the caller holds them.

        Only asynchronous vecs call this.
        """
        raise NotImplementedError

    @abstractmethod
    def take_infos(self, blocks: Sequence[int]) -> Infos:
        """Return the infos of blocks that the caller holds, as (row, info) pairs.

        Row 0 is the first row of the first of these blocks. The rows of the others follow in their order.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until no block is MOVING. Blocks that are DONE stay so until the vec waits for them.

        Raises:
            Exception: The error of an env, or of the worker that holds it.
        """

    # -- access to the envs ----------------------------------------------------------------------------

    @abstractmethod
    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every env, or read an attribute; return one result per env."""

    @abstractmethod
    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env to its own value."""

    @abstractmethod
    def render(self) -> list[Any]:
        """Return the frame of every env."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state of all envs in a form that can be pickled, while no block is MOVING."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Drop the verbs that are under way, and continue from a state that `snapshot` returned."""

    def kind(self) -> dict[str, Any]:
        """Return the properties in which two engines must agree to exchange a snapshot, by name."""
        return {}

    # -- life ------------------------------------------------------------------------------------------

    def check_owner(self) -> None:  # noqa: B027 - optional
        """Raise if this process cannot use the engine, because it is a fork of the process that made it."""

    def interrupt(self) -> None:  # noqa: B027 - optional
        """Make the verb that is under way, in this thread or another, end soon, because the vec is closed."""

    @abstractmethod
    def close(self) -> list[Exception]:
        """Close all envs and end all workers or threads; return the errors of the envs."""

    def figures(self) -> dict[str, float]:
        """Return counts and times of the workers, by the names of `shoal.vector.statistics.report`."""
        return {}

    def counts(self) -> dict[str, Any]:
        """Return the counts that `repr` of the vec shows, by the names of the arguments."""
        return {}


class OwnedEngine(Engine):
    """An engine with workers or threads, which a fork of the process that made it cannot use."""

    def __init__(self) -> None:
        self._owner = os.getpid()

    def check_owner(self) -> None:
        """Raise if this process is a fork of the process that made the engine."""
        if os.getpid() != self._owner:
            raise WorkerError(
                "this vec was made by the process from which this one was forked, and only that one can use "
                "it: make a new one here"
            )
