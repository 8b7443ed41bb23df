"""The interface of the students' project `rl_hockey` on top of Shoal's engine and learners.

    rl_hockey.common.training.train_single_run   train_single_run
    rl_hockey.common.training.train_run          train_run
    rl_hockey.common.vectorized_env              VectorizedHockeyEnv, VectorizedHockeyEnvOptimized
    rl_hockey.common.evaluation.agent_evaluator  evaluate_agent
    rl_hockey.DDDQN, rl_hockey.DDDQN.dddqn       DDDQN
    rl_hockey.sac, rl_hockey.sac.sac             SAC

`shoal.compat.install_as_rl_hockey` installs these under the names above. All of them can be imported from
here too. Those that learn import torch when they are first asked for.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from shoal.compat._facade import Facade
from shoal.compat.rl_hockey.vectorized_env import VectorizedHockeyEnv, VectorizedHockeyEnvOptimized

__all__ = [
    "DDDQN",
    "SAC",
    "VectorizedHockeyEnv",
    "VectorizedHockeyEnvOptimized",
    "evaluate_agent",
    "train_run",
    "train_single_run",
]

_LATER = {
    "DDDQN": "shoal.compat.rl_hockey.agents",
    "SAC": "shoal.compat.rl_hockey.agents",
    "evaluate_agent": "shoal.compat.rl_hockey.agent_evaluator",
    "train_run": "shoal.hockey.training.train",
    "train_single_run": "shoal.hockey.training.train",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _contents(*names: str) -> dict[str, Any]:
    here = importlib.import_module(__name__)
    return {name: partial(getattr, here, name) for name in names}


FACADE = Facade(
    "rl_hockey",
    {
        "rl_hockey": {},
        "rl_hockey.common": {},
        "rl_hockey.common.training": {},
        "rl_hockey.common.training.train_single_run": _contents("train_single_run"),
        "rl_hockey.common.training.train_run": _contents("train_run"),
        "rl_hockey.common.vectorized_env": _contents("VectorizedHockeyEnv", "VectorizedHockeyEnvOptimized"),
        "rl_hockey.common.evaluation": {},
        "rl_hockey.common.evaluation.agent_evaluator": _contents("evaluate_agent"),
        "rl_hockey.DDDQN": _contents("DDDQN"),
        "rl_hockey.DDDQN.dddqn": _contents("DDDQN"),
        "rl_hockey.sac": _contents("SAC"),
        "rl_hockey.sac.sac": _contents("SAC"),
    },
    f"Shoal's stand-in for rl_hockey has only {', '.join(__all__)}; shoal.compat.rl_hockey says where",
    "shoal.compat.rl_hockey",
    is_later=True,
)
