"""Integers in the forms that users write: 100000, 100_000 or 1e5."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

WHOLE_NUMBERS = ConstructorRegistry()
"""The registry for `tyro.cli` that reads each integer option with `whole`."""


def whole(text: str) -> int:
    """Convert a text to an integer.

    Raises:
        ValueError: If the text is not an integer.
    """
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"expected a whole number, such as 100000 or 1e5, got {text!r}")


@WHOLE_NUMBERS.primitive_rule
def _read_integers(given: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if given.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda parts: whole(parts[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )
