"""Space -> Layout: how a structured value lies in one flat row.

A layout is a list of fields, one for each leaf of the space, and a tree of nodes that keeps the structure.
Each field is aligned to its dtype, and each row is padded to the largest alignment. So each field of a batch
of rows is a view, in NumPy and in torch. This file knows only spaces and bytes, not envs.

How each space lies in a row:

    Box, MultiDiscrete, MultiBinary   their dtype and shape
    Discrete                          one number of its dtype
    Text                              max_length codes: 0 ends the text, k is the k-th character
                                      of the sorted charset
    OneOf                             the index of the choice, then every choice; the other choices are 0
    Dict, Tuple                       their members one after another
    Sequence, Graph, any other        no bytes: Sequence and Graph have no fixed size, and Shoal does not know
                                      the bytes of other spaces. `layout` raises an error for them. A vec of
                                      Python envs with flat=False carries their values as objects instead
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from shoal.caller_warning import warn_caller
from shoal.errors import ArgumentError, SpaceError, UndeclaredKeyWarning
from shoal.rows.fields import (
    Branch,
    Choice,
    Columns,
    Field,
    Kind,
    Leaf,
    Misfit,
    Node,
    Path,
    describe,
    walk,
    where,
)

Rows = NDArray[np.uint8]


class Plan:
    """Collects the fields of a space in order, and puts each at the next aligned offset."""

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.end = 0
        self.alignment = 1
        self.num_objects = 0

    def add(
        self,
        path: Path,
        kind: Kind,
        dtype: Any,
        shape: tuple[int, ...],
        space: Space[Any],
        alphabet: str = "",
    ) -> Leaf:
        """Append a field and return its node."""
        # Looked up by name, a dtype has the machine's byte order and is the same object that arrays use.
        dtype = np.dtype(dtype if kind is Kind.OBJECT else np.dtype(dtype).name)
        if kind is Kind.OBJECT:
            offset = self.num_objects
            self.num_objects += 1
        else:
            offset = -(-self.end // dtype.itemsize) * dtype.itemsize
            self.alignment = max(self.alignment, dtype.itemsize)
        added = Field(path, kind, dtype, shape, space, offset, alphabet)
        if kind is not Kind.OBJECT:
            self.end = offset + added.nbytes
        self.fields.append(added)
        return Leaf(len(self.fields) - 1, added)


@singledispatch
def compile_space(space: Any, path: Path, plan: Plan) -> Node:
    """Add the fields of `space` to `plan` and return its node. Each type of space has its own function."""
    raise SpaceError(
        f"{where(path, 'space')}: expected a gymnasium.Space, got {type(space).__name__}: {space!r}"
    )


@compile_space.register
def _(space: Space, path: Path, plan: Plan) -> Node:  # type: ignore[type-arg]
    return plan.add(path, Kind.OBJECT, object, (), space)


@compile_space.register
def _(space: spaces.Box, path: Path, plan: Plan) -> Node:
    return plan.add(path, Kind.ARRAY, space.dtype, space.shape, space)


@compile_space.register
def _(space: spaces.MultiBinary, path: Path, plan: Plan) -> Node:
    return plan.add(path, Kind.ARRAY, space.dtype, space.shape, space)


@compile_space.register
def _(space: spaces.MultiDiscrete, path: Path, plan: Plan) -> Node:
    return plan.add(path, Kind.ARRAY, space.dtype, space.shape, space)


@compile_space.register
def _(space: spaces.Discrete, path: Path, plan: Plan) -> Node:
    return plan.add(path, Kind.SCALAR, space.dtype, (), space)


@compile_space.register
def _(space: spaces.Text, path: Path, plan: Plan) -> Node:
    # Sorted, not in the space's own order: before Gymnasium 1.4 that order changed with each process.
    alphabet = "\0" + "".join(sorted(space.character_set))
    dtype = np.min_scalar_type(len(alphabet) - 1)
    return plan.add(path, Kind.TEXT, dtype, (space.max_length,), space, alphabet)


@compile_space.register
def _(space: spaces.OneOf, path: Path, plan: Plan) -> Node:  # type: ignore[type-arg]
    index = plan.add(path, Kind.CHOICE, np.int64, (), space)
    children, members = [], []
    for number, choice in enumerate(space.spaces):
        first = len(plan.fields)
        children.append(compile_space(choice, (*path, number), plan))
        members.append(range(first, len(plan.fields)))
    return Choice(index.index, index.field, tuple(children), tuple(members))


@compile_space.register
def _(space: spaces.Tuple, path: Path, plan: Plan) -> Node:  # type: ignore[type-arg]
    children = tuple(compile_space(s, (*path, i), plan) for i, s in enumerate(space.spaces))
    return Branch(path, tuple(range(len(children))), children, is_dict=False)


@compile_space.register
def _(space: spaces.Dict, path: Path, plan: Plan) -> Node:
    keys = tuple(space.spaces)
    children = tuple(compile_space(space.spaces[key], (*path, key), plan) for key in keys)
    return Branch(path, keys, children, is_dict=True)


def _without_bytes(field: Field, reader: str) -> SpaceError:
    """Return the error for a space that has no bytes, although `reader` needs bytes."""
    problem = f"{type(field.space).__name__} is not a space Shoal knows the bytes of"
    remedy = "so that it uses a Box, Discrete or another space of Gymnasium's"
    if isinstance(field.space, spaces.Sequence):
        problem = "a Sequence has no fixed size, so it has no place in a row"
        remedy = "with a Box of the longest length, padded, and the length as a Discrete"
    elif isinstance(field.space, spaces.Graph):
        problem = "a Graph has no fixed size, so it has no place in a row"
        remedy = "with a Dict of padded Boxes for nodes, edges and edge_links, and two Discretes for counts"
    other = f"{reader} takes only bytes."
    if not reader:
        other = (
            "Or make the vec with flat=False, if no learner of Shoal uses it: shoal.Serial and "
            "shoal.Multiprocessing then carry objects."
        )
    return SpaceError(f"{where(field.path, 'space')}: {problem}. Wrap the env {remedy}. {other}")


# ------------------------------------------------------------------------------------------------ layout


class Layout:
    """The layout of a space: its fields, the form of a row, and conversions between rows and values.

    A row has two forms. Inside Shoal it is bytes. Outside, with ``flat=True``, it is an element of
    ``flat_space``: a Box of the common dtype if all fields have one dtype, else a Box of bytes.

    Attributes:
        space: The space that the layout was made from.
        fields: One `Field` for each leaf of the space.
        nbytes: The number of bytes of a row, with padding.
        dtype: The structured dtype of a row. A batch of byte rows can be viewed with it.
        flat_space: The Box that contains the flat rows.

    Example:
        >>> import numpy as np, shoal
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> layout = shoal.layout(Dict({"map": Box(0, 255, (2, 2), np.uint8), "pos": Discrete(9)}))
        >>> row = layout.pack({"map": np.eye(2, dtype=np.uint8), "pos": 7})
        >>> row.dtype, row.shape
        (dtype('uint8'), (16,))
        >>> layout.unpack(row)["map"]
        array([[1, 0],
               [0, 1]], dtype=uint8)
        >>> layout.value(row)["pos"]
        np.int64(7)
    """

    def __init__(self, space: Space[Any], *, objects: bool = False) -> None:
        plan = Plan()
        self.space = space
        self.root: Node = compile_space(space, (), plan)
        self.fields: tuple[Field, ...] = tuple(plan.fields)
        self.num_objects = plan.num_objects
        if not objects:
            self.require_bytes()
        # A row has at least one byte, so that a batch of rows always has an address and a stride.
        self.nbytes = max(-(-plan.end // plan.alignment), 1) * plan.alignment
        dtypes = {f.dtype for f in self.fields if f.kind is not Kind.OBJECT}
        self.flat_dtype: np.dtype[Any] = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.uint8)
        self.flat_dtype_name = self.flat_dtype.name
        self.is_bytes = bool(dtypes)
        elements = sum(f.size for f in self.fields if f.kind is not Kind.OBJECT)
        self.size = self.nbytes if self.is_bytes else elements
        self.flat_shape = space.shape if isinstance(space, spaces.Box) else (self.size,)
        self.dtype: np.dtype[Any] = _structured(self.root, self.nbytes)
        self._warned: set[Path] = set()  # the Dicts whose undeclared keys were reported
        # For each field inside a OneOf: the pairs (index field, choice) that select it. The field counts only
        # if they are chosen; otherwise it is 0, even if its bounds exclude 0.
        self.conditions: dict[int, list[tuple[int, int]]] = {}
        for node in walk(self.root):
            if isinstance(node, Choice):
                for number, members in enumerate(node.members):
                    for index in members:
                        self.conditions.setdefault(index, []).append((node.index, number))

    def __repr__(self) -> str:
        """Return a text with one line for each field."""
        lines = [
            f"  {where(f.path)}: an object of {f.space}"
            if f.kind is Kind.OBJECT
            else f"  {where(f.path)}: {f.kind.value} {f.dtype}{list(f.shape)} at byte {f.offset}"
            for f in self.fields
        ]
        form = f"objects beside it: {self.num_objects}" if self.num_objects else f"flat {self.flat_space}"
        return "\n".join([f"Layout of {self.nbytes} bytes, {form}", *lines])

    def require_bytes(self, reader: str = "") -> None:
        """Check that every field has bytes in the row.

        Args:
            reader: The name of the code that needs bytes, for the message. By default it is a vec, and the
                message recommends flat=False.

        Raises:
            SpaceError: If a field is an object.
        """
        if self.num_objects:
            raise _without_bytes(next(each for each in self.fields if each.kind is Kind.OBJECT), reader)

    @property
    def flat_space(self) -> spaces.Box:
        """The Box that contains the flat rows."""
        self.require_bytes()
        if isinstance(self.space, spaces.Box):
            return self.space
        if self.is_bytes or not self.fields:
            return spaces.Box(0, 255, self.flat_shape, np.uint8)
        lows, highs = [], []
        for index, each in enumerate(self.fields):
            low, high = (bound.reshape(-1) for bound in each.bounds())
            if index in self.conditions:
                low, high = np.minimum(low, 0), np.maximum(high, 0)
            lows.append(low.astype(each.dtype))
            highs.append(high.astype(each.dtype))
        dtype: Any = self.flat_dtype
        return spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=dtype)

    # -- rows as bytes (inside Shoal) ------------------------------------------------------------------

    def columns(self, rows: Rows, objects: NDArray[Any] | None = None) -> list[NDArray[Any]]:
        """Return a typed view of each field of a batch of rows."""
        lead = rows.shape[:-1]
        columns = []
        for each in self.fields:
            if each.kind is Kind.OBJECT:
                assert objects is not None
                columns.append(objects[..., each.offset])
            elif each.nbytes == 0:
                columns.append(np.empty((*lead, *each.shape), each.dtype))
            else:
                part = rows[..., each.offset : each.offset + each.nbytes]
                columns.append(part.view(each.dtype).reshape((*lead, *each.shape)))
        return columns

    def counts(self, index: int, columns: Columns) -> NDArray[np.bool_] | bool:
        """Return in which rows a field counts: True for all, or flags if it belongs to a OneOf's choice."""
        counts: NDArray[np.bool_] | bool = True
        for chooser, number in self.conditions.get(index, ()):
            counts = counts & (columns[chooser] == number)
        return counts

    def flat(self, rows: Rows) -> NDArray[Any]:
        """Return a view of a batch of byte rows as elements of `flat_space`."""
        self.require_bytes()
        lead = rows.shape[:-1]
        return rows.view(self.flat_dtype)[..., : self.size].reshape((*lead, *self.flat_shape))

    def warn_undeclared(self, node: Branch, value: Mapping[Any, Any]) -> None:
        """Warn about the keys of an observation that its Dict space does not declare, once for each Dict.

        Args:
            node: The node of the Dict.
            value: The dict that an env returned, or a batch of them.
        """
        extra = [key for key in value if key not in node.keys]
        if not extra or node.path in self._warned:
            return
        self._warned.add(node.path)
        shown = ", ".join(map(repr, extra[:10])) + (f" and {len(extra) - 10} more" if len(extra) > 10 else "")
        several = len(extra) > 1
        warn_caller(
            f"{where(node.path, 'observation')}: the env returned the key{'s' * several} {shown}, which its "
            f"Dict space does not declare. {'They are' if several else 'It is'} left out. Declared: "
            f"{', '.join(map(repr, node.keys)) or 'none'}",
            UndeclaredKeyWarning,
        )

    # -- rows as users see them ------------------------------------------------------------------------

    def rows(self, flat: NDArray[Any]) -> Rows:
        """Return elements of `flat_space`, with any leading shape, as byte rows: the inverse of `flat`.

        Raises:
            ArgumentError: If the dtype or shape is not that of `flat_space`.
        """
        self.require_bytes()
        flat = np.asarray(flat)
        lead = flat.shape[: flat.ndim - len(self.flat_shape)]
        if flat.dtype != self.flat_dtype or flat.shape != (*lead, *self.flat_shape):
            raise ArgumentError(
                f"expected flat rows of dtype {self.flat_dtype} and shape (..., "
                f"{', '.join(map(str, self.flat_shape))}), got {describe(flat)}. "
                "Pass rows that a vec with flat=True or pack() returned."
            )
        if self.size == 0:
            return np.zeros((*lead, self.nbytes), np.uint8)
        return np.ascontiguousarray(flat.reshape((*lead, self.size))).view(np.uint8)

    def pack(self, value: Any) -> NDArray[Any]:
        """Pack one value into a flat row.

        Raises:
            ObservationError: If the value does not fit the space; the message says where.
        """
        self.require_bytes()
        from shoal._core import Packer

        row = np.zeros((1, self.nbytes), np.uint8)
        try:
            Packer(self, row).write(0, value)
        except Misfit as misfit:
            raise misfit.public(str(misfit)) from None
        flat: NDArray[Any] = self.flat(row)[0, ...]  # an array even if it has no dimensions
        return flat

    def unpack(self, flat: NDArray[Any]) -> Any:
        """Return nested views of flat rows, of any leading shape. Text is codes, OneOf (index, choices)."""
        return self.root.views(self.columns(self.rows(flat)))

    def value(self, flat: NDArray[Any]) -> Any:
        """Return a copy of the value that was packed into one flat row."""
        if np.ndim(flat) != len(self.flat_shape):
            raise ArgumentError(
                f"expected one flat row of shape {self.flat_shape}, got {describe(flat)}. "
                "For a batch, call value() for each row or unpack() for views."
            )
        rows = self.rows(flat)[None].copy()
        return self.root.split(self.columns(rows), 1, sampled=True)[0]


def _structured(node: Node, nbytes: int) -> np.dtype[Any]:
    """Return the nested dtype of a row. Its names are Dict keys, positions, and ``index`` in a OneOf."""

    def members(node: Node) -> list[tuple[str, Field | list[Any]]]:
        if isinstance(node, Leaf):
            return [("value", node.field)]
        named: list[tuple[str, Field | list[Any]]] = []
        keys: Sequence[str | int] = range(len(node.children))
        if isinstance(node, Choice):
            named.append(("index", node.field))
        else:
            keys = node.keys
        for key, child in zip(keys, node.children, strict=True):
            named.append((str(key), child.field if isinstance(child, Leaf) else members(child)))
        return named

    def build(named: list[tuple[str, Field | list[Any]]]) -> np.dtype[Any]:
        names: list[str] = []
        formats: list[Any] = []
        offsets: list[int] = []
        for name, member in named:
            if isinstance(member, list):
                # Offsets count from the start of the row, so every level spans the whole row.
                part, offset = build(member), 0
            elif member.kind is Kind.OBJECT:
                continue
            else:
                part, offset = np.dtype((member.dtype, member.shape)), member.offset
            names.append(name)
            formats.append(part)
            offsets.append(offset)
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes})

    return build(members(node))


def layout(space: Space[Any]) -> Layout:
    """Compile a space into its `Layout`.

    Raises:
        SpaceError: If the space, or a space inside it, has no fixed size (Sequence, Graph, custom spaces).
    """
    return Layout(space)
