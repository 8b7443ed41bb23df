"""Frames of a game, in the colours of the course's game."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.hockey.rules import observe
from shoal.hockey.table import (
    CENTER_OFFSET,
    COUNTS,
    GOALS,
    HEIGHT,
    PUCK_RADIUS,
    RACKET_CORNERS,
    SCALE,
    VERTICES,
    WALLS,
    WIDTH,
)
from shoal.native.drawing import WHITE, Canvas

SHAPE = int(HEIGHT * SCALE), int(WIDTH * SCALE)
PLAYER_ONE, PLAYER_TWO = (235, 98, 53), (93, 158, 199)
BLACK = (0, 0, 0)  # puck and walls
GOAL_AREA, CENTER_CIRCLE = (239, 203, 138), (204, 204, 204)
COLORS = (WHITE, BLACK, PLAYER_ONE, PLAYER_TWO, GOAL_AREA, CENTER_CIRCLE)
"""All colours of a frame."""

GOAL_LINE, GOAL_AREA_RADIUS, CENTER_RADIUS = 250.0 / SCALE, 75.0 / SCALE, 100.0 / SCALE
RACKET = VERTICES[0, :RACKET_CORNERS] - (CENTER_OFFSET, 0.0)  # of player one, around its position


@cache
def _table() -> Canvas:
    """Return the empty table. Draw on a copy of its frame only."""
    canvas = Canvas(width=WIDTH, shape=SHAPE)
    canvas.disc((0.0, 0.0), CENTER_RADIUS, CENTER_CIRCLE)
    for side in (-1.0, 1.0):
        canvas.disc((side * GOAL_LINE, 0.0), GOAL_AREA_RADIUS, GOAL_AREA)
        canvas.rectangle((side * GOAL_LINE, -HEIGHT / 2), (side * WIDTH / 2, HEIGHT / 2), WHITE)
    for polygon in range(WALLS, GOALS):
        canvas.polygon(VERTICES[polygon, : COUNTS[polygon]].tolist(), BLACK)
    return canvas


def shapes() -> dict[str, Any]:
    """Return what is on a frame as plain numbers, in metres, for code that draws frames elsewhere."""
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "walls": [VERTICES[polygon, : COUNTS[polygon]].tolist() for polygon in range(WALLS, GOALS)],
        "racket": RACKET.tolist(),
        "puck_radius": PUCK_RADIUS,
        "goal_line": GOAL_LINE,
        "goal_area_radius": GOAL_AREA_RADIUS,
        "center_radius": CENTER_RADIUS,
    }


def draw_observation(obs: Sequence[float] | NDArray[Any]) -> NDArray[np.uint8]:
    """Draw what player one observes.

    Args:
        obs: An observation of player one.

    Returns:
        The frame, of shape (480, 600, 3).

    Example:
        >>> from shoal.hockey.drawing import draw_observation
        >>> obs = [-3, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, -1.5, 0.5, 0, 0, 0, 0]
        >>> draw_observation(obs).shape
        (480, 600, 3)
    """
    canvas = copy(_table())
    canvas.frame = canvas.frame.copy()
    for first, side, color in ((0, 1.0, PLAYER_ONE), (6, -1.0, PLAYER_TWO)):
        x, y, angle = map(float, obs[first : first + 3])
        c, s = side * math.cos(angle), side * math.sin(angle)
        canvas.polygon((RACKET @ np.array([(c, s), (-s, c)]) + (x, y)).tolist(), color)
    canvas.disc((float(obs[12]), float(obs[13])), PUCK_RADIUS, BLACK)
    return canvas.frame


def draw_state(state: Any) -> NDArray[np.uint8]:
    """Draw the state of a game, a record with the fields of `shoal.hockey.rules.STATE`."""
    write: Any = observe  # compiled functions have no annotations
    obs = np.zeros(16)
    write(state, 0, False, obs)
    return draw_observation(obs)
