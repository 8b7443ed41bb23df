"""Sets of discrete actions, for learners that choose among alternatives, and mirrored transitions.

A set is a list of actions of the game: force x, force y, torque, and shoot.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError

Action = tuple[float, float, float, float]

BASIC: tuple[Action, ...] = (
    (0, 0, 0, 0),
    *((-1, 0, 0, 0), (1, 0, 0, 0)),
    *((0, -1, 0, 0), (0, 1, 0, 0)),
    *((0, 0, -1, 0), (0, 0, 1, 0)),
    (0, 0, 0, 1),
)
"""The 8 actions of the course's game, in its order: nothing, one force or torque, shoot."""

_DIAGONALS = tuple(product((-1.0, 1.0), (-1.0, 1.0)))

COMBINED_20: tuple[Action, ...] = (
    *BASIC,
    *((x, y, 0.0, 0.0) for x, y in _DIAGONALS),
    *((x, y, turn, 0.0) for x, y in _DIAGONALS for turn in (-1.0, 1.0)),
)
"""The basic actions, and forces in both directions at once, also with a torque."""

COMBINED_24: tuple[Action, ...] = (
    *COMBINED_20,
    *((0.0, y, turn, 0.0) for y, turn in _DIAGONALS),
)
"""The 20 combined actions, and a force along the own goal with a torque."""

SETS = {"basic": BASIC, "combined-20": COMBINED_20, "combined-24": COMBINED_24}


def fine_actions(fineness: int) -> tuple[Action, ...]:
    """Return actions with one force or torque of several strengths: nothing, then these, then shoot.

    Args:
        fineness: Number of strengths and one: with 3, each direction has the strengths 0.5 and 1, which makes
            14 actions.

    Raises:
        ArgumentError: If it is less than 2.

    Example:
        >>> from shoal.hockey import fine_actions
        >>> len(fine_actions(3)), fine_actions(3)[1]
        (14, (-0.5, 0.0, 0.0, 0.0))
    """
    if fineness < 2:
        raise ArgumentError(f"fineness: expected at least 2, got {fineness}")
    found: list[Any] = [(0.0, 0.0, 0.0, 0.0)]
    for place, sign in product(range(3), (-1.0, 1.0)):
        for step in range(1, fineness):
            action = [0.0] * 4
            action[place] = sign * step / (fineness - 1)
            found.append(tuple(action))
    return (*found, (0.0, 0.0, 0.0, 1.0))


# -- mirrored transitions ------------------------------------------------------------------------------

# The game is the same if it is mirrored at the line between the goals' centres.
_OBSERVATION_SIGNS = np.ones(18, np.float32)
_OBSERVATION_SIGNS[[1, 2, 4, 5, 7, 8, 10, 11, 13, 15]] = -1
_ACTION_SIGNS = np.array([1, -1, -1, 1], np.float32)


def mirror_observations(observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return observations of the mirrored game: y, angles and their velocities change sign."""
    return observations * _OBSERVATION_SIGNS


def mirror_actions(actions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return actions of the mirrored game: force y and torque change sign."""
    return actions * _ACTION_SIGNS


def mirrored_places(actions: tuple[Action, ...]) -> NDArray[np.int64]:
    """Return the place of each action's mirror image in a set of actions.

    Raises:
        ArgumentError: If an image is not in the set.

    Example:
        >>> from shoal.hockey.actions import BASIC, mirrored_places
        >>> mirrored_places(BASIC).tolist()
        [0, 1, 2, 4, 3, 6, 5, 7]
    """
    table = np.asarray(actions, np.float32)
    same = (mirror_actions(table)[:, None] == table).all(-1)
    if not same.any(1).all():
        raise ArgumentError(f"actions: expected a set with the mirror image of each, got {actions}")
    found: NDArray[np.int64] = same.argmax(1)
    return found
