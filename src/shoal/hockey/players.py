"""Players for `shoal hockey watch` and `shoal hockey play`: nobody, the bots, and the policies of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.errors import ArgumentError, MissingExtra
from shoal.hockey.opponents import BasicOpponent

BOTS = ("none", "weak", "strong")
OBSERVATION_SIZE, ACTION_SIZE = 18, 4


class Player(Protocol):
    """Chooses the actions of one side."""

    name: str

    def begin(self) -> None:
        """Begin a game."""

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action for an observation of this side."""


class Nobody:
    """A player that does nothing."""

    name = "none"

    def begin(self) -> None:
        """Begin a game."""

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an action of zeros."""
        return np.zeros(ACTION_SIZE, np.float32)


class Bot:
    """A bot of the course's game.

    Args:
        weak: Whether it is the weak bot.
        seed: Seed of its turning.
    """

    def __init__(self, weak: bool, seed: int | None = None) -> None:
        self.name, self._bot = "weak" if weak else "strong", BasicOpponent(weak, seed=seed)

    def begin(self) -> None:
        """Begin a game."""

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action for an observation of this side."""
        return self._bot.act(obs).astype(np.float32)


class Trained:
    """A player with the policy of a run. It takes the likeliest actions.

    Args:
        name: Name to show.
        policy: The policy; players may share it.
    """

    def __init__(self, name: str, policy: Any) -> None:
        self.name, self._policy = name, policy
        self.begin()

    def begin(self) -> None:
        """Begin a game: clear the state of an LSTM."""
        self._memory = self._policy.initial_state(1)

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action for an observation of this side."""
        from shoal.learn.threads import use_torch_threads

        with use_torch_threads(1):  # for one row, further threads cost more than they save
            chosen = self._policy.act_batch(obs[None], True, self._memory)
        return np.asarray(chosen[0], np.float32).clip(-1.0, 1.0)


def load_policy(run: str, others: Sequence[str] = ()) -> Any:
    """Load the policy of a run, or one from its file, and check that it can play hockey.

    Args:
        run: Folder of the run, or file of the policy.
        others: What else the user could have named, for the message.

    Raises:
        ArgumentError: If there is no such run or file, or if it was trained on another env.
        MissingExtra: If torch is not installed.
    """
    if not Path(run).exists():
        known = f"{', '.join(others)}, " if others else ""
        raise ArgumentError(
            f"expected {known}the folder of a run or the file of a policy, got {run!r}, which does not exist"
        )
    try:
        from shoal.learn.runs.policy_file import load_file
    except ImportError as error:  # torch
        raise MissingExtra(str(error)) from error
    saved = load_file(run)
    seen, acted = saved.policy.layout.space, saved.policy.actions.space
    fits = (
        isinstance(seen, Box)
        and isinstance(acted, Box)
        and (seen.shape, acted.shape) == ((OBSERVATION_SIZE,), (ACTION_SIZE,))
        and seen.dtype == np.float32
    )
    if not fits:
        raise ArgumentError(
            f"{run}: expected a run on shoal/HockeyOne-v0, with observations of {OBSERVATION_SIZE} numbers "
            f"and actions of {ACTION_SIZE}, got one on {saved.origin.env or 'an env without a name'}, with "
            f"observations {seen} and actions {acted}"
        )
    return saved.policy


def make_player(name: str, seed: int | None = None) -> Player:
    """Make a player.

    Args:
        name: ``"none"``, ``"weak"``, ``"strong"``, the folder of a run, or the file of a policy.
        seed: Seed of a bot.

    Raises:
        ArgumentError: If there is no such player.

    Example:
        >>> import numpy as np
        >>> from shoal.hockey.players import make_player
        >>> make_player("none").act(np.zeros(18, np.float32)).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    if name == "none":
        return Nobody()
    if name in BOTS:
        return Bot(name == "weak", seed)
    return Trained(Path(name).resolve().stem, load_policy(name, BOTS))
