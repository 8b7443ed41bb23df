"""A batch of actions -> the arena. The whole batch is checked before any env moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from shoal._core import ActionColumn
from shoal.errors import ActionError, ActionPartMissing, ActionTypeError
from shoal.rows.arena import Arena, count_true
from shoal.rows.fields import Kind, Leaf, Misfit, where
from shoal.rows.flat_actions import FlatActions, is_discrete
from shoal.rows.layout import Layout
from shoal.rows.packing import BatchPacker


class ActionWriter:
    """Checks a batch of actions and writes it into the action rows.

    Args:
        layout: The layout of one action.
        arena: The arena whose action rows are written.
        agents_per_env: The number of rows of each env, for messages.
        flat: Whether the caller passes flat actions.

    Attributes:
        single_space: The space of one row's action, as the user sees it.
        env_ids: The env of each row, for messages; None if row numbers and env numbers agree.
        usual: The fast path, for a batch that is one array and needs no conversion; None if the layout has no
            such form.
        dumps: The function that pickles the objects of actions for envs in other processes; None if all envs
            run in this process.
        own_rows: The number of rows whose envs run in this process. They come first; their objects are not
            pickled.
    """

    def __init__(self, layout: Layout, arena: Arena, agents_per_env: int, *, flat: bool) -> None:
        self._layout, self._agents = layout, agents_per_env
        self.env_ids: NDArray[np.int64] | None = None
        self._packer = BatchPacker(layout, arena.actions, arena.action_objects)
        self.dumps: Callable[[Any], bytes] | None = None
        self.own_rows = 0
        self._codec = FlatActions(layout) if flat else None
        self.single_space: Space[Any] = layout.space if self._codec is None else self._codec.space
        # Fields whose values are checked: discrete fields for their range, float fields for NaN.
        self._ranges = [
            self._range(index)
            for index, field in enumerate(layout.fields)
            if is_discrete(field) and field.kind is not Kind.OBJECT
        ]
        self._floats = [i for i, field in enumerate(layout.fields) if field.dtype.kind == "f"]
        # The fast path covers the most common case: actions of one field, given as an array of its dtype.
        self.usual: ActionColumn | None = None
        root = layout.root
        same = self._codec is None or self._codec.space == layout.space  # the flat form can equal the space
        if same and isinstance(root, Leaf) and root.field.kind in (Kind.ARRAY, Kind.SCALAR):
            bounds = root.field.bounds() if is_discrete(root.field) else (None, None)
            self.usual = ActionColumn(self._packer.columns[root.index], *bounds)

    def _range(self, index: int) -> tuple[int, NDArray[Any], Any, Any]:
        """Return a field's index, column and bounds. The lower bound is None if one comparison is enough."""
        column, (low, high) = self._packer.columns[index], self._layout.fields[index].bounds()
        if np.any(low):
            return index, column, low, high
        # Read as unsigned, a negative number is above the upper bound, so one comparison checks both bounds.
        return index, column.view(f"u{column.itemsize}"), None, high.astype(f"u{column.itemsize}")

    def write(self, actions: Any, needed: NDArray[np.bool_]) -> int:
        """Write the actions of the rows that need one; the others may hold anything.

        Returns:
            The number of rows that need an action.

        Raises:
            ActionError: If any needed action does not fit. No env has moved.
        """
        if self.usual is not None:
            count = self.usual.take(actions, needed)
            if count >= 0:
                return count
        return self._write_any(actions, needed)

    def _write_any(self, actions: Any, needed: NDArray[np.bool_]) -> int:
        count = count_true(needed)
        taken = None if count == len(needed) else needed
        try:
            if self._codec is None:
                self._packer.write(actions, taken)
            else:
                self._codec.write(actions, self._packer.columns, needed)
        except Misfit as misfit:
            error = ActionPartMissing if misfit.is_missing else ActionError
            whose = "" if misfit.row is None else f" of {self._name(misfit.row)}"
            raise (ActionTypeError if misfit.is_type else error)(
                f"{where(misfit.path, 'action')}{whose}: {misfit.problem}. Pass one action for each row, as "
                "vec.action_space.sample() does; no env has moved."
            ) from None
        self._check_values(needed)
        if self.dumps is not None:
            self._pickle_objects(self.dumps, needed)
        return count

    def _pickle_objects(self, dumps: Callable[[Any], bytes], needed: NDArray[np.bool_]) -> None:
        """Replace objects by their pickles. An object that cannot be pickled fails before any env moves."""
        for index, field in enumerate(self._layout.fields):
            if field.kind is not Kind.OBJECT:
                continue
            column = self._packer.columns[index]
            for row in np.flatnonzero(needed[self.own_rows :]).tolist():
                try:
                    column[self.own_rows + row] = dumps(column[self.own_rows + row])
                except Exception as error:
                    raise ActionTypeError(
                        f"{where(field.path, 'action')} of {self._name(self.own_rows + row)} cannot be "
                        f"pickled, so it cannot reach its worker: {error}. No env has moved."
                    ) from error

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
        raise ActionError(
            f"{where(field.path, 'action')} of {self._name(row)}: expected {wanted}, "
            f"got {columns[index][row]}. No env has moved."
        )

    def _name(self, row: int) -> str:
        env, agent = divmod(row, self._agents)
        if self.env_ids is not None:
            env = int(self.env_ids[row])
        return f"env {env}" if self._agents == 1 else f"env {env}, agent {agent}"
