"""sin and cos that the compiler can vectorise: a few multiplications instead of a call.

The error is at most 2.5e-16 for angles up to a million. Larger angles lose digits, and very large angles lose
all digits. Both functions compute in double precision. In plain Python they are ordinary functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# pi / 2 in three parts. The first two have so few digits that their multiples are exact.
PART_1, PART_2, PART_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
TURNS = 0.63661977236758134308  # 2 / pi
ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer


def _quarter(x: Any) -> tuple[Any, Any]:
    """Return the nearest number of quarter turns, and the remaining angle."""
    quarters = x * TURNS + ROUND - ROUND
    return quarters, x - quarters * PART_1 - quarters * PART_2 - quarters * PART_3


def _sine(x: Any) -> Any:
    """Return the sine of an angle from -pi / 4 to pi / 4."""
    y = x * x
    tail = 2.75573137070700676789e-06 + y * (-2.50507602534068634195e-08 + y * 1.58969099521155010221e-10)
    return x + x * y * (
        -1.66666666666666324348e-01
        + y * (8.33333333332248946124e-03 + y * (-1.98412698298579493134e-04 + y * tail))
    )


def _cosine(x: Any) -> Any:
    """Return the cosine of an angle from -pi / 4 to pi / 4."""
    y = x * x
    tail = -2.75573143513906633035e-07 + y * (2.08757232129817482790e-09 + y * -1.13596475577881948265e-11)
    return (
        1.0
        - y * 0.5
        + y
        * y
        * (
            4.16666666666666019037e-02
            + y * (-1.38888888888741095749e-03 + y * (2.48015872894767294178e-05 + y * tail))
        )
    )


def sin(x: Any) -> Any:
    """Return the sine of an angle in radians.

    Example:
        >>> from shoal.native.math import sin
        >>> print(f"{sin(0.5):.12f}")
        0.479425538604
    """
    quarters, angle = _quarter(np.float64(x))
    turn = np.int32(quarters) & 3
    value = _cosine(angle) if turn & 1 else _sine(angle)
    return -value if turn & 2 else value


def cos(x: Any) -> Any:
    """Return the cosine of an angle in radians.

    Example:
        >>> from shoal.native.math import cos
        >>> print(f"{cos(0.5):.12f}")
        0.877582561890
    """
    quarters, angle = _quarter(np.float64(x))
    turn = np.int32(quarters) & 3
    value = _sine(angle) if turn & 1 else _cosine(angle)
    return -value if (turn + 1) & 2 else value
