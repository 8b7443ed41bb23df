"""The loops that are timed: one for every vector env, one for the bare env that sets the limit.

What counts is a call of an env's `step`. Under next-step autoreset a row that has ended is reset by the next
vector step, whatever its action: that row of that vector step is not a step and is not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

NUM_BATCHES = 256
NUM_SCALARS = 8192
CHUNK_SECONDS = 1e-3  # the clock is read that often: rarely against a step's cost, often against a slice


@dataclass
class Vector:
    """A vector env as its adapter hands it over.

    Attributes:
        step: Takes a batch of actions. The peer's own method wherever that is possible.
        rows: Rows that a call of `step` returns.
        counts_resets: `step` returns rows that were resets (next-step autoreset), so they are left out. Its
            result must then have terminations and truncations in the third and fourth place.
        note: What a reader of the table should know.
        begin: What is done first in each slice, if steps overlap.
        finish: What is done last: returns the batches that were under way. They, and those of `step`, say in
            `resets` which rows were.
    """

    step: Callable[[Any], Any]
    rows: int
    counts_resets: bool
    note: str = ""
    begin: Callable[[], None] | None = None
    finish: Callable[[], Sequence[Any]] | None = None


@dataclass
class Bare:
    """Envs without any vector env around them; as a rule one."""

    steps: Sequence[Callable[[Any], Any]]
    resets: Sequence[Callable[[], Any]]
    note: str = ""


class VectorLoop:
    """Steps a vector env with actions made in advance."""

    def __init__(self, vector: Vector, num_actions: int, *, endless: bool) -> None:
        self.step, self.rows = vector.step, vector.rows
        self.start, self.finish = vector.begin, vector.finish
        self.counts_resets = vector.counts_resets and not endless
        # Rows that ended in the step before; they stand between chunks and between slices too.
        self.ended = 0
        draws = np.random.default_rng(0).integers(num_actions, size=(NUM_BATCHES, vector.rows))
        self.actions = list(draws.astype(np.int64))

    def run(self, batches: Sequence[Any]) -> int:
        """Step with each batch; returns the steps."""
        step = self.step
        if not self.counts_resets:
            for batch in batches:
                result = step(batch)
            del result
            return len(batches) * self.rows
        if self.finish is not None:
            return sum(self.rows - int(np.count_nonzero(step(batch).resets)) for batch in batches)
        resets, ended = 0, self.ended
        for batch in batches:
            resets += ended
            result = step(batch)
            ended = int(np.count_nonzero(result[2] | result[3]))
        self.ended = ended
        return len(batches) * self.rows - resets

    def begin(self) -> None:
        """A slice begins."""
        if self.start is not None:
            self.start()

    def end(self) -> int:
        """A slice is over: wait for what is under way; returns its steps."""
        if self.finish is None:
            return 0
        return sum(self.rows - int(np.count_nonzero(batch.resets)) for batch in self.finish())


class BareLoop:
    """Steps envs in turn, each reset at the end of its episode: no vector env can be faster per process."""

    def __init__(self, bare: Bare, num_actions: int) -> None:
        self.bare = bare
        self.step, self.reset = bare.steps[0], bare.resets[0]
        draws = np.random.default_rng(0).integers(num_actions, size=NUM_SCALARS)
        self.actions = list(draws.astype(np.int64))  # NumPy scalars, which is what envs get from a batch

    def run(self, actions: Sequence[Any]) -> int:
        """Step with each action; returns the steps."""
        if len(self.bare.steps) > 1:
            return self._run_in_turn(actions)
        step, reset = self.step, self.reset
        for action in actions:
            observation, reward, terminated, truncated, info = step(action)
            if terminated or truncated:
                reset()
        del observation, reward, info
        return len(actions)

    def _run_in_turn(self, actions: Sequence[Any]) -> int:
        envs = itertools.cycle(zip(self.bare.steps, self.bare.resets, strict=True))
        for action, (step, reset) in zip(actions, envs):  # noqa: B905 - envs are endless
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
        return len(actions)

    def begin(self) -> None:
        """Nothing is under way between slices."""

    def end(self) -> int:
        """Nor is it at the end of one."""
        return 0


class Clocked:
    """Runs a loop for a time, in chunks, between which the clock is read."""

    def __init__(self, loop: VectorLoop | BareLoop) -> None:
        self.loop = loop
        self.turn = 0
        size = 1
        while True:
            self.chunks = [loop.actions[at : at + size] for at in range(0, len(loop.actions), size)]
            self.run_for(0)  # what is slow only the first time
            _, elapsed = self.run_for(0)
            if elapsed >= CHUNK_SECONDS or size == len(loop.actions):
                return
            size *= 2

    def run_for(self, seconds: float) -> tuple[int, float]:
        """At least one chunk, and no further one that would outlast the time; steps and seconds."""
        run, chunks, turn = self.loop.run, self.chunks, self.turn
        steps = done = 0
        begun = perf_counter()
        self.loop.begin()
        while True:
            steps += run(chunks[turn % len(chunks)])
            elapsed = perf_counter() - begun
            turn += 1
            done += 1
            if elapsed + elapsed / done >= seconds:
                self.turn = turn
                steps += self.loop.end()
                return steps, perf_counter() - begun
