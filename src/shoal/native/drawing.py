"""Canvas: draw frames for the `render` of envs, in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]
Point = tuple[float, float]

WHITE, BLACK, GREY = (255, 255, 255), (30, 30, 36), (150, 150, 160)
BLUE, ORANGE, GREEN, RED = (52, 101, 164), (226, 121, 43), (78, 154, 80), (200, 50, 47)


class Canvas:
    """A frame to draw filled shapes on, in the units of the env: x to the right, y upwards.

    A pixel belongs to a shape if its centre does. Parts outside the frame are left out.

    Args:
        width: The width of the visible area, in units. The height follows from the shape.
        center: The point at the middle of the frame.
        shape: The rows and columns of pixels of the frame.
        color: The color of the background: red, green and blue.

    Attributes:
        frame: The frame, of dtype uint8 and shape (rows, columns, 3).
        xs: The x of each column of pixels.
        ys: The y of each row of pixels.

    Example:
        >>> from shoal.native.drawing import BLACK, Canvas
        >>> canvas = Canvas(width=6.0, shape=(20, 30))
        >>> canvas.rectangle((0.0, 0.0), (1.0, 0.6), BLACK)
        >>> canvas.frame.shape, int((canvas.frame == BLACK).all(axis=2).sum())
        ((20, 30, 3), 15)
    """

    def __init__(
        self,
        *,
        width: float,
        center: Point = (0.0, 0.0),
        shape: tuple[int, int] = (400, 600),
        color: Color = WHITE,
    ) -> None:
        rows, columns = shape
        unit = width / columns  # the width of a pixel
        self.frame: NDArray[np.uint8] = np.full((rows, columns, 3), color, np.uint8)
        self.xs: NDArray[np.float64] = center[0] + unit * (
            np.arange(columns, dtype=np.float64) + 0.5 - columns / 2
        )
        self.ys: NDArray[np.float64] = center[1] - unit * (np.arange(rows, dtype=np.float64) + 0.5 - rows / 2)

    def rectangle(self, corner: Point, opposite: Point, color: Color) -> None:
        """Fill a rectangle with sides along the axes."""
        window, _, _ = self._around([corner, opposite])
        window[:] = color

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        """Fill a polygon. A polygon that crosses itself gets holes."""
        window, x, y = self._around(points)
        inside = np.zeros(window.shape[:2], np.bool_)
        for (x1, y1), (x2, y2) in zip(points, [*points[1:], points[0]], strict=True):
            if y1 != y2:  # no ray to the right crosses a horizontal edge
                inside ^= ((y1 <= y) != (y2 <= y)) & (x < x1 + (y - y1) * ((x2 - x1) / (y2 - y1)))
        window[inside] = color

    def line(self, start: Point, end: Point, width: float, color: Color) -> None:
        """Draw a line with round ends."""
        (x1, y1), (x2, y2), reach = start, end, width / 2
        window, x, y = self._around([start, end], reach)
        length = (x2 - x1) ** 2 + (y2 - y1) ** 2
        along: Any = ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length if length else 0.0
        along = np.clip(along, 0.0, 1.0)  # the nearest point: 0 is the start of the line, 1 its end
        apart = (x - x1 - along * (x2 - x1)) ** 2 + (y - y1 - along * (y2 - y1)) ** 2
        window[apart <= reach**2] = color

    def disc(self, center: Point, radius: float, color: Color) -> None:
        """Fill a circle."""
        self.line(center, center, 2 * radius, color)

    def below(self, heights: NDArray[np.float64], color: Color) -> None:
        """Fill each column from the bottom up to its height."""
        self.frame[self.ys[:, None] <= heights] = color

    def _around(
        self, points: Sequence[Point], margin: float = 0.0
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.float64]]:
        """Return the part of the frame around the points, its x as a row and its y as a column."""
        x, y = np.asarray(points, np.float64).T
        columns = slice(*np.searchsorted(self.xs, [x.min() - margin, x.max() + margin]))
        rows = slice(*np.searchsorted(-self.ys, [-y.max() - margin, -y.min() + margin]))
        return self.frame[rows, columns], self.xs[columns], self.ys[rows, None]
