"""Hockey: the two-player air hockey game of the Tuebingen reinforcement-learning course, compiled.

`table.py` has the shapes, `physics.py` one step of the physics, `rules.py` the game, `envs.py` the compiled
envs `Hockey` and `HockeyOne`, and `settings.py` their modes, opponents and rewards. `course.py` and
`opponents.py` have the classes of the original package, and `pettingzoo.py` has the game as a parallel env.
`actions.py` has sets of discrete actions, `evaluation.py` plays many games at once, and `training/` trains
agents by configuration files.
"""

import importlib
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
from shoal.hockey.evaluation import Score, play_bot
from shoal.hockey.opponents import BasicOpponent, HumanOpponent
from shoal.hockey.settings import Mode, change, settings

_LATER = {  # what needs further packages, and the modules that have it
    "parallel_env": "shoal.hockey.pettingzoo",
    "resume_run": "shoal.hockey.training.train",
    "train_run": "shoal.hockey.training.train",
    "train_single_run": "shoal.hockey.training.train",
}


def __getattr__(name: str) -> Any:
    """Import what needs PettingZoo or torch only when it is asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
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
    "Score",
    "W",
    "change",
    "fine_actions",
    "parallel_env",
    "play_bot",
    "resume_run",
    "settings",
    "train_run",
    "train_single_run",
]
