"""Numbers in the forms that users write: 100000, 100_000 or 1e5, fractions such as 1/8, tables as JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

WHOLE_NUMBERS = ConstructorRegistry()
"""The registry for `tyro.cli` that reads each integer option with `whole`, each float with `fraction`."""


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


def fraction(text: str) -> float:
    """Convert a text to a float.

    Raises:
        ValueError: If the text is neither a number nor a fraction.
    """
    above, slash, below = text.partition("/")
    with suppress(ValueError, ZeroDivisionError):
        return float(above) / float(below) if slash else float(text)
    raise ValueError(f"expected a number, such as 0.125 or 1/8, got {text!r}")


def table(text: str) -> tuple[tuple[float, ...], ...]:
    """Convert a JSON list of lists of numbers.

    Raises:
        ValueError: If the text is something else.
    """
    with suppress(ValueError, TypeError):
        return tuple(tuple(map(float, line)) for line in json.loads(text))
    raise ValueError(f"expected a JSON list of lists of numbers, such as [[-1, 0], [1, 0]], got {text!r}")


@WHOLE_NUMBERS.primitive_rule
def _read_tables(given: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if given.type != tuple[tuple[float, ...], ...]:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=lambda parts: table(parts[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [json.dumps(value)],
    )


@WHOLE_NUMBERS.primitive_rule
def _read_floats(given: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if given.type is not float:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda parts: fraction(parts[0]),
        is_instance=lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


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
