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
    """[R]; 0 where the row carries no transition. Those of a row that waits (`mask` was clear, `resets` is
    too) belong to its last action."""
    terminations: NDArray[np.bool_]
    """[R]: the transition ended the row's episode by itself."""
    truncations: NDArray[np.bool_]
    """[R]: the transition's episode was cut off. Both may be True."""
    mask: NDArray[np.bool_]
    """[R]: the row needs an action now; actions for other rows are not read."""
    resets: NDArray[np.bool_]
    """[R]: the row carries no transition: it was reset, its agent has finished, or a reset of other envs
    left it alone."""
    env_ids: NDArray[np.int64]
    """[R]: the env of each row."""
    agent_ids: NDArray[np.int64]
    """[R]: the agent of each row within its env."""
    infos: dict[str, Any]
    """Gymnasium's form: arrays of R entries, with ``_key`` saying which are set."""
