"""The family "mujoco": Gymnasium's MuJoCo envs, such as "mujoco-halfcheetah", in their newest versions.

Actions outside their bounds are clipped, because policies draw them from a Gaussian. Observations and rewards
are not changed: the learner normalises them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformAction

from shoal.envs._gymnasium import newest_in

_IDS = newest_in("gymnasium.envs.mujoco")


def names() -> list[str]:
    """Return the names of the envs without the prefix "mujoco-"."""
    return list(_IDS)


def create(name: str, *, clip_actions: bool = True, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make an env.

    Args:
        name: The name of the env.
        clip_actions: Whether to clip actions to their bounds before they reach the env.
        **kwargs: Other arguments of Gymnasium's env.
    """
    env = gymnasium.make(_IDS[name], **kwargs)
    space = env.action_space
    if not clip_actions or not isinstance(space, Box):
        return env
    # Not Gymnasium's ClipAction, because its space has no bounds and learners scale actions by the bounds.
    return TransformAction(env, partial(np.clip, a_min=space.low, a_max=space.high), space)
