"""Step contestants in loops, and time the loops in slices.

The benchmarks also run this file in interpreters that have no Shoal: `benchmarks/loops.py` is a link to it.
So it imports only the standard library and NumPy, and works with NumPy 1.23.

A loop counts the calls of an env's `step`. Under next-step autoreset, the vector step after the end of an
episode resets the row and ignores its action. The loop does not count that row of that vector step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

CHUNK_SECONDS = 1e-3  # between two readings of the clock: much longer than a step, much shorter than a slice


@dataclass(frozen=True)
class Slice:
    """The result of one timed slice.

    Attributes:
        steps: Steps that were counted.
        seconds: Duration.
        rate: Steps per second.
    """

    steps: int
    seconds: float
    rate: float

    @classmethod
    def of(cls, *parts: tuple[int, float]) -> Slice:
        """Combine the steps and seconds of processes that ran at the same time, each with its own clock."""
        rate = sum(steps / seconds for steps, seconds in parts)
        return cls(sum(steps for steps, _ in parts), max(seconds for _, seconds in parts), rate)


class Loop:
    """Step a contestant. This is the base class of all loops.

    Args:
        note: A remark to print below the table.
        close: Releases all resources.
    """

    def __init__(self, note: str = "", close: Callable[[], None] = lambda: None) -> None:
        self.note, self.close = note, close

    def begin(self) -> None:
        """Prepare a slice; the clock is running."""

    def run(self, batches: Sequence[Any]) -> int:
        """Step once with each batch of actions; return the number of steps."""
        raise NotImplementedError

    def finish(self) -> int:
        """Wait for steps that are under way at the end of a slice; return the number of steps."""
        return 0


class Bare(Loop):
    """Step envs in turn without a vector env. One process cannot step them faster.

    Args:
        steps: The `step` of each env; all envs have been reset. A batch is one action, for the next env.
        resets: The `reset` of each env.
    """

    def __init__(self, steps: Sequence[Callable[[Any], Any]], resets: Sequence[Callable[[], Any]]) -> None:
        super().__init__()
        self._step, self._reset = steps[0], resets[0]
        self._envs = itertools.cycle(zip(steps, resets, strict=True))
        self._is_single, self._is_fast = len(steps) == 1, False

    def run(self, batches: Sequence[Any]) -> int:
        """Step once with each action; return the number of steps."""
        if not self._is_fast:
            return self._run_any(batches)
        step, reset = self._step, self._reset
        for action in batches:
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
        return len(batches)

    def _run_any(self, batches: Sequence[Any]) -> int:
        """Step several envs, or envs of old gym, whose steps return four values and not five."""
        result: Any = ()
        for action, (step, reset) in zip(batches, self._envs):  # noqa: B905 - the cycle is endless
            result = step(action)
            if result[2] or result[-2]:
                reset()
        self._is_fast = self._is_single and len(result) == 5
        return len(batches)


class Vector(Loop):
    """Step a vector env.

    Args:
        step: The library's own method where possible. It takes a batch of actions.
        rows: Rows that a call of `step` returns.
        counts_resets: `step` also returns rows that it has reset (next-step autoreset), and the loop leaves
            them out. The third and fourth item of the result must then be terminations and truncations.
        note: A remark to print below the table.
        begin: Called first in each slice, if steps overlap.
        finish: Called last in each slice; returns the batches that were under way. These batches, and those
            that `step` returns, mark the rows that were reset in `resets`.
        close: Closes the vector env.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        rows: int,
        *,
        counts_resets: bool,
        note: str = "",
        begin: Callable[[], None] | None = None,
        finish: Callable[[], Sequence[Any]] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(note, close)
        self.rows, self.counts_resets = rows, counts_resets
        self._step, self._begin, self._finish = step, begin, finish
        # Rows that the last vector step ended. The next one resets them, maybe in another slice.
        self._ended = 0

    def begin(self) -> None:
        """Send the first batches, if steps overlap."""
        if self._begin is not None:
            self._begin()

    def run(self, batches: Sequence[Any]) -> int:
        """Step once with each batch; return the number of steps."""
        step, rows = self._step, self.rows
        if not self.counts_resets:
            for batch in batches:
                _ = step(batch)  # keeps the result until the next one, as a learner does
            return len(batches) * rows
        if self._finish is not None:
            return sum(self._count(step(batch)) for batch in batches)
        resets, ended = 0, self._ended
        for batch in batches:
            resets += ended
            result = step(batch)
            ended = int(np.count_nonzero(result[2] | result[3]))
        self._ended = ended
        return len(batches) * rows - resets

    def finish(self) -> int:
        """Receive the batches that are under way; return the number of steps."""
        return 0 if self._finish is None else sum(map(self._count, self._finish()))

    def _count(self, batch: Any) -> int:
        return self.rows - int(np.count_nonzero(batch.resets))


class Timed:
    """Run a loop in timed slices, with actions that were made in advance.

    Args:
        loop: What to run.
        batches: Actions; the loop starts again with the first batch after the last one.
    """

    def __init__(self, loop: Loop, batches: Sequence[Any]) -> None:
        self.loop, self.batches = loop, batches
        self._next = 0
        self._split(1)

    def warm_up(self) -> float:
        """Find out how many batches to run between two readings of the clock.

        Returns:
            The seconds that the first batch took.
        """
        size, first = 1, self.slice(0).seconds
        # Each size runs twice before it is judged: work that is done only once must not count.
        while self.slice(0).seconds < CHUNK_SECONDS and size < len(self.batches):
            size *= 2
            self._split(size)
            self.slice(0)
        return first

    def slice(self, seconds: float) -> Slice:
        """Run at least one chunk of batches, and further ones as long as they fit into the time."""
        run, chunks, at = self.loop.run, self._chunks, self._next
        steps = done = 0
        begun = perf_counter()
        self.loop.begin()
        while True:
            steps += run(chunks[at % len(chunks)])
            elapsed = perf_counter() - begun
            at += 1
            done += 1
            if elapsed + elapsed / done >= seconds:
                self._next = at
                steps += self.loop.finish()
                return Slice.of((steps, perf_counter() - begun))

    def close(self) -> None:
        """Close the loop."""
        self.loop.close()

    def _split(self, size: int) -> None:
        starts = range(0, len(self.batches), size)
        self._chunks = [self.batches[start : start + size] for start in starts]
