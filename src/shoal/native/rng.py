"""One random stream per env: a key and a counter, so that no thread and no other env has a say in it.

A number is a function of both: the finalizer of SplitMix64, twice, with the key added before each time. The
same arithmetic stands here twice, for Python and for Numba (`rng_compiled.py`); tests hold them together.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
TO_FRACTION = 2.0**-53


def mix(number: int) -> int:
    """The finalizer of SplitMix64."""
    number = (number ^ number >> 30) * FIRST & WORD
    number = (number ^ number >> 27) * SECOND & WORD
    return number ^ number >> 31


def draw(key: int, counter: int) -> int:
    """The 64 bits at a place of a stream."""
    return mix(mix(counter * GOLDEN + key & WORD) + key & WORD)


def no_such_draw(name: str) -> str:
    """What to say of a call that a stream does not have."""
    instead = {
        "choice": "items[rng.integers(len(items))] chooses one",
        "random": "rng.uniform() is the same",
        "randint": "rng.integers(low, high) is the same",
        "standard_normal": "rng.normal() is the same",
    }
    hint = f": {instead[name]}" if name in instead else ". All else is made of these"
    return f"rng has uniform(low, high), normal(mean, deviation) and integers(low, high), and no {name}{hint}"


class Rng:
    """A stream, as `debug=True` has it.

    Args:
        place: Key and counter, which are changed in place.

    Example:
        >>> import numpy as np
        >>> from shoal.native import Rng
        >>> rng = Rng(np.array([1, 0], np.uint64))
        >>> 0 <= rng.integers(6) < 6, 2.0 <= rng.uniform(2.0, 3.0) < 3.0
        (True, True)
    """

    def __init__(self, place: NDArray[np.uint64]) -> None:
        self._place = place

    def __getattr__(self, name: str) -> Any:
        """What NumPy's generators have, and this one has not."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(no_such_draw(name))

    def _next(self) -> int:
        key, counter = self._place.tolist()
        self._place[1] = counter + 1 & WORD
        return draw(key, counter)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number from `low` up to `high`."""
        return low + (high - low) * ((self._next() >> 11) * TO_FRACTION)

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> float:
        """A number of a normal distribution."""
        radius = math.sqrt(-2.0 * math.log(1.0 - (self._next() >> 11) * TO_FRACTION))
        return mean + deviation * (radius * math.cos(2.0 * math.pi * ((self._next() >> 11) * TO_FRACTION)))

    def integers(self, low: int, high: int | None = None) -> int:
        """An integer from `low` up to, not including, `high`; from 0 if only one is given.

        Up to 2**32 different ones; `low` if there are none, or more.
        """
        if high is None:
            low, high = 0, low
        count = int(high) - int(low)
        if not 0 < count <= 1 << 32:
            return int(low)  # there is nobody to raise to in a kernel
        # Lemire's way: multiplied, the high half is the number; what would make some more likely is drawn
        # again.
        while True:
            product = (self._next() >> 32) * count
            if product & 0xFFFFFFFF >= (1 << 32) % count:
                return int(low) + (product >> 32)


def keys_of(seeds: Sequence[int | None]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The key of each seed, and whether there is one.

    Raises:
        ArgumentError: If a seed is negative.
    """
    given = np.array([seed is not None for seed in seeds], np.bool_)
    keys = np.zeros(len(seeds), np.uint64)
    for index, seed in enumerate(seeds):
        if seed is None:
            continue
        if seed < 0:
            raise ArgumentError(f"seed: expected integers from 0 on, got {seed}")
        key = 0
        while True:  # word by word, as large as it may be
            key = mix(key + (seed & WORD) + GOLDEN & WORD)
            seed >>= 64
            if not seed:
                break
        keys[index] = key
    return keys, given


def fresh_keys(count: int) -> NDArray[np.uint64]:
    """Keys that nobody has asked for."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64).copy()
