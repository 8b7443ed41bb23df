"""Batch: what one ``recv`` returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """The rows of one batch (R of them) and what happened to each since it was last received."""

    obs: Any
    """Observations, [R, ...]; nested if the space is and the vec is not flat."""
    rewards: NDArray[np.float64]
    """[R]. The reward of a row that waits (`mask` was clear, `resets` is too) belongs to its last action. An
    agent that has not acted yet may be rewarded too: that reward belongs to no action."""
    terminations: NDArray[np.bool_]
    """[R]: the row's episode has ended by itself. Reported once, also to an agent that has not acted."""
    truncations: NDArray[np.bool_]
    """[R]: the row's episode was cut off. Both may be True."""
    mask: NDArray[np.bool_]
    """[R]: the row needs an action now; actions for other rows are not read."""
    resets: NDArray[np.bool_]
    """[R]: the row carries no transition to learn from: it was reset, its agent has finished or has not acted
    yet, or a reset of other envs left it alone."""
    env_ids: NDArray[np.int64]
    """[R]: the env of each row."""
    agent_ids: NDArray[np.int64]
    """[R]: the agent of each row within its env."""
    infos: dict[str, Any]
    """Gymnasium's form: arrays of R entries, with ``_key`` saying which are set."""
