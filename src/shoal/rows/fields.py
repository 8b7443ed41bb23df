"""Fields and nodes: the leaves of a space, and the tree that puts them together again."""

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
    """What one field holds."""

    ARRAY = "array"
    SCALAR = "scalar"  # a Discrete: one number
    TEXT = "text"
    CHOICE = "choice"  # the index of a OneOf
    OBJECT = "object"  # a Sequence, Graph or custom space: no bytes in the row, a place in the object column


@dataclass(frozen=True)
class Field:
    """One leaf of a space: where it lies in the row and what it holds."""

    path: Path
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    space: Space[Any]
    offset: int
    """In bytes; for an OBJECT, its column among the objects."""
    alphabet: str = ""
    """Text only: the character behind each code; the entry of code 0 is never read."""

    # Plain numbers and text, worked out once: a policy reads them inside torch.compile.
    size: int = field(init=False)
    """Number of elements."""
    nbytes: int = field(init=False)
    """Bytes it takes in a row."""
    dtype_name: str = field(init=False)
    # Text of ASCII only, and None for any other: translation tables, so that no character costs a step of
    # Python. To codes, with 0 for each byte that is not in the charset, and back.
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
        """Smallest and largest value of each element, in this field's dtype and shape."""
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
        """The codes of a text.

        Raises:
            Misfit: If it is no string, too long, or uses a character outside the charset.
        """
        (limit,) = self.shape
        if not isinstance(text, str):
            raise Misfit(self.path, f"expected a string, got {describe(text)}", is_type=True)
        if len(text) > limit:
            raise Misfit(self.path, f"expected at most {limit} characters, got {len(text)}: {text!r}")
        if self.byte_codes and text.isascii():
            raw = text.encode("ascii").translate(self.byte_codes)
            if 0 not in raw:  # the code of every byte that is not in the charset
                return np.frombuffer(raw.ljust(limit, b"\0"), np.uint8)
        codes = np.zeros(limit, self.dtype)
        for position, character in enumerate(text):
            code = self.alphabet.find(character, 1)
            if code < 0:
                raise Misfit(self.path, f"expected characters of its charset, got {character!r}")
            codes[position] = code
        return codes

    def decode_text(self, codes: NDArray[Any]) -> str:
        """The text behind its codes."""
        if self.byte_characters:
            raw = codes.tobytes()
            end = raw.find(0)
            return raw[: end if end >= 0 else None].translate(self.byte_characters).decode("ascii")
        taken = codes.tolist()
        end = taken.index(0) if 0 in taken else len(taken)
        return "".join([self.alphabet[code] for code in taken[:end]])


class Misfit(ObservationError):
    """A value that does not fit its field; whoever knows the env says so in an error of its own."""

    def __init__(
        self, path: Path, problem: str, *, root: str = "", is_type: bool = False, is_missing: bool = False
    ) -> None:
        super().__init__(f"{where(path, root or 'value')}: {problem}")
        self.path, self.problem, self.root = path, problem, root
        self.is_type, self.is_missing = is_type, is_missing
        self.row: int | None = None  # in a batch, if it is of one row alone
        self.public: type[ObservationError] = ObservationError
        if is_type or is_missing:
            self.public = ObservationTypeError if is_type else ObservationPartMissing


def where(path: Path, root: str = "value") -> str:
    """Spell a path the way a user would write it: ``observation["map"][0]``."""
    return root + "".join(f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in path)


def describe(value: Any) -> str:
    """Type, shape and dtype of a value, for error messages."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (np.generic, bool, int, float, str)):
        return f"{value!r} ({type(value).__name__})"
    return f"a {type(value).__name__}"


# ------------------------------------------------------------------------------------------------ nodes
#
# The three kinds of nodes share three methods over the columns of a batch:
#   views   nested zero-copy arrays: Text as codes, OneOf as (index, choices)
#   values  what Gymnasium gives for a batch: Text as strings, OneOf as pairs (index, value)
#   split   a list with one value for each of `count` rows, as Gymnasium hands them to the envs: a Box without
#           dimensions as a scalar, or, if `sampled`, as an array, the way its space samples it


@dataclass(frozen=True)
class Leaf:
    """A node with a single field."""

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
    """A Dict or a Tuple."""

    path: Path
    keys: tuple[str | int, ...]
    children: tuple[Node, ...]
    is_dict: bool

    def gather(self, parts: Sequence[Any]) -> Any:
        """Put one part for each child into a container of the right type."""
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
    """A OneOf: an index, and all its choices side by side."""

    index: int
    field: Field
    children: tuple[Node, ...]
    members: tuple[range, ...]
    """For each choice, the indices of its fields."""

    def views(self, columns: Columns) -> Any:  # noqa: D102
        return columns[self.index], tuple(child.views(columns) for child in self.children)

    def values(self, columns: Columns) -> Any:  # noqa: D102
        return tuple(self.split(columns, len(columns[self.index])))

    def split(self, columns: Columns, count: int, *, sampled: bool = False) -> list[Any]:  # noqa: D102
        chosen = columns[self.index]
        # Gymnasium hands over what is inside a OneOf as it was sampled.
        parts = [child.split(columns, count, sampled=True) for child in self.children]
        return [(index, parts[index][row]) for row, index in enumerate(chosen)]


Node = Leaf | Branch | Choice


def walk(node: Node) -> list[Node]:
    """All nodes of a tree, parents first."""
    children = () if isinstance(node, Leaf) else node.children
    return [node, *(below for child in children for below in walk(child))]
