"""mujoco-halfcheetah and the like: Gymnasium's MuJoCo envs, in their newest versions.

Actions outside their bounds are clipped, because policies for them draw from a Gaussian. Observations and
rewards are as the env gives them: to normalise them is the learner's part.
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
    """What follows "mujoco-"."""
    return list(_IDS)


def create(name: str, *, clip_actions: bool = True, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One env.

    Args:
        name: Which.
        clip_actions: Put actions into their bounds before they reach the env.
        **kwargs: As Gymnasium's env takes them.
    """
    env = gymnasium.make(_IDS[name], **kwargs)
    space = env.action_space
    if not clip_actions or not isinstance(space, Box):
        return env
    # Not by Gymnasium's ClipAction, whose space has no bounds: learners scale by them.
    return TransformAction(env, partial(np.clip, a_min=space.low, a_max=space.high), space)
