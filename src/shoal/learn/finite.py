"""Numbers that are none: where they come from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import Diverged
from shoal.learn.unpack import leaf
from shoal.rows.fields import where
from shoal.rows.layout import Layout


def not_finite(obs: Tensor, layout: Layout, env_ids: NDArray[Any]) -> str | None:
    """What is not finite in flat observations, [..., row], or None. `env_ids` are those of the last rows."""
    flat = obs.reshape(-1, math.prod(layout.flat_shape))
    for field in layout.fields:
        if field.dtype.kind != "f":
            continue
        numbers = leaf(flat, field, layout).reshape(len(flat), -1)
        wrong = ~numbers.isfinite()
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            env, value = env_ids[row % len(env_ids)], float(numbers[row, place])
            return (
                f"{where(field.path, 'observation')} of env {env} has {value}. Correct the env, or cut it off"
            )
    return None


def check_actions(actions: NDArray[Any], obs: Tensor, layout: Layout, env_ids: NDArray[Any]) -> None:
    """See that quantities are numbers, before an env does.

    Raises:
        Diverged: If they are not, and what seems to be the reason.
    """
    if np.isfinite(actions).all():
        return
    why = not_finite(obs, layout, env_ids) or "neither are the weights. Take a smaller learning_rate"
    raise Diverged(f"the actions of the policy are not numbers: {why}")
