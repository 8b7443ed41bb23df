"""Contestants that take turns, in slices of some milliseconds.

A machine that is shared changes its speed by a factor of two within seconds. So slices are short, and a ratio
is only ever taken between two slices of the same turn, which have seen the same machine.

What counts is a call of an env's `step`. Under next-step autoreset a row that has ended is reset by the next
vector step, whatever its action: that row of that vector step is not counted.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

SLICE_SECONDS = 0.08
CHUNK_SECONDS = 0.002  # the clock is read that often: rarely against a step, often against a slice
LAST_PATIENCE_SECONDS = 3.0  # after Ctrl-C, which workers of others may have heard too, and be gone
PATIENCE_SECONDS = 60.0  # with what hangs, beside ten times what the env has been seen to take


class Loop:
    """A contestant: what steps, and the actions it steps with.

    Args:
        batches: Actions for one vector step each.

    Attributes:
        remark: What there is to say of it below the table.
    """

    remark = ""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def run(self, batches: Sequence[Any]) -> int:
        """Step with these; returns how many steps that were."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything."""


class BareLoop(Loop):
    """One env, stepped as often as a vector step would step all of its envs.

    Args:
        env: It has been reset. Whoever made it closes it.
        batches: A list of actions for each vector step.
    """

    def __init__(self, env: Any, batches: Sequence[Any]) -> None:
        super().__init__(batches)
        self._env = env
        self._is_old: bool | None = None

    def run(self, batches: Sequence[Any]) -> int:
        """Step with these, one action at a time."""
        if self._is_old is None:
            result = self._env.step(batches[0][0])
            self._is_old = len(result) == 4
            if any(result[2:-1]):
                self._env.reset()
        (self._run_old if self._is_old else self._run)(batches)
        return sum(map(len, batches))

    def _run(self, batches: Sequence[Any]) -> None:
        step, reset = self._env.step, self._env.reset
        for actions in batches:
            for action in actions:
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    reset()

    def _run_old(self, batches: Sequence[Any]) -> None:
        """Old gym's steps have four parts."""
        step, reset = self._env.step, self._env.reset
        for actions in batches:
            for action in actions:
                _, _, done, _ = step(action)
                if done:
                    reset()


class VectorLoop(Loop):
    """A vector env under next-step autoreset.

    Args:
        vec: It has been reset.
        batches: One for each vector step.
        end: Closes it.
    """

    def __init__(self, vec: Any, batches: Sequence[Any], end: Callable[[], None] | None = None) -> None:
        super().__init__(batches)
        self._step, self._rows, self._end = vec.step, vec.num_envs, end or vec.close
        self._ended = 0  # rows that the last vector step ended, and the next one resets

    def run(self, batches: Sequence[Any]) -> int:
        """Step with these."""
        step, rows, ended, steps = self._step, self._rows, self._ended, 0
        for batch in batches:
            steps += rows - ended
            _, _, terminations, truncations, _ = step(batch)
            ended = int(np.count_nonzero(terminations | truncations))
        self._ended = ended
        return steps

    def close(self) -> None:
        """Close it."""
        self._end()


class AgentsLoop(VectorLoop):
    """A vec of ours with several agents per env, of which only it knows who has acted."""

    def __init__(self, vec: Any, batches: Sequence[Any]) -> None:
        super().__init__(vec, batches)
        self._stats = vec.stats

    def run(self, batches: Sequence[Any]) -> int:
        """Step with these; counts what agents have done."""
        step, before = self._step, self._stats()["transitions"]
        for batch in batches:
            step(batch)
        return int(self._stats()["transitions"] - before)


class Timed:
    """A loop that has been warmed up, and can be run for a time.

    Attributes:
        first_seconds: That its first vector step took.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop, self._next = loop, 0
        size, self.first_seconds = 1, self._time(1)
        taken = self.first_seconds
        while taken < CHUNK_SECONDS and size < len(loop.batches):
            size = min(2 * size, len(loop.batches))
            taken = self._time(size)
        starts = range(0, len(loop.batches), size)
        self._chunks = [loop.batches[start : start + size] for start in starts]

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()

    def _time(self, size: int) -> float:
        begun = perf_counter()
        self._loop.run(self._loop.batches[:size])
        return perf_counter() - begun

    def rate(self, seconds: float) -> float:
        """Steps per second over that time: at least one vector step, and not much longer."""
        run, chunks, at, steps = self._loop.run, self._chunks, self._next, 0
        begun = perf_counter()
        while True:
            steps += run(chunks[at % len(chunks)])
            at += 1
            taken = perf_counter() - begun
            if taken >= seconds:
                self._next = at
                return steps / taken


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        turns: For each turn, the steps per second of everybody.
        failures: Why somebody is not among them, in a few words.
        remarks: Lines to print below the table.
    """

    turns: list[dict[str, float]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def drop(self, name: str, why: str) -> None:
        """Forget all about somebody, but why."""
        self.failures[name] = why
        for turn in self.turns:
            turn.pop(name, None)

    def rates(self, name: str) -> list[float]:
        """In each turn that had it."""
        return [turn[name] for turn in self.turns if name in turn]

    def ratios(self, name: str, reference: str) -> list[float]:
        """Within each turn that had both."""
        return [turn[name] / turn[reference] for turn in self.turns if name in turn and reference in turn]


def take_turns(
    contestants: Mapping[str, Timed],
    outcome: Outcome,
    seconds: float,
    patience: float | None,
    show: Callable[[float], None],
) -> None:
    """Give everybody a slice in every turn, until the time is over. Whoever fails is left out from then on.

    Args:
        contestants: By name.
        outcome: Written here.
        seconds: For all together; a turn that has begun is finished, and there is at least one.
        patience: Seconds after which a slice will not come back.
        show: Told after each slice how many seconds have gone by.
    """
    still, begun = dict(contestants), perf_counter()
    while still:
        turn: dict[str, float] = {}
        for name in in_order(list(still), len(outcome.turns)):
            try:
                with time_limit(patience):
                    turn[name] = still[name].rate(SLICE_SECONDS)
            except Exception as error:
                outcome.drop(name, why(error))
                end(still.pop(name).close)  # now, so that it is in nobody's way
            show(perf_counter() - begun)
        outcome.turns.append(turn)
        if perf_counter() - begun >= seconds:
            return


def in_order(names: list[str], turn: int) -> list[str]:
    """Nobody is always first, or always after the one who leaves the caches cold."""
    first = turn // 2 % len(names)
    rotated = names[first:] + names[:first]
    return rotated[::-1] if turn % 2 else rotated


class Unfit(Exception):
    """A contestant that cannot take part; the message says it all."""


class NoAnswer(Unfit):
    """It has not come back in time."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `NoAnswer` in what hangs. Without effect outside of the main thread, where no signal can."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise NoAnswer(f"no answer for {seconds:.0f} s")

    begun = perf_counter()
    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, if somebody swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (perf_counter() - begun)), interval)


def end(close: Callable[[], None], patience: float = PATIENCE_SECONDS) -> None:
    """Close something, whatever it says to that."""
    with suppress(Exception), time_limit(patience), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close()


def why(error: BaseException) -> str:
    """What went wrong, in a line."""
    if isinstance(error, (EOFError, ConnectionError)):
        return "a worker process has died"
    message = " ".join(str(error).split())
    if isinstance(error, Unfit):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
