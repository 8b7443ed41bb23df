"""Match: games of a person against an opponent, one after the other, with a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.hockey.envs import Hockey
from shoal.hockey.players import ACTION_SIZE, BOTS, Player, Trained, load_policy, make_player
from shoal.hockey.settings import change
from shoal.vector.native import Native

PERSON = "person"  # the opponent that is a second person at the same keyboard
BREAK = 50  # steps between two games
SPEEDS = (1.0, 0.5)


Opponents = Mapping[str, Callable[[], Player]]
"""Functions that make the opponents, by name."""


def opponents_with(against: str) -> tuple[Opponents, str]:
    """Return the opponents that a page offers, and the name of the first one.

    Args:
        against: ``"none"``, ``"weak"``, ``"strong"``, ``"person"`` or the folder of a run.

    Raises:
        ArgumentError: If there is no such opponent, or if the run cannot play hockey.
    """
    offered: dict[str, Callable[[], Player]] = {name: partial(make_player, name) for name in BOTS}
    if against in (*BOTS, PERSON):
        return offered, against
    policy, name = load_policy(against, (*BOTS, PERSON)), f"run {Path(against).resolve().name}"
    return {**offered, name: lambda: Trained(name, policy)}, name


class BadMessage(ValueError):
    """A message from the page that has no meaning."""


class Match:
    """Games of a person, player one, against an opponent. Player two may be a second person.

    A match begins paused, also after a change of opponents.

    Args:
        opponents: The opponents beside `PERSON`.
        opponent: Name of the first opponent.
        seed: Seed of the games; None to draw it.
    """

    def __init__(self, opponents: Opponents, opponent: str, seed: int | None = None) -> None:
        self._opponents, self._made = opponents, dict[str, Player]()
        self.opponent, self.paused, self.speed = opponent, True, 1.0
        self.score, self.draws = [0, 0], 0
        self._actions = np.zeros((2, ACTION_SIZE), np.float32)
        self._vec = Native(Hockey, 1, num_workers=1, autoreset_mode=AutoresetMode.DISABLED, seed=seed)
        self._one_starts = True
        self._begin()

    def __enter__(self) -> Self:
        """Return the match itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the memory of the game."""
        self._vec.close()

    @property
    def _player(self) -> Player | None:
        """The opponent, unless it is a person."""
        if self.opponent == PERSON:
            return None
        if self.opponent not in self._made:
            self._made[self.opponent] = self._opponents[self.opponent]()
        return self._made[self.opponent]

    def _begin(self) -> None:
        change(self._vec, one_starts=self._one_starts)
        self._one_starts = not self._one_starts  # the players take turns
        self._obs: NDArray[np.float32] = self._vec.reset()[0]
        self._result: int | None = None  # of the game, when it is over
        self._rest = BREAK
        if (player := self._player) is not None:
            player.begin()

    def step(self) -> None:
        """Do one step of the game. After the end of a game, wait for a while and begin the next one."""
        if self.paused:
            return
        if self._result is not None:
            self._rest -= 1
            if self._rest == 0:
                self._begin()
            return
        if (player := self._player) is not None:
            self._actions[1] = player.act(self._obs[1])
        self._obs, _, terminations, truncations, _ = self._vec.step(self._actions)
        if terminations[0] or truncations[0]:
            self._result = int(self._vec.get_attr("winner")[0])
            if self._result:
                self.score[self._result < 0] += 1
            else:
                self.draws += 1

    def tell(self) -> dict[str, Any]:
        """Return what the page shows."""
        return {
            "state": [round(float(value), 4) for value in self._obs[0]],
            "time": int(self._vec.get_attr("time")[0]),
            "limit": int(self._vec.get_attr("time_limit")[0]) + 1,
            "score": self.score,
            "draws": self.draws,
            "result": self._result,
            "opponent": self.opponent,
            "paused": self.paused,
            "speed": self.speed,
        }

    def obey(self, message: Any) -> None:
        """Do what the page asks for.

        Args:
            message: A dict with some of: ``one`` and ``two``, the actions of the persons from their own
                sides; ``opponent``, a name; ``paused``; ``speed``; ``restart``.

        Raises:
            BadMessage: If the message has no meaning. Then nothing of it was done.
        """
        if not isinstance(message, dict):
            raise BadMessage("expected an object")
        for key, value in message.items():
            if key not in _CHECKS:
                raise BadMessage(f"unknown key {str(key)[:20]!r}")
            if not _CHECKS[key](value) or (key == "opponent" and value not in (*self._opponents, PERSON)):
                raise BadMessage(f"{key}: unexpected value")
        for row, key in enumerate(("one", "two")):
            if key in message and (row == 0 or self.opponent == PERSON):
                self._actions[row] = np.clip(message[key], -1.0, 1.0)
        if "opponent" in message and message["opponent"] != self.opponent:
            self.opponent = message["opponent"]
            self._actions[1] = 0.0
            self._restart()
            self.paused = True
        self.paused = message.get("paused", self.paused)
        self.speed = float(message.get("speed", self.speed))
        if message.get("restart"):
            self._restart()

    def _restart(self) -> None:
        self.score, self.draws, self.paused = [0, 0], 0, False
        self._begin()


def _is_action(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == ACTION_SIZE
        and all(type(number) in (int, float) and abs(number) < 10 for number in value)
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "one": _is_action,
    "two": _is_action,
    "opponent": lambda value: isinstance(value, str),
    "paused": _is_bool,
    "speed": lambda value: type(value) in (int, float) and value in SPEEDS,
    "restart": _is_bool,
}
