"""minigrid-doorkey-5x5, minigrid-babyai-goto and the like: MiniGrid and BabyAI, in the newest versions.

Observations are dicts of an image, a direction and a mission, as MiniGrid gives them.
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

# Those of WFC are left out: the package comes without the pictures that they are made from.
_IDS = {
    name.removeprefix("minigrid-"): full
    for name, full in newest_in("minigrid.").items()
    if not name.startswith("minigrid-wfc-")
}


def names() -> list[str]:
    """What follows "minigrid-": doorkey-5x5 for MiniGrid-DoorKey-5x5-v0, babyai-goto for BabyAI-GoTo-v0."""
    return list(_IDS)


def create(
    name: str, *, render_mode: str | None = None, mission_length: int | None = None, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """One env, whose mission is a `gymnasium.spaces.Text`.

    What BabyAI prints while it draws a level, a line for each that it rejects, is dropped.

    Args:
        name: Which.
        render_mode: As MiniGrid's env takes it.
        mission_length: Characters that a mission has room for; by default those of the longest that there is,
            in this env or, for all of BabyAI alike, in BabyAI's language (337). Envs with different missions
            need the same length to share a vec. A mission that is too long raises `ObservationError`.
        **kwargs: As MiniGrid's env takes them.
    """
    return _Worded(gymnasium.make(_IDS[name], render_mode=render_mode, **kwargs), mission_length)


class _Worded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts a Text where MiniGrid has a space of its own, which has no bytes. Observations stay the same."""

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
    """Characters of the longest mission in a space of MiniGrid's."""
    if isinstance(space, BabyAIMissionSpace):
        return _longest_sentence()
    choices = space.ordered_placeholders or []
    return max(len(space.mission_func(*words)) for words in product(*choices))


@lru_cache
def _longest_sentence() -> int:
    """Of BabyAI's language: put one thing next to another, twice, before or after doing the same."""
    language: Any = verifier
    things = [
        language.ObjDesc(*words)
        for words in product(
            [None, *language.OBJ_TYPES], [None, *language.COLOR_NAMES], [None, *language.LOC_NAMES]
        )
    ]
    for thing in things:  # each as if it had been found, once
        thing.find_matching_objs, thing.obj_set = (lambda env: None), [None]
    thing = max(things, key=lambda thing: len(thing.surface(None)))
    action = language.PutNextInstr(thing, thing)
    both = language.AndInstr(action, action)
    orders = language.BeforeInstr, language.AfterInstr
    return max(len(order(both, both).surface(None)) for order in orders)
