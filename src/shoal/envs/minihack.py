"""The family "minihack": MiniHack's small tasks in NetHack, such as "minihack-room-5x5"."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from shoal.envs._gymnasium import newest_in
from shoal.envs._nle import Game
from shoal.errors import MissingExtra


def _register() -> None:
    # MiniHack imports setuptools' copy of inflect, which takes seconds. Without stanza it does not use it.
    spared = "inflect" not in sys.modules and find_spec("stanza") is None
    if spared:
        sys.modules["inflect"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*pkg_resources")  # deprecated, and imported by MiniHack
            import minihack  # noqa: F401 - registers its envs
    except ModuleNotFoundError as error:
        if error.name != "pkg_resources":
            raise
        raise MissingExtra(
            'MiniHack needs pkg_resources, which newer setuptools do not have: pip install "setuptools<80"'
        ) from error
    finally:
        if spared:
            del sys.modules["inflect"]


_register()

# Boxoban is left out because it fails with nle 1.3, the crossings because they fail with MiniGrid 3.
_IDS = {
    name.removeprefix("minihack-"): full
    for name, full in newest_in("minihack.").items()
    if not name.startswith(("minihack-boxoban-", "minihack-lavacrossings", "minihack-simplecrossings"))
}


def names() -> list[str]:
    """Return the names of the envs without the prefix "minihack-": "room-5x5" is MiniHack-Room-5x5-v0."""
    return list(_IDS)


def create(name: str, *, fix_moon_phase: bool = True, **kwargs: Any) -> Game:
    """Make an env whose ``reset(seed=...)`` decides its games. Infos come at the end of an episode.

    Args:
        name: The name of the env. "navigation-custom" and "skill-custom" need a ``des_file``.
        fix_moon_phase: Whether a seeded game takes the moon and the hour from the seed, not from the clock.
        **kwargs: Other arguments of MiniHack's env.
    """
    return _Task(_IDS[name], fix_moon_phase=fix_moon_phase, **kwargs)


class _Task(Game):
    """A game whose level follows the seed even if NetHack does not draw the level. Its crops are fast."""

    def __init__(self, gymnasium_id: str, **kwargs: Any) -> None:
        super().__init__(gymnasium_id, **kwargs)
        game: Any = self.unwrapped
        if game.obs_crop_h == game.obs_crop_w:  # otherwise MiniHack's crop is not centred on the hero
            game._crop_observation = partial(_crop, game.obs_crop_h, game.obs_crop_pad)
        self._levels: Sequence[int] | None = kwargs.get("seeds")

    def _compared(self, game: Any) -> Iterable[int] | None:
        from minihack.base import MiniHack

        usual = game.reward_manager is None and type(game)._reward_fn is MiniHack._reward_fn
        return (game._blstats_index, game._internal_index) if usual else None

    def _seed(self, game: Any, core: int, display: int) -> None:
        grid = getattr(game, "minigrid_env", None)
        if grid is not None:
            grid.unwrapped.np_random, _ = seeding.np_random(core)
        if self._levels is not None:
            # MiniHack's reset() draws one of these without our seed, so give it a list of one.
            game._level_seeds = [random.Random(core).choice(self._levels)]
        super()._seed(game, core, display)


def _crop(size: int, pad: int, screen: NDArray[Any], center: tuple[int, int]) -> NDArray[Any]:
    """Cut out the cells around the center. MiniHack pads the whole screen, which takes half of its step."""
    reach = size // 2
    width = 2 * reach + 1
    left, top = int(center[0]) - reach, int(center[1]) - reach
    out = np.full((width, width), pad, screen.dtype)
    seen = screen[max(top, 0) : top + width, max(left, 0) : left + width]
    row, column = max(-top, 0), max(-left, 0)
    out[row : row + seen.shape[0], column : column + seen.shape[1]] = seen
    return out
