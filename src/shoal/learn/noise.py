"""Noise for exploring: normal numbers, independent from step to step (white) or not (pink, red).

The spectrum of pink noise falls with the frequency, that of red noise with its square. A sequence is made of
random amplitudes for all frequencies by an inverse Fourier transform, and scaled to a variance of 1, so that
each number alone is a normal one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXPONENTS = {"white": 0.0, "pink": 1.0, "red": 2.0}


class Noise:
    """Noise for the actions of rows. Each row has a process of its own, which begins anew with its episode.

    Args:
        color: "white", "pink" or "red".
        rows: Number of rows of the vec.
        width: Number of numbers in an action.
        steps: Number of steps that a sequence of pink or red noise is made for.
        seed: Seed of the sequences.
    """

    def __init__(self, color: str, rows: int, width: int, steps: int, seed: int) -> None:
        self._exponent, self._width, self._steps, self._seed = EXPONENTS[color], width, steps, seed
        self._is_white = color == "white"
        # Row r's sequence number k has the seed (seed, r, k), so these numbers are the whole state.
        self._number = np.full(rows, -1)
        self._place = np.zeros(rows, np.int64)
        shape = (0, 0, 0) if self._is_white else (rows, steps, width)
        self._sequences = np.zeros(shape, np.float32)

    def draw(self, rows: NDArray[np.int64], begins: NDArray[np.bool_], generator: torch.Generator) -> Tensor:
        """Return the next noise of rows, [rows, width].

        Args:
            rows: Indices of rows in the vec.
            begins: Whether an episode of the row begins.
            generator: Generator of white noise.
        """
        if self._is_white:
            shape = (len(rows), self._width)
            return torch.randn(shape, generator=generator, device=generator.device)
        fresh = rows[begins | (self._number[rows] < 0) | (self._place[rows] >= self._steps)]
        self._number[fresh] += 1
        self._place[fresh] = 0
        self._make(fresh)
        found = self._sequences[rows, self._place[rows]]
        self._place[rows] += 1
        return torch.from_numpy(found).to(generator.device)

    def _make(self, rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            seed = np.random.SeedSequence([self._seed, row, int(self._number[row])])
            random = np.random.Generator(np.random.PCG64(seed))
            self._sequences[row] = colored(random, self._steps, self._width, self._exponent)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {"number": self._number.copy(), "place": self._place.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Raises:
            ValueError: If the state does not fit.
        """
        number, place = state["number"], state["place"]
        if number.shape != self._number.shape or place.shape != self._place.shape:
            raise ValueError("the noise was saved with another number of rows")
        if not (number.dtype == place.dtype == np.int64 and (number >= -1).all() and (place >= 0).all()):
            raise ValueError("the noise has places that do not exist")
        self._number[:], self._place[:] = number, place
        if not self._is_white:
            self._make(np.flatnonzero(self._number >= 0))


def colored(random: np.random.Generator, steps: int, width: int, exponent: float) -> NDArray[np.float32]:
    """Make noise, [steps, width], whose spectrum falls with the frequency to the power `exponent`."""
    frequencies = np.fft.rfftfreq(steps)
    frequencies[0] = frequencies[1]  # the mean of a sequence varies as much as its slowest wave
    scale = frequencies ** (-exponent / 2)
    waves = random.standard_normal((2, len(scale), width)) * scale[:, None]
    waves[1, 0] = 0.0  # the mean has no phase, nor has the fastest wave of an even number of steps
    waves[0, 0] *= np.sqrt(2)
    if steps % 2 == 0:
        waves[1, -1] = 0.0
        waves[0, -1] *= np.sqrt(2)
    # The variance of each number: both halves of the spectrum, as the inverse transform sums them.
    weights = np.full(len(scale), 2.0)
    weights[0] = 1.0
    if steps % 2 == 0:
        weights[-1] = 1.0
    power = 2 * (weights * scale**2).sum() / steps**2
    numbers: NDArray[np.float64] = np.fft.irfft(waves[0] + 1j * waves[1], steps, axis=0) / np.sqrt(power)
    return numbers.astype(np.float32)
