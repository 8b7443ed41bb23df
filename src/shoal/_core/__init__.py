"""The core's face: one list of names, provided by the compiled core or by its twins in Python.

    Packer         writes a nested value into its row
    StepLoop       steps a run of Python envs into their rows
    ActionColumn   takes a batch of actions, checked, into the action rows
    gae            advantages of transitions, backwards in time
    Transitions    hands out copies of what a step wrote beside the observations; counts and times steps

The environment variable ``SHOAL_CORE`` chooses: ``native``, ``reference``, or by default whichever is there.
"""

import os
from typing import TYPE_CHECKING

NAME: str
"""Which core this is: "native" or "reference"."""

_asked = os.environ.get("SHOAL_CORE") or "any"
if _asked not in ("any", "native", "reference"):
    raise ImportError(f"SHOAL_CORE: expected native or reference, got {_asked!r}")

if TYPE_CHECKING:
    from shoal._core._native import ActionColumn, Packer, StepLoop, Transitions, gae
elif _asked == "reference":
    from shoal._core._reference import ActionColumn, Packer, StepLoop, Transitions, gae

    NAME = "reference"
else:
    try:
        from shoal._core._native import ActionColumn, Packer, StepLoop, Transitions, gae

        NAME = "native"
    except ModuleNotFoundError as error:
        if error.name != "shoal._core._native":
            raise
        if _asked == "native":
            raise ImportError(
                "SHOAL_CORE=native: this installation has no compiled core. Install with a C++ compiler "
                "at hand, or leave SHOAL_CORE unset."
            ) from None
        from shoal._core._reference import ActionColumn, Packer, StepLoop, Transitions, gae

        NAME = "reference"

__all__ = ["NAME", "ActionColumn", "Packer", "StepLoop", "Transitions", "gae"]
