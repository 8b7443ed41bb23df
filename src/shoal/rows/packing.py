"""Values -> columns: check every value that is written into a row, and write whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.rows.fields import Branch, Choice, Columns, Field, Kind, Leaf, Misfit, Node, describe
from shoal.rows.layout import Layout, Rows


def fit(field: Field, value: Any, lead: tuple[int, ...] = ()) -> NDArray[Any]:
    """Convert a value, or a batch of values, to an array that `field` can hold without loss.

    Args:
        field: The field that the value is for.
        value: An array, number or nested list.
        lead: The leading shape of a batch.

    Raises:
        Misfit: If the shape is wrong, the dtype cannot be cast, or an integer is too large for the field.
    """
    shape = (*lead, *field.shape)
    if type(value) is np.ndarray and value.dtype == field.dtype and value.shape == shape:
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        array = np.asarray(None)
    integers = array.dtype.kind in "iu" and field.dtype.kind in "iu"
    # Python ints have no dtype of their own: they fit if their value fits.
    untyped = integers and not isinstance(value, (np.ndarray, np.generic))
    castable = untyped or np.can_cast(array.dtype, field.dtype, "same_kind")
    if array.shape != shape or not castable:
        got = describe(array)
        if array.dtype == object:
            got = f"{describe(value)} that is no array of numbers"
        problem = f"expected shape {shape} and dtype {field.dtype}, got {got}"
        raise Misfit(field.path, problem, is_type=not castable or (bool(lead) and array.ndim == 0))
    if integers and not np.can_cast(array.dtype, field.dtype):
        narrow = array.astype(field.dtype)
        if (narrow != array).any():
            wrong = array[narrow != array].flat[0]
            raise Misfit(field.path, f"expected numbers that fit dtype {field.dtype}, got {wrong}")
        return narrow
    return array


class BatchPacker:
    """Writes a batch in Gymnasium's form (an element of the batched space) into rows, one column at a time.

    Args:
        layout: The layout of the rows.
        rows: The byte rows of the batch.
        objects: The object columns of the rows, if the layout has objects.
        on_undeclared: Function to call with the node of a Dict and a dict that has other keys too.

    Raises:
        Misfit: In `write`, if a part of the batch does not fit.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        objects: NDArray[Any] | None = None,
        on_undeclared: Callable[[Branch, Mapping[Any, Any]], None] | None = None,
    ) -> None:
        self._on_undeclared = on_undeclared
        self.columns: Columns = layout.columns(rows, objects)
        self._root, self._count = layout.root, len(rows)
        from shoal._core import Packer

        self._row_writers: dict[int, Any] = {
            node.index: Packer(layout, rows, objects, node, on_undeclared).write
            for node in _leaves(layout.root)
            if isinstance(node, Choice) or node.field.kind in (Kind.TEXT, Kind.OBJECT)
        }

    def write(self, batch: Any, taken: NDArray[np.bool_] | None = None) -> None:
        """Write the batch, or only its `taken` rows. The other rows may hold any value."""
        self._write(self._root, batch, taken)

    def _write(self, node: Node, batch: Any, taken: NDArray[np.bool_] | None) -> None:
        if isinstance(node, Branch):
            self._check_branch(node, batch)
            for key, child in zip(node.keys, node.children, strict=True):
                self._write(child, batch[key], taken)
        elif node.index in self._row_writers:
            self._write_each(node, batch, taken)
        else:
            array = fit(node.field, batch, (self._count,))
            if taken is None:
                self.columns[node.index][...] = array
            else:
                self.columns[node.index][taken] = array[taken]

    def _check_branch(self, node: Branch, batch: Any) -> None:
        wanted = (
            f"a dict with the keys {list(node.keys)}"
            if node.is_dict
            else f"a tuple of {len(node.keys)} batches"
        )
        if not isinstance(batch, Mapping if node.is_dict else (tuple, list)):
            raise Misfit(node.path, f"expected {wanted}, got {describe(batch)}", is_type=True)
        got = set(batch) if node.is_dict else set(range(len(batch)))
        if not set(node.keys) <= got or (not node.is_dict and len(batch) != len(node.keys)):
            found = f"the keys {list(batch)}" if node.is_dict else str(len(batch))
            raise Misfit(node.path, f"expected {wanted}, got {found}", is_missing=True)
        if isinstance(batch, Mapping) and self._on_undeclared is not None and len(got) != len(node.keys):
            self._on_undeclared(node, batch)

    def _write_each(self, node: Node, batch: Any, taken: NDArray[np.bool_] | None) -> None:
        path = () if isinstance(node, Branch) else node.field.path
        try:
            values = list(batch)
        except TypeError:
            values = None
        if values is None or isinstance(batch, str) or len(values) != self._count:
            wanted = f"expected a sequence of {self._count}, one for each row"
            raise Misfit(path, f"{wanted}, got {describe(batch)}", is_type=values is None)
        write = self._row_writers[node.index]  # type: ignore[union-attr]
        for row, value in enumerate(values):
            if taken is None or taken[row]:
                try:
                    write(row, value)
                except Misfit as misfit:
                    misfit.row = row
                    raise


def _leaves(node: Node) -> Iterator[Choice | Leaf]:
    """Iterate over the nodes that are written as a unit: leaves and OneOfs."""
    if not isinstance(node, Branch):
        yield node
        return
    for child in node.children:
        yield from _leaves(child)
