"""What NetHack and MiniHack have in common: seeds that reach the game, and infos that are worth sending."""

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
    """An env of nle's that keeps what Gymnasium promises of seeds.

    - To nle, the seed of a reset means nothing. Here it decides the game that begins and all those after it:
      each reset without a seed draws the next game from the same stream.
    - A game that reaches the limit of steps is truncated, with its last observation. (nle quits it first,
      which leaves an empty screen, and calls it terminated.)
    - Infos say how an episode ended (``end_status``, ``is_ascended``), and are empty until then.

    Args:
        gymnasium_id: Which env.
        **kwargs: Its arguments.
    """

    def __init__(self, gymnasium_id: str, **kwargs: Any) -> None:
        spec = deepcopy(gymnasium.spec(gymnasium_id))
        # Not as arguments of make(), which would keep max_episode_steps to itself.
        spec.kwargs = {**spec.kwargs, **kwargs}
        # Gymnasium's checker would warn that nle writes every observation into the same arrays. A vec copies
        # them into its rows before the next step, so that here it is no fault.
        super().__init__(gymnasium.make(spec, disable_env_checker=True))
        game: Any = self.unwrapped
        game._quit_game = lambda observation, done: None
        inform = game._get_information
        game._get_information = lambda end_status: inform(end_status) if end_status else {}
        if (compared := self._compared(game)) is not None:
            _spare_copies(game, compared)
        self._seeds: np.random.Generator | None = None  # nobody has asked for a seed: NetHack draws its own
        self._warned = False

    def _compared(self, game: Any) -> Iterable[int] | None:
        """The parts of the last observation that the reward looks at; None if it may look at any."""
        own = type(game).__module__ in ("nle.env.base", "nle.env.tasks")
        return (game._blstats_index, game._internal_index) if own else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        game: Any = self.unwrapped
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
            # The list of scores that ends a game, and is part of its last screen, begins anew.
            Path(game.nethack._vardir, "record").write_bytes(b"")
        if self._seeds is not None and not self._refuses_seeds(game):
            core, display = self._seeds.integers(2**63, size=2).tolist()
            self._seed(game, core, display)
        return self.env.reset(seed=seed, options=options)[0], {}

    def _seed(self, game: Any, core: int, display: int) -> None:
        # Not by game.seed(), because that of some MiniHack envs calls what Gymnasium has no more.
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
            # As a number, so that a vec has numbers too, and not an array of objects.
            info["end_status"] = int(info["end_status"])
            if info["end_status"] == ABORTED:
                terminated, truncated = False, True
        return observation, reward, terminated, truncated, info


class _Screen(tuple[Any, ...]):
    """The arrays that NetHack writes. Before each step nle copies all of them, to compare one or two."""

    parts: list[Any]

    def __iter__(self) -> Iterator[Any]:
        """Only thus does nle come by what it copies."""
        return iter(self.parts)


class _Live:
    """An array that is not worth a copy."""

    def __init__(self, array: Any) -> None:
        self.copy = lambda: array


def _spare_copies(game: Any, compared: Iterable[int]) -> None:
    arrays, chosen = game.nethack._obs, set(compared)
    game.nethack._obs = screen = _Screen(arrays)
    screen.parts = [array if index in chosen else _Live(array) for index, array in enumerate(arrays)]
