"""Bring the values that an env returned into one form. Both cores call these functions in rare cases only."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from shoal.rows.arena import Arena
from shoal.rows.copies import copied_column
from shoal.rows.fields import Misfit, describe
from shoal.rows.layout import Layout
from shoal.stepping.row_slice import RowSlice, keep


def five(result: Any) -> Any:
    """Convert the result of a step to Gymnasium's tuple of five; old gym's tuple of four is accepted.

    Raises:
        Misfit: If the result is neither.
    """
    if not isinstance(result, (tuple, list)) or len(result) not in (4, 5):
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else describe(result)
        wanted = "5 values (observation, reward, terminated, truncated, info), or old gym's 4"
        raise Misfit((), f"expected {wanted}, got {got}", root="step()", is_type=True)
    if len(result) == 5:
        return tuple(result)
    obs, reward, done, info = result
    info = checked(info)
    done = flag(done, "done")
    truncated = done and bool(info.get("TimeLimit.truncated", False))
    return obs, reward, done and not truncated, truncated, info


def number(reward: Any) -> float:
    """Convert a reward to a float; an array of one number is accepted.

    Raises:
        Misfit: If the reward is not one number.
    """
    try:
        array = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if reward is None or array.size != 1:
        raise Misfit((), f"expected a number, got {describe(reward)}", root="reward", is_type=True)
    return float(array.item())


def flag(value: Any, name: str) -> bool:
    """Convert a flag of any type to a bool.

    Args:
        value: The flag.
        name: Name of the flag, for the message.

    Raises:
        Misfit: If the flag has no truth value.
    """
    try:
        return bool(value)
    except Exception:
        raise Misfit((), f"expected a bool, got {describe(value)}", root=name, is_type=True) from None


def checked(info: Any) -> dict[str, Any]:
    """Return an info as a dict; None becomes an empty dict.

    Raises:
        Misfit: If the info is not a mapping.
    """
    if isinstance(info, dict):
        return info
    if info is not None and not isinstance(info, Mapping):
        raise Misfit((), f"expected a dict, got {describe(info)}", root="info", is_type=True)
    return dict(info or {})


def last_observation(arena: Arena, row: int, layout: Layout, *, flat: bool) -> Any:
    """Copy the observation of a row before a reset writes over it.

    Args:
        arena: The arena that holds the row.
        row: Index of the row.
        layout: Layout of the observations.
        flat: Whether to return the flat row instead of a value of the observation space.
    """
    if flat or (isinstance(layout.space, Box) and layout.space.shape):  # the flat row of a Box is its value
        return layout.flat(arena.observations[row]).copy()
    one = slice(row, row + 1)
    objects = copied_column(arena.observation_objects[one]) if layout.num_objects else None
    return layout.root.split(layout.columns(arena.observations[one].copy(), objects), 1)[0]


def final(rows: RowSlice, row: int, obs: Any, info: Any) -> dict[str, Any]:
    """Return the info that reports the end of an episode under SAME_STEP.

    Both cores call this function when the row holds the last observation, before they reset the env.

    Args:
        rows: The rows.
        row: Index of the row that ended.
        obs: The last observation as the env returned it; the row already holds it.
        info: The info of the last step.
    """
    # Copied, because the env may reuse its buffer for the first observation of the next episode.
    flat = rows.flat
    last = last_observation(rows.arena, row, rows.observation, flat=True) if flat else deepcopy(obs)
    return {"final_obs": last, "final_info": keep(checked(info))}
