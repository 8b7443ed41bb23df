"""The table and its bodies: shapes, masses and constants. Metres, seconds, kilograms; (0, 0) is the centre.

All values are those of the course's game (`hockey` 2.6 on Box2D 2.3). The vertices of polygons are in
counter-clockwise order. Those of a racket are relative to its centre of mass.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FPS = 50
TIME_STEP = 1.0 / FPS
SCALE = 60.0  # pixels of the original's picture in a metre
WIDTH, HEIGHT = 10.0, 8.0  # the whole picture
HALF_WIDTH, HALF_HEIGHT = 235.0 / SCALE, 200.0 / SCALE  # the inner faces of the walls

SKIN = 0.01  # Box2D keeps polygons this far apart from what touches them
PUCK_RADIUS = 13.0 / SCALE
REACH = PUCK_RADIUS + SKIN  # the distance at which the puck touches a polygon

# Bodies, in the order of `physics.py`: the racket that faces right, the one that faces left, the puck, and
# one body for all walls and goals.
PUCK, STATIC = 2, 3
BODIES = 4

# Polygons: the two rackets, two long walls, four corner pieces with a slanted end at the goal, two goals.
WALLS, GOALS, POLYGONS = 2, 8, 10  # the first wall, the first goal, and the number of all


def _racket() -> tuple[NDArray[np.float64], float, float, float]:
    """Return the vertices of the racket that faces right, its mass, its inertia and its centre of mass."""
    corners = np.array([(-10, 20), (-18, 10), (-21, 0), (-18, -10), (-10, -20), (5, -20), (5, 20)])
    corners = corners * 1.2 / SCALE
    following = np.roll(corners, -1, 0)
    cross = corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]
    area = cross.sum() / 2
    center = ((corners + following) * cross[:, None]).sum(0) / (6 * area)
    squares = (corners**2 + corners * following + following**2).sum(1)
    mass = 200.0 / 1.2 * area
    inertia = 200.0 / 1.2 * (squares * cross).sum() / 12 - mass * (center**2).sum()
    corners = corners - center
    corners[:, 1] = (corners[:, 1] - corners[[4, 3, 2, 1, 0, 6, 5], 1]) / 2  # exactly symmetric
    return corners, float(mass), float(inertia), float(center[0])


_vertices, RACKET_MASS, RACKET_INERTIA, _center = _racket()
CENTER_OFFSET = -_center  # from the centre of mass to the position that players see, along the racket's axis
RACKET_RADIUS = float(np.hypot(*_vertices.T).max())
PUCK_MASS = 7.0 * math.pi * PUCK_RADIUS**2
PUCK_INERTIA = PUCK_MASS * PUCK_RADIUS**2 / 2
INVERSE_MASS = np.array([1 / RACKET_MASS, 1 / RACKET_MASS, 1 / PUCK_MASS, 0.0])
INVERSE_INERTIA = np.array([1 / RACKET_INERTIA, 1 / RACKET_INERTIA, 1 / PUCK_INERTIA, 0.0])

FRICTION_PUCK_WALL = 0.1
FRICTION_RACKET = math.sqrt(0.1)  # of a racket with anything else: sqrt(1.0 * 0.1)
RESTITUTION_PUCK = 0.95


def _polygons() -> list[NDArray[np.float64]]:
    # In pixels. A mirrored polygon is reversed, so that its vertices stay against the clock.
    wall = np.array([(-250, 200), (250, 200), (250, 220), (-250, 220)]) / SCALE
    piece = np.array([(-255, -215), (-235, -215), (-235, -82), (-255, -75)]) / SCALE
    goal = np.array([(-265, -75), (-245, -75), (-245, 75), (-265, 75)]) / SCALE
    x, y = np.array([-1, 1]), np.array([1, -1])
    pieces = [piece, -piece, (piece * y)[::-1], (piece * x)[::-1]]
    return [_vertices, -_vertices, wall, -wall, *pieces, goal, -goal]


COUNTS = np.array([len(each) for each in _polygons()])
RACKET_CORNERS = len(_vertices)
VERTICES = np.zeros((len(COUNTS), RACKET_CORNERS + 1, 2))  # after the last vertex comes the first one again
NORMALS = np.zeros_like(VERTICES)  # of the edge from each vertex to the next, outwards
BOXES = np.array([[*each.min(0), *each.max(0)] for each in _polygons()])  # lowest x and y, highest x and y
for _index, _polygon in enumerate(_polygons()):
    _edges = np.roll(_polygon, -1, 0) - _polygon
    VERTICES[_index, : len(_polygon) + 1] = [*_polygon, _polygon[0]]
    NORMALS[_index, : len(_polygon)] = (
        np.stack([_edges[:, 1], -_edges[:, 0]], 1) / np.hypot(*_edges.T)[:, None]
    )
