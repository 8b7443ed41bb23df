"""A batch of actions -> the arena: checked as a whole before any env moves.

With ``flat=False`` a batch has the form of Gymnasium's batched space. With ``flat=True`` it is one array
for any learner that can train on Atari, and the space it comes from is

    Discrete         if the env's is one                   counted from 0, whatever its start
    MultiDiscrete    if every part is discrete             likewise
    Box              if every part is a Box                of their common dtype
    MixedBox         else                                  of float64; integer entries hold integers
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.buffers import Arena, count_true
from shoal.errors import ActionError, ActionTypeError
from shoal.fields import Columns, Field, Kind, Misfit, describe, where
from shoal.layout import Layout
from shoal.packing import BatchPacker


def is_discrete(field: Field) -> bool:
    """Whether the field holds choices rather than quantities."""
    return not isinstance(field.space, spaces.Box)


class ActionWriter:
    """Checks a batch of actions and writes it into the action rows.

    Args:
        layout: Of an action.
        arena: The rows to write.
        agents_per_env: Rows of an env, for messages.
        flat: Whether batches come in the flat form.

    Attributes:
        single_space: The space of one row's action, as the user sees it.
    """

    def __init__(self, layout: Layout, arena: Arena, agents_per_env: int, *, flat: bool) -> None:
        self._layout, self._agents = layout, agents_per_env
        self._packer = BatchPacker(layout, arena.actions, arena.action_objects)
        self._codec = FlatActions(layout) if flat else None
        self.single_space: Space[Any] = layout.space if self._codec is None else self._codec.space
        # Fields with limits to check: discrete ones for their range, floats for NaN.
        self._ranges = [
            self._range(index)
            for index, field in enumerate(layout.fields)
            if is_discrete(field) and field.kind is not Kind.OBJECT
        ]
        self._floats = [i for i, field in enumerate(layout.fields) if field.dtype.kind == "f"]

    def _range(self, index: int) -> tuple[int, NDArray[Any], Any, Any]:
        """A field's column with its bounds; no lower bound if the upper one catches all."""
        column, (low, high) = self._packer.columns[index], self._layout.fields[index].bounds()
        if np.any(low):
            return index, column, low, high
        # Read as unsigned, a negative number is above every bound: one comparison does for both.
        return index, column.view(f"u{column.itemsize}"), None, high.astype(f"u{column.itemsize}")

    def write(self, actions: Any, needed: NDArray[np.bool_]) -> None:
        """Write the actions of the rows that need one; the others may hold anything.

        Raises:
            ActionError: If any needed action does not fit. No env has moved.
        """
        taken = None if count_true(needed) == len(needed) else needed
        try:
            if self._codec is None:
                self._packer.write(actions, taken)
            else:
                self._codec.write(actions, self._packer.columns, needed)
        except Misfit as misfit:
            error = ActionTypeError if misfit.is_type else ActionError
            raise error(
                f"{where(misfit.path, 'action')}: {misfit.problem}. Pass one action for each row, as "
                "vec.action_space.sample() does; no env has moved."
            ) from None
        self._check_values(needed)

    def _check_values(self, needed: NDArray[np.bool_]) -> None:
        for index, column, low, high in self._ranges:
            wrong = column > high
            if low is not None:
                wrong |= column < low
            self._refuse(index, wrong, needed)
        for index in self._floats:
            self._refuse(index, np.isnan(self._packer.columns[index]), needed)

    def _refuse(self, index: int, wrong: NDArray[np.bool_], needed: NDArray[np.bool_]) -> None:
        if not count_true(wrong):
            return
        columns, field = self._packer.columns, self._layout.fields[index]
        in_rows = wrong.reshape(len(wrong), -1).any(1) & needed & self._layout.counts(index, columns)
        if not in_rows.any():
            return
        row = int(in_rows.argmax())
        low, high = field.bounds()
        wanted = "numbers" if field.dtype.kind == "f" else f"integers from {low} to {high}"
        env, agent = divmod(row, self._agents)
        whose = f"env {env}" if self._agents == 1 else f"env {env}, agent {agent}"
        raise ActionError(
            f"{where(field.path, 'action')} of {whose}: expected {wanted}, got {columns[index][row]}. "
            "No env has moved."
        )


class MixedBox(spaces.Box):
    """A Box of float64 some of whose entries hold integers, as samples of it do.

    Args:
        low: Smallest values.
        high: Largest values.
        whole: Which entries hold integers.
        seed: As for any space.
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
        """A random element, uniform over the integers where integers belong."""
        sample = super().sample(mask, probability)
        limit = 2**53  # beyond it a float64 cannot tell one integer from the next
        low, high = (bound[self.whole].clip(-limit, limit) for bound in (self.low, self.high))
        sample[self.whole] = self.np_random.integers(low.astype(int), high.astype(int), endpoint=True)
        return sample

    def contains(self, x: Any) -> bool:
        """Whether `x` is in the Box and holds integers where they belong."""
        return super().contains(x) and bool((np.floor(x) == x)[self.whole].all())

    def __repr__(self) -> str:
        """Like a Box, with the number of integers."""
        return f"MixedBox({self.low}, {self.high}, {int(self.whole.sum())} of {self.whole.size} whole)"


@batch_space.register(MixedBox)
def _batch_mixed_box(space: MixedBox, n: int = 1) -> MixedBox:
    low, high = np.tile(space.low, (n, 1)), np.tile(space.high, (n, 1))
    return MixedBox(low, high, np.tile(space.whole, (n, 1)), seed=deepcopy(space.np_random))


class FlatActions:
    """The flat form of a structured action space, and the way back into columns."""

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
        """Spread a flat batch over the columns.

        Raises:
            Misfit: If shape or dtype do not fit, or an integer entry holds a fraction.
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
            with np.errstate(invalid="ignore"):  # NaN is caught by the comparison
                exact = part.astype(field.dtype)
            lost = (exact != part).reshape(len(needed), -1).any(1) & counts
            if field.dtype.kind != "f" and lost.any():
                row = int(lost.argmax())
                raise Misfit(field.path, f"expected integers, got {part[row]} in row {row}")
            column = columns[index]
            column[counts] = exact[counts] + start
            if index in self._layout.conditions:
                column[~counts] = 0
