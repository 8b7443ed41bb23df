"""The family "minigrid": envs of MiniGrid and BabyAI, such as "minigrid-doorkey-5x5", in the newest versions.

Observations are MiniGrid's dicts of an image, a direction and a mission.
"""

from __future__ import annotations

import string
from contextlib import redirect_stdout
from functools import lru_cache
from itertools import product
from typing import Any

import gymnasium
import minigrid  # noqa: F401 - registers its envs
from gymnasium.spaces import Dict, Text
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import BabyAIMissionSpace, RoomGridLevel

from shoal.envs._gymnasium import newest_in

# The same for all envs, so that a character has the same code in each of them.
CHARSET = string.ascii_letters + string.digits + string.punctuation + " "

# The WFC envs are left out, because the package lacks the pictures that they need.
_IDS = {
    name.removeprefix("minigrid-"): full
    for name, full in newest_in("minigrid.").items()
    if not name.startswith("minigrid-wfc-")
}


def names() -> list[str]:
    """Return the names: "doorkey-5x5" is MiniGrid-DoorKey-5x5-v0, "babyai-goto" is BabyAI-GoTo-v0."""
    return list(_IDS)


def create(
    name: str, *, render_mode: str | None = None, mission_length: int | None = None, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Make an env whose mission is a `gymnasium.spaces.Text`.

    BabyAI prints a line for each level that it rejects. These lines are suppressed.

    Args:
        name: The name of the env.
        render_mode: The render mode of MiniGrid's env.
        mission_length: The largest number of characters of a mission. The default is the longest mission of
            this env; for all BabyAI envs it is the longest of BabyAI's language (337). Envs with different
            missions need the same length to share a vec. A longer mission raises `ObservationError`.
        **kwargs: Other arguments of MiniGrid's env.
    """
    return _Worded(gymnasium.make(_IDS[name], render_mode=render_mode, **kwargs), mission_length)


class _Worded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces MiniGrid's space of missions, which has no bytes, by a Text. Observations do not change."""

    def __init__(self, env: gymnasium.Env[Any, Any], mission_length: int | None) -> None:
        super().__init__(env)
        spaces: Any = env.observation_space
        length = longest_mission(spaces["mission"]) if mission_length is None else mission_length
        mission = Text(min_length=0, max_length=length, charset=CHARSET)
        self.observation_space = Dict({**spaces.spaces, "mission": mission})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if not isinstance(self.unwrapped, RoomGridLevel):
            return self.env.reset(seed=seed, options=options)
        with redirect_stdout(None):
            return self.env.reset(seed=seed, options=options)


def longest_mission(space: Any) -> int:
    """Return the number of characters of the longest mission in a space of MiniGrid."""
    if isinstance(space, BabyAIMissionSpace):
        return _longest_sentence()
    choices = space.ordered_placeholders or []
    return max(len(space.mission_func(*words)) for words in product(*choices))


@lru_cache
def _longest_sentence() -> int:
    """Return the length of the longest sentence in BabyAI's language: four times "put A next to B"."""
    language: Any = verifier
    things = [
        language.ObjDesc(*words)
        for words in product(
            [None, *language.OBJ_TYPES], [None, *language.COLOR_NAMES], [None, *language.LOC_NAMES]
        )
    ]
    for thing in things:  # pretend that the level has each thing once
        thing.find_matching_objs, thing.obj_set = (lambda env: None), [None]
    thing = max(things, key=lambda thing: len(thing.surface(None)))
    action = language.PutNextInstr(thing, thing)
    both = language.AndInstr(action, action)
    orders = language.BeforeInstr, language.AfterInstr
    return max(len(order(both, both).surface(None)) for order in orders)
