"""The error of a failed check, and comparisons of nested values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class ContractViolation(AssertionError):
    """An env or a vec breaks its contract; the message says which promise."""


def require(kept: Any, promise: str, *details: Any) -> None:
    """Raise ContractViolation with the text `promise` unless `kept` is true."""
    if not kept:
        raise ContractViolation(": ".join([promise, *map(str, details)]))


def require_equal(got: Any, expected: Any, promise: str) -> None:
    """Raise ContractViolation unless two nested values have equal structure, dtypes and values."""
    problem = difference(got, expected)
    require(problem is None, promise, problem)


def require_raises(kind: type[BaseException], verb: Callable[[], Any], promise: str) -> None:
    """Raise ContractViolation unless `verb` raises `kind`."""
    try:
        verb()
    except kind:
        return
    except Exception as error:
        raise ContractViolation(f"{promise}: raised {error!r}, not {kind.__name__}") from error
    raise ContractViolation(f"{promise}: nothing was raised, expected {kind.__name__}")


def difference(got: Any, expected: Any, path: str = "") -> str | None:
    """Return a text that says where two nested values differ; None if they are equal."""
    at = path or "value"
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or got.keys() != expected.keys():
            return f"{at}: got {got!r}, expected {expected!r}"
        parts = [(got[key], expected[key], f"{path}[{key!r}]") for key in expected]
    elif isinstance(expected, (tuple, list)):
        if type(got) is not type(expected) or len(got) != len(expected):
            return f"{at}: got {got!r}, expected {expected!r}"
        parts = [(g, e, f"{path}[{i}]") for i, (g, e) in enumerate(zip(got, expected, strict=True))]
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        if not isinstance(got, np.ndarray) or got.dtype != object or got.shape != expected.shape:
            return f"{at}: got {got!r}, expected {expected!r}"
        parts = [(g, e, f"{path}[{i}]") for i, (g, e) in enumerate(zip(got, expected, strict=True))]
    elif isinstance(expected, (np.ndarray, np.generic)):
        same = (
            isinstance(got, (np.ndarray, np.generic))
            and got.dtype == expected.dtype
            and got.shape == expected.shape
            and np.array_equal(got, expected, equal_nan=got.dtype.kind == "f")
        )
        return None if same else f"{at}: got {got!r}, expected {expected!r}"
    else:
        same = got is expected or got == expected or (got != got and expected != expected)  # or both NaN
        return None if same else f"{at}: got {got!r}, expected {expected!r}"
    return next((found for part in parts if (found := difference(*part)) is not None), None)
