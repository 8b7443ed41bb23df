"""Fields and nodes: a field is one leaf of a space; the tree of nodes rebuilds a value from its fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from shoal.errors import ObservationError, ObservationPartMissing, ObservationTypeError

Path = tuple[str | int, ...]
Columns = Sequence[NDArray[Any]]
"""One array per field of a layout, each with the same leading (batch) shape."""


class Kind(Enum):
    """The kind of value that a field holds."""

    ARRAY = "array"
    SCALAR = "scalar"  # a Discrete: one number
    TEXT = "text"
    CHOICE = "choice"  # the index of a OneOf
    OBJECT = "object"  # a Sequence, Graph or custom space: it has an object column, and no bytes in the row


@dataclass(frozen=True)
class Field:
    """One leaf of a space: where it lies in the row and what it holds."""

    path: Path
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    space: Space[Any]
    offset: int
    """The offset in the row, in bytes; for an OBJECT, the number of its object column."""
    alphabet: str = ""
    """For Text: the character of each code. The entry of code 0 is never read."""

    # Plain numbers and strings, computed once, because a policy reads them inside torch.compile.
    size: int = field(init=False)
    """The number of elements."""
    nbytes: int = field(init=False)
    """The number of bytes it takes in a row."""
    dtype_name: str = field(init=False)
    # Translation tables for Text with an ASCII charset (None for other fields), so that no Python loop over
    # characters is needed. `byte_codes` maps a byte to its code, or to 0 if the charset lacks it;
    # `byte_characters` maps a code back to its byte.
    byte_codes: bytes | None = field(init=False, repr=False)
    byte_characters: bytes | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        nbytes = 0 if self.kind is Kind.OBJECT else size * self.dtype.itemsize
        byte_codes = byte_characters = None
        if self.kind is Kind.TEXT and self.alphabet.isascii():
            byte_codes = bytes(max(self.alphabet.find(chr(byte), 1), 0) for byte in range(256))
            byte_characters = self.alphabet.encode("ascii").ljust(256, b"\0")
        worked_out: dict[str, Any] = {
            "size": size,
            "nbytes": nbytes,
            "dtype_name": self.dtype.name,
            "byte_codes": byte_codes,
            "byte_characters": byte_characters,
        }
        for name, value in worked_out.items():
            object.__setattr__(self, name, value)

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the smallest and the largest value of each element, in this field's dtype and shape."""
        space, low, high = self.space, 0, 1  # type: tuple[Any, Any, Any]
        if isinstance(space, spaces.Box):
            low, high = space.low, space.high
        elif isinstance(space, spaces.Discrete):
            low, high = space.start, int(space.start) + int(space.n) - 1
        elif isinstance(space, spaces.MultiDiscrete):
            low, high = space.start, space.start + (space.nvec - 1)
        elif isinstance(space, spaces.Text):
            # A text may not end before its min_length.
            low, high = np.arange(self.size) < space.min_length, len(self.alphabet) - 1
        elif isinstance(space, spaces.OneOf):
            high = len(space.spaces) - 1
        return (
            np.broadcast_to(np.asarray(low).astype(self.dtype), self.shape),
            np.broadcast_to(np.asarray(high).astype(self.dtype), self.shape),
        )

    def encode_text(self, text: Any) -> NDArray[Any]:
        """Return the codes of a text.

        Raises:
            Misfit: If `text` is not a string, is too long, or has a character outside the charset.
        """
        (limit,) = self.shape
        if not isinstance(text, str):
            raise Misfit(self.path, f"expected a string, got {describe(text)}", is_type=True)
        if len(text) > limit:
            raise Misfit(self.path, f"expected at most {limit} characters, got {len(text)}: {text!r}")
        if self.byte_codes and text.isascii():
            raw = text.encode("ascii").translate(self.byte_codes)
            if 0 not in raw:  # 0 stands for every byte outside the charset
                return np.frombuffer(raw.ljust(limit, b"\0"), np.uint8)
        codes = np.zeros(limit, self.dtype)
        for position, character in enumerate(text):
            code = self.alphabet.find(character, 1)
            if code < 0:
                raise Misfit(self.path, f"expected characters of its charset, got {character!r}")
            codes[position] = code
        return codes

    def decode_text(self, codes: NDArray[Any]) -> str:
        """Return the text of the given codes."""
        if self.byte_characters:
            raw = codes.tobytes()
            end = raw.find(0)
            return raw[: end if end >= 0 else None].translate(self.byte_characters).decode("ascii")
        taken = codes.tolist()
        end = taken.index(0) if 0 in taken else len(taken)
        return "".join([self.alphabet[code] for code in taken[:end]])


class Misfit(ObservationError):
    """A value does not fit its field. Callers that know the env raise an error that names it instead."""

    def __init__(
        self, path: Path, problem: str, *, root: str = "", is_type: bool = False, is_missing: bool = False
    ) -> None:
        super().__init__(f"{where(path, root or 'value')}: {problem}")
        self.path, self.problem, self.root = path, problem, root
        self.is_type, self.is_missing = is_type, is_missing
        self.row: int | None = None  # the row of the batch, if the problem is in one row
        self.public: type[ObservationError] = ObservationError
        if is_type or is_missing:
            self.public = ObservationTypeError if is_type else ObservationPartMissing


def where(path: Path, root: str = "value") -> str:
    """Return a path as a user would write it: ``observation["map"][0]``."""
    return root + "".join(f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in path)


def describe(value: Any) -> str:
    """Describe a value by its type, or by its shape and dtype, for error messages."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (np.generic, bool, int, float, str)):
        return f"{value!r} ({type(value).__name__})"
    return f"a {type(value).__name__}"


# ------------------------------------------------------------------------------------------------ nodes
#
# Each of the three node classes has these methods over the columns of a batch:
#   views   return nested arrays without a copy: Text as codes, OneOf as (index, choices)
#   values  return the batch in Gymnasium's form: Text as strings, OneOf as pairs (index, value)
#   split   return a list with one value for each of `count` rows, in the form that Gymnasium passes to envs.
#           A Box without dimensions becomes a scalar; with `sampled` it becomes an array, as space.sample()
#           returns it


@dataclass(frozen=True)
class Leaf:
    """A node that has one field."""

    index: int
    field: Field

    def views(self, columns: Columns) -> Any:  # noqa: D102 - see the comment above
        return columns[self.index]

    def values(self, columns: Columns) -> Any:  # noqa: D102
        if self.field.kind in (Kind.TEXT, Kind.OBJECT):
            return tuple(self.split(columns, len(columns[self.index])))
        return columns[self.index]

    def split(self, columns: Columns, count: int, *, sampled: bool = False) -> list[Any]:  # noqa: D102
        if self.field.kind is Kind.TEXT:
            return [self.field.decode_text(codes) for codes in columns[self.index]]
        # A Box samples floats as an array even without dimensions, integers as a scalar.
        if sampled and self.field.dtype.kind == "f" and not self.field.shape:
            return [columns[self.index][row, ...] for row in range(count)]
        return list(columns[self.index])


@dataclass(frozen=True)
class Branch:
    """The node of a Dict or a Tuple."""

    path: Path
    keys: tuple[str | int, ...]
    children: tuple[Node, ...]
    is_dict: bool

    def gather(self, parts: Sequence[Any]) -> Any:
        """Put `parts`, one for each child, into a dict or a tuple."""
        return dict(zip(self.keys, parts, strict=True)) if self.is_dict else tuple(parts)

    def views(self, columns: Columns) -> Any:  # noqa: D102
        return self.gather([child.views(columns) for child in self.children])

    def values(self, columns: Columns) -> Any:  # noqa: D102
        return self.gather([child.values(columns) for child in self.children])

    def split(self, columns: Columns, count: int, *, sampled: bool = False) -> list[Any]:  # noqa: D102
        parts = [child.split(columns, count, sampled=sampled) for child in self.children]
        if not parts:
            return [self.gather([]) for _ in range(count)]
        return [self.gather(row) for row in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Choice:
    """The node of a OneOf: an index, then all its choices one after another."""

    index: int
    field: Field
    children: tuple[Node, ...]
    members: tuple[range, ...]
    """The indices of the fields of each choice."""

    def views(self, columns: Columns) -> Any:  # noqa: D102
        return columns[self.index], tuple(child.views(columns) for child in self.children)

    def values(self, columns: Columns) -> Any:  # noqa: D102
        return tuple(self.split(columns, len(columns[self.index])))

    def split(self, columns: Columns, count: int, *, sampled: bool = False) -> list[Any]:  # noqa: D102
        chosen = columns[self.index]
        # Gymnasium passes values inside a OneOf in the form in which the space samples them.
        parts = [child.split(columns, count, sampled=True) for child in self.children]
        return [(index, parts[index][row]) for row, index in enumerate(chosen)]


Node = Leaf | Branch | Choice


def walk(node: Node) -> list[Node]:
    """Return all nodes of a tree, parents first."""
    children = () if isinstance(node, Leaf) else node.children
    return [node, *(below for child in children for below in walk(child))]
