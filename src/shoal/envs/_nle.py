"""The common base of NetHack and MiniHack envs: working seeds, and infos only at the end of an episode."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from nle.env import NLE
from nle.env.tasks import NetHackChallenge

ABORTED = int(NLE.StepStatus.ABORTED)


class Game(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env of nle whose seeds work as Gymnasium specifies.

    - nle ignores the seed of a reset. Here the seed decides the next game and all games after it: each reset
      without a seed draws the next game from the same stream.
    - A game that reaches the step limit is truncated, with its last observation. (nle quits the game first,
      which leaves an empty screen, and reports it as terminated.)
    - Infos say how an episode ended (``end_status``, ``is_ascended``). They are empty until then.

    Args:
        gymnasium_id: The id of the env in Gymnasium.
        **kwargs: The arguments of the env.
    """

    def __init__(self, gymnasium_id: str, **kwargs: Any) -> None:
        spec = deepcopy(gymnasium.spec(gymnasium_id))
        # Not as arguments of make(), because make() would not pass max_episode_steps on.
        spec.kwargs = {**spec.kwargs, **kwargs}
        # Gymnasium's checker would warn that nle writes every observation into the same arrays. That is safe
        # here, because a vec copies them into its rows before the next step.
        super().__init__(gymnasium.make(spec, disable_env_checker=True))
        game: Any = self.unwrapped
        game._quit_game = lambda observation, done: None
        inform = game._get_information
        game._get_information = lambda end_status: inform(end_status) if end_status else {}
        if (compared := self._compared(game)) is not None:
            _spare_copies(game, compared)
        self._seeds: np.random.Generator | None = None  # without a seed, NetHack draws its own
        self._warned = False

    def _compared(self, game: Any) -> Iterable[int] | None:
        """Return the parts of the last observation that the reward uses; None if it may use any part."""
        own = type(game).__module__ in ("nle.env.base", "nle.env.tasks")
        return (game._blstats_index, game._internal_index) if own else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        game: Any = self.unwrapped
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
            # Clear the list of scores: it is shown on the last screen of a game.
            Path(game.nethack._vardir, "record").write_bytes(b"")
        if self._seeds is not None and not self._refuses_seeds(game):
            core, display = self._seeds.integers(2**63, size=2).tolist()
            self._seed(game, core, display)
        return self.env.reset(seed=seed, options=options)[0], {}

    def _seed(self, game: Any, core: int, display: int) -> None:
        # Not game.seed(), because some MiniHack envs call a method there that Gymnasium has removed.
        NLE.seed(game, core, display, reseed=False)

    def _refuses_seeds(self, game: Any) -> bool:
        if not isinstance(game, NetHackChallenge):
            return False
        if not self._warned:
            self._warned = True
            warnings.warn("NetHackChallenge allows no seeds: it was not seeded", stacklevel=3)
        return True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if info:
            # As a number, so that the vec's infos are an array of numbers and not of objects.
            info["end_status"] = int(info["end_status"])
            if info["end_status"] == ABORTED:
                terminated, truncated = False, True
        return observation, reward, terminated, truncated, info


class _Screen(tuple[Any, ...]):
    """The arrays that NetHack writes. nle copies all of them before each step, but compares one or two."""

    parts: list[Any]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the parts that nle copies: nle only iterates when it copies."""
        return iter(self.parts)


class _Live:
    """An array whose copy() returns the array itself, because the copy is never compared."""

    def __init__(self, array: Any) -> None:
        self.copy = lambda: array


def _spare_copies(game: Any, compared: Iterable[int]) -> None:
    arrays, chosen = game.nethack._obs, set(compared)
    game.nethack._obs = screen = _Screen(arrays)
    screen.parts = [array if index in chosen else _Live(array) for index, array in enumerate(arrays)]
