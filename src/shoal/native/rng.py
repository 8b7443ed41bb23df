"""One random stream per env: a key and a counter. So threads and other envs do not influence the stream.

A random number is a function of key and counter: the finalizer of SplitMix64, applied twice, with the key
added before each time. The arithmetic is written twice, here for Python and in `rng_compiled.py` for Numba.
Tests compare the two.
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
    """Apply the finalizer of SplitMix64."""
    number = (number ^ number >> 30) * FIRST & WORD
    number = (number ^ number >> 27) * SECOND & WORD
    return number ^ number >> 31


def draw(key: int, counter: int) -> int:
    """Return the 64 random bits at a position of a stream."""
    return mix(mix(counter * GOLDEN + key & WORD) + key & WORD)


def no_such_draw(name: str) -> str:
    """Return the error message for a method that a stream does not have."""
    instead = {
        "choice": "items[rng.integers(len(items))] chooses one",
        "random": "rng.uniform() is the same",
        "randint": "rng.integers(low, high) is the same",
        "standard_normal": "rng.normal() is the same",
    }
    hint = f": {instead[name]}" if name in instead else ". Build other distributions from these"
    return f"rng has uniform(low, high), normal(mean, deviation) and integers(low, high), and no {name}{hint}"


class Rng:
    """A random stream in plain Python, for `debug=True`.

    Args:
        place: An array of key and counter. Drawing a number changes it in place.

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
        """Raise an error that names the available methods."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(no_such_draw(name))

    def _next(self) -> int:
        key, counter = self._place.tolist()
        self._place[1] = counter + 1 & WORD
        return draw(key, counter)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Draw a number from `low` up to `high`."""
        return low + (high - low) * ((self._next() >> 11) * TO_FRACTION)

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> float:
        """Draw a number from a normal distribution."""
        radius = math.sqrt(-2.0 * math.log(1.0 - (self._next() >> 11) * TO_FRACTION))
        return mean + deviation * (radius * math.cos(2.0 * math.pi * ((self._next() >> 11) * TO_FRACTION)))

    def integers(self, low: int, high: int | None = None) -> int:
        """Draw an integer from `low` up to but not including `high`; with one argument, from 0 up to it.

        If the range is empty or has more than 2**32 integers, the result is `low`.
        """
        if high is None:
            low, high = 0, low
        count = int(high) - int(low)
        if not 0 < count <= 1 << 32:
            return int(low)  # a kernel cannot raise
        # Lemire's method: the high half of the product is the number. Products that would make some numbers
        # more likely are drawn again.
        while True:
            product = (self._next() >> 32) * count
            if product & 0xFFFFFFFF >= (1 << 32) % count:
                return int(low) + (product >> 32)


def keys_of(seeds: Sequence[int | None]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the key of each seed, and whether there is a seed.

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
        while True:  # mix the seed word by word; it may have any size
            key = mix(key + (seed & WORD) + GOLDEN & WORD)
            seed >>= 64
            if not seed:
                break
        keys[index] = key
    return keys, given


def fresh_keys(count: int) -> NDArray[np.uint64]:
    """Return random keys, for envs without a seed."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64).copy()
