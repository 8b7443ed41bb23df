"""Let contestants take turns in short slices, and compare the slices of each turn.

The speed of a shared machine can change by a factor of two within seconds. So slices are short, and a ratio
is only taken between two slices of the same turn, which ran under the same conditions.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from shoal.cli._failures import describe_failure, is_of_an_env
from shoal.cli._loops import Slice

SLICE_SECONDS = 0.08
LAST_PATIENCE_SECONDS = 3.0  # after Ctrl-C, which may have ended the workers of other libraries too
PATIENCE_SECONDS = 60.0  # for a contestant that hangs, added to ten times what its env has taken before


class Contestant(Protocol):
    """Something that can be measured in slices, such as `Timed`."""

    def slice(self, seconds: float) -> Slice:
        """Run for that time."""

    def close(self) -> None:
        """Release all resources."""


@dataclass
class Outcome:
    """Collect the slices of all turns.

    Attributes:
        turns: For each turn, the slice of each contestant by name.
        failures: For each contestant that failed, the reason in one line. Its slices do not count.
        remarks: Lines to print below the table.
        env_failure: The traceback of the first error that an env raised in a vec of Shoal; "" if none has.
    """

    turns: list[dict[str, Slice]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    env_failure: str = ""

    def take_turn(
        self,
        contestants: Mapping[str, Contestant],
        seconds: float = SLICE_SECONDS,
        *,
        patience: float | None = None,
        show: Callable[[str], None] = lambda name: None,
    ) -> dict[str, Slice]:
        """Run a slice of each contestant. A contestant that fails is closed, and skipped in later turns.

        Args:
            contestants: By name.
            seconds: Length of a slice.
            patience: Seconds after which a slice counts as failed.
            show: Called with each name before its slice.

        Returns:
            The slices of this turn.
        """
        turn: dict[str, Slice] = {}
        for name in in_order(list(contestants), len(self.turns)):
            show(name)
            if name in self.failures:
                continue
            try:
                with time_limit(patience):
                    turn[name] = contestants[name].slice(seconds)
            except Exception as error:
                self.fail(name, error)
                end(contestants[name].close)  # now, so that it does not slow down the others
        self.turns.append(turn)
        return turn

    def fail(self, name: str, error: Exception) -> None:
        """Record why a contestant failed."""
        self.failures[name] = why(error)
        if not self.env_failure and is_of_an_env(error):
            self.env_failure = describe_failure(error)

    def rates(self, name: str) -> list[float]:
        """Return the contestant's steps per second in each of its turns."""
        return [rate for rate, _ in self.pairs(name, name)]

    def pairs(self, name: str, other: str) -> list[tuple[float, float]]:
        """Return the steps per second of two contestants, for each turn that has both."""
        if name in self.failures or other in self.failures:
            return []
        return [(turn[name].rate, turn[other].rate) for turn in self.turns if name in turn and other in turn]

    def ratios(self, name: str, reference: str) -> list[float]:
        """Return the ratio of two contestants, for each turn that has both."""
        return [rate / limit for rate, limit in self.pairs(name, reference)]


def turns_for(seconds: float, at_least: int = 1) -> Iterator[int]:
    """Count turns until the time is over; the last turn may take longer."""
    begun, turn = perf_counter(), 0
    while turn < at_least or perf_counter() - begun < seconds:
        yield turn
        turn += 1


def in_order(names: list[str], turn: int) -> list[str]:
    """Change the order each turn: no contestant is always first, or always after the same other one."""
    direction = -1 if turn % 2 else 1
    return [names[(turn + direction * place) % len(names)] for place in range(len(names))]


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, median, high = np.quantile(list(values), [0.25, 0.5, 0.75]).tolist()
    return low, median, high


class Unfit(Exception):
    """A contestant cannot take part; the message says why."""


class NoAnswer(Unfit):
    """A contestant did not answer in time."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `NoAnswer` if the block takes longer. Works in the main thread only, which gets the signal."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise NoAnswer(f"no answer for {seconds:.0f} s")

    begun = perf_counter()
    handler = signal.signal(signal.SIGALRM, ring)
    # The alarm repeats every second, in case the block catches the first exception.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # restore an alarm that was set before
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (perf_counter() - begun)), interval)


def end(close: Callable[[], None], patience: float = PATIENCE_SECONDS) -> None:
    """Call `close`; ignore its errors and warnings, and give up after a time."""
    with suppress(Exception), time_limit(patience), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close()


def why(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, (EOFError, ConnectionError)):
        return "a worker process has died"
    message = " ".join(str(error).split())
    if isinstance(error, Unfit):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
