"""Flat actions: any action space as one space that common learners support, and the way back to columns.

With ``flat=True`` the space of an action is

    Discrete         if the env's action space is Discrete    it counts from 0, whatever the env's start is
    MultiDiscrete    if every part is discrete                each entry counts from 0
    Box              if every part is a Box                   with the common dtype of the parts
    MixedBox         otherwise                                of float64; integer entries hold integers
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.rows.fields import Columns, Field, Misfit, describe
from shoal.rows.layout import Layout


def is_discrete(field: Field) -> bool:
    """Return whether the field holds choices instead of quantities."""
    return not isinstance(field.space, spaces.Box)


class MixedBox(spaces.Box):
    """A Box of float64 in which some entries must be integers. Its samples have integers there.

    Args:
        low: The smallest value of each entry.
        high: The largest value of each entry.
        whole: Whether each entry must be an integer.
        seed: The seed of the space's random generator, as for any Gymnasium space.
    """

    def __init__(
        self,
        low: NDArray[Any],
        high: NDArray[Any],
        whole: NDArray[np.bool_],
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(low.astype(np.float64), high.astype(np.float64), dtype=np.float64, seed=seed)
        self.whole = whole

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:
        """Return a random element. Integer entries are uniform over their integers."""
        sample = super().sample(mask, probability)
        limit = 2**53  # above this, float64 cannot represent every integer
        low, high = (bound[self.whole].clip(-limit, limit) for bound in (self.low, self.high))
        sample[self.whole] = self.np_random.integers(low.astype(int), high.astype(int), endpoint=True)
        return sample

    def contains(self, x: Any) -> bool:
        """Return whether `x` is in the Box and its integer entries hold integers."""
        return super().contains(x) and bool((np.floor(x) == x)[self.whole].all())

    def __repr__(self) -> str:
        """Return the bounds and the number of integer entries."""
        return f"MixedBox({self.low}, {self.high}, {int(self.whole.sum())} of {self.whole.size} whole)"


@batch_space.register(MixedBox)
def _batch_mixed_box(space: MixedBox, n: int = 1) -> MixedBox:
    low, high = np.tile(space.low, (n, 1)), np.tile(space.high, (n, 1))
    return MixedBox(low, high, np.tile(space.whole, (n, 1)), seed=deepcopy(space.np_random))


class FlatActions:
    """The flat form of an action space, and the conversion of flat actions into columns."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._starts: list[NDArray[Any]] = []
        lows, highs = [], []
        for field in layout.fields:
            low, high = field.bounds()
            start = np.zeros_like(low)
            if is_discrete(field):
                start, low, high = low, start, high - low
            self._starts.append(start)
            lows.append(low.reshape(-1))
            highs.append(high.reshape(-1))
        space, discrete = layout.space, [is_discrete(field) for field in layout.fields]
        self.space: Space[Any]
        if isinstance(space, spaces.Discrete):
            self.space = spaces.Discrete(int(space.n))
        elif isinstance(space, spaces.Box):
            self.space = space
        elif all(discrete):
            self.space = spaces.MultiDiscrete(np.concatenate([np.empty(0, int), *highs]) + 1)
        else:
            low, high = np.concatenate(lows), np.concatenate(highs)
            whole = np.concatenate([np.full(f.size, f.dtype.kind != "f") for f in layout.fields])
            if any(discrete) or (low.dtype.kind == "f" and whole.any()):
                self.space = MixedBox(low, high, whole)
            else:
                self.space = spaces.Box(low, high, dtype=low.dtype.type)

    def write(self, actions: Any, columns: Columns, needed: NDArray[np.bool_]) -> None:
        """Write a batch of flat actions into the columns.

        Raises:
            Misfit: If the shape or dtype does not fit, or an integer entry holds a fraction.
        """
        try:
            flat = np.asarray(actions)
        except ValueError:
            flat = np.asarray(None)
        shape, dtype = (len(needed), *(self.space.shape or ())), np.dtype(self.space.dtype)
        if flat.shape != shape:
            problem = f"expected shape {shape} and dtype {dtype}, got {describe(actions)}"
            raise Misfit((), problem, is_type=flat.dtype == object)
        if not np.can_cast(flat.dtype, dtype, "same_kind"):
            raise Misfit((), f"expected dtype {dtype}, got {flat.dtype}", is_type=True)
        flat = flat.reshape(len(needed), -1)
        first = 0
        for index, (field, start) in enumerate(zip(self._layout.fields, self._starts, strict=True)):
            part = flat[:, first : first + field.size].reshape((len(needed), *field.shape))
            first += field.size
            counts = self._layout.counts(index, columns) & needed
            with np.errstate(invalid="ignore"):  # the comparison below finds NaN
                exact = part.astype(field.dtype)
            lost = (exact != part).reshape(len(needed), -1).any(1) & counts
            if field.dtype.kind != "f" and lost.any():
                row = int(lost.argmax())
                raise Misfit(field.path, f"expected integers, got {part[row]} in row {row}")
            column = columns[index]
            column[counts] = exact[counts] + start
            if index in self._layout.conditions:
                column[~counts] = 0
