"""Hockey: the two-player air hockey game of the Tuebingen reinforcement-learning course, compiled.

`table.py` has the shapes, `physics.py` one step of the physics, `rules.py` the game, `envs.py` the compiled
envs `Hockey` and `HockeyOne`, and `settings.py` their modes, opponents and rewards. `course.py` and
`opponents.py` have the classes of the original package, and `pettingzoo.py` has the game as a parallel env.
"""

from typing import Any

from shoal.hockey.actions import fine_actions
from shoal.hockey.course import (
    CENTER_X,
    CENTER_Y,
    FORCEMULTIPLIER,
    FPS,
    GOAL_SIZE,
    MAX_ANGLE,
    MAX_PUCK_SPEED,
    MAX_TIME_KEEP_PUCK,
    RACKETFACTOR,
    RACKETPOLY,
    SCALE,
    SHOOTFORCEMULTIPLIER,
    TORQUEMULTIPLIER,
    VIEWPORT_H,
    VIEWPORT_W,
    ZONE,
    H,
    HockeyEnv,
    HockeyEnv_BasicOpponent,
    W,
)
from shoal.hockey.envs import Hockey, HockeyOne
from shoal.hockey.opponents import BasicOpponent, HumanOpponent
from shoal.hockey.settings import Mode, change, settings


def __getattr__(name: str) -> Any:
    """Import what needs PettingZoo only when it is asked for."""
    if name == "parallel_env":
        from shoal.hockey.pettingzoo import parallel_env

        return parallel_env
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CENTER_X",
    "CENTER_Y",
    "FORCEMULTIPLIER",
    "FPS",
    "GOAL_SIZE",
    "MAX_ANGLE",
    "MAX_PUCK_SPEED",
    "MAX_TIME_KEEP_PUCK",
    "RACKETFACTOR",
    "RACKETPOLY",
    "SCALE",
    "SHOOTFORCEMULTIPLIER",
    "TORQUEMULTIPLIER",
    "VIEWPORT_H",
    "VIEWPORT_W",
    "ZONE",
    "BasicOpponent",
    "H",
    "Hockey",
    "HockeyEnv",
    "HockeyEnv_BasicOpponent",
    "HockeyOne",
    "HumanOpponent",
    "Mode",
    "W",
    "change",
    "fine_actions",
    "parallel_env",
    "settings",
]
