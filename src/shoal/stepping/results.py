"""What an env returned, evened out: the rare forms, which both cores leave to these functions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from shoal.rows.fields import Misfit, describe
from shoal.stepping.row_slice import Run, keep


def five(result: Any) -> Any:
    """A step in old gym's form of four as Gymnasium's five."""
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
    """A reward that is no plain number: an array of one will do, nothing else."""
    try:
        array = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if reward is None or array.size != 1:
        raise Misfit((), f"expected a number, got {describe(reward)}", root="reward", is_type=True)
    return float(array.item())


def flag(value: Any, name: str) -> bool:
    """Whether a flag of any type is set."""
    try:
        return bool(value)
    except Exception:
        raise Misfit((), f"expected a bool, got {describe(value)}", root=name, is_type=True) from None


def checked(info: Any) -> dict[str, Any]:
    """An info that really is one; None stands for an empty one."""
    if isinstance(info, dict):
        return info
    if info is not None and not isinstance(info, Mapping):
        raise Misfit((), f"expected a dict, got {describe(info)}", root="info", is_type=True)
    return dict(info or {})


def final(run: Run, row: int, obs: Any, info: Any) -> dict[str, Any]:
    """Under SAME_STEP: what the reset that follows would write over."""
    # Copied, because an env may reuse its buffer for the first observation of the next episode.
    obs = run.observation.flat(run.arena.observations)[row].copy() if run.flat else deepcopy(obs)
    return {"final_obs": obs, "final_info": keep(checked(info))}
