"""Players as Python objects: the bots of the course's game, and a person at the keyboard."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ActionError, ActionTypeError, ArgumentError, ArgumentTypeError
from shoal.hockey.rules import MAX_ANGLE
from shoal.hockey.window import import_pygame

MOST = 1e3  # no number of a game comes near it


def numbers(name: str, value: Any, count: int) -> NDArray[np.float64]:
    """Return `value` as an array of `count` numbers.

    Raises:
        ArgumentError: If it has another shape, or entries that no game has: NaN, infinite, or huge.
        ArgumentTypeError: If its entries are not numbers.
    """
    try:
        found = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name}: expected {count} numbers, got {value!r}") from None
    if found.shape != (count,):
        raise ArgumentError(f"{name}: expected {count} numbers, got an array of shape {found.shape}")
    if not (np.abs(found) <= MOST).all():
        raise ArgumentError(f"{name}: expected numbers from -{MOST:g} to {MOST:g}, got {found.tolist()}")
    return found


def action_of(value: Any, count: int) -> NDArray[np.float32]:
    """Return an action of `count` numbers. They are clipped to -1 ... 1.

    Raises:
        ActionError: If it has another shape, or is NaN somewhere.
        ActionTypeError: If its entries are not numbers.
    """
    try:
        found = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise ActionTypeError(f"action: expected {count} numbers, got {value!r}") from None
    if found.shape != (count,):
        raise ActionError(f"action: expected {count} numbers, got an array of shape {found.shape}")
    if np.isnan(found).any():
        raise ActionError(f"action: expected {count} numbers from -1 to 1, got {found.tolist()}")
    return found.clip(-1.0, 1.0)


def seed_of(value: Any) -> int | None:
    """Return a seed.

    Raises:
        ArgumentError: If it is not None or an integer of 0 or more.
    """
    if value is None:
        return None
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"seed: expected an integer of 0 or more, or None, got {value!r}")
    return int(value)


class BasicOpponent:
    """The bot of the course's game. The same bot is compiled into `shoal.hockey.Hockey` and `HockeyOne`.

    Args:
        weak: Whether its racket moves slowly to where it wants to be.
        keep_mode: Whether it plays a game in which players hold the puck, and so decides when to shoot.
        seed: The seed of its racket's turning; by default another one each time.

    Attributes:
        phase: The angle whose sine its racket's angle follows.

    Example:
        >>> from shoal.hockey import BasicOpponent, HockeyEnv
        >>> env = HockeyEnv()
        >>> obs, info = env.reset(seed=0)
        >>> BasicOpponent(weak=False, seed=0).act(obs).shape
        (4,)
    """

    def __init__(self, weak: bool = True, keep_mode: bool = True, seed: int | None = None) -> None:
        self.weak, self.keep_mode = weak, keep_mode
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Begin anew with a seed.

        Raises:
            ArgumentError: If the seed is not None or an integer of 0 or more.
        """
        self._rng = np.random.default_rng(seed_of(seed))
        self.phase = float(self._rng.uniform(0.0, math.pi))

    def act(self, obs: Any, verbose: bool = False) -> NDArray[np.float64]:
        """Choose an action.

        Args:
            obs: The observation of the player that it plays for: `HockeyEnv.obs_agent_two` for player two.
            verbose: Whether to print where its racket is to go.

        Returns:
            Force x, force y, torque and, in keep mode, shoot; each from -1 to 1.

        Raises:
            ArgumentError: If the observation is not one of a game with the same `keep_mode`.
        """
        x, y, angle, *rest = numbers("obs", obs, 18 if self.keep_mode else 16).tolist()
        speeds, (puck_x, puck_y, puck_vx, puck_vy, *counters) = rest[:3], rest[9:]
        self.phase += float(self._rng.uniform(0.0, 0.2))
        target_x, target_y = -3.5, 0.0  # before the own goal
        if puck_vx < 0.5:  # the puck comes, or goes away slowly
            target_y = puck_y
            if x < puck_x and abs(y - puck_y) < 0.5:  # it lies ahead: hit it
                target_x = puck_x + 0.2
                target_y += puck_vy * math.hypot(x - puck_x, y - puck_y) * 0.1
        target = target_x, target_y, MAX_ANGLE * math.sin(self.phase)
        if verbose:
            print(f"BasicOpponent: from {(x, y, angle)} to {target}")
        gain = 0.5 if self.weak else 10.0
        action = []
        for now, goal, speed, own_gain, brake_time in zip(
            (x, y, angle), target, speeds, (gain, gain / 5, gain / 2), (0.1, 0.1, 1.0), strict=True
        ):
            force = (goal - now) * own_gain
            # Brake if the racket arrives soon. Whether `speed + 0.01` is 0 does not matter: it is far then.
            if abs(goal - now) < brake_time * abs(speed + 0.01):
                force -= 0.5 * speed
            action.append(min(max(force, -1.0), 1.0))
        if self.keep_mode:
            action.append(1.0 if 0 < counters[0] < 7 else 0.0)
        return np.array(action)


class HumanOpponent:
    """A person at the keyboard of the window in which a `HockeyEnv` shows itself.

    The arrows move the racket, W and S turn it, and space shoots. Several keys can be held at once.

    Args:
        env: The `HockeyEnv`, or a wrapper around it. It opens its window.
        player: 1 or 2: the player that the person plays for.

    Raises:
        ArgumentError: If there is no such player.
        MissingExtra: If pygame is not installed.
    """

    def __init__(self, env: Any, player: int = 1) -> None:
        if player not in (1, 2):
            raise ArgumentError(f"player: expected 1 or 2, got {player!r}")
        self.env, self.player = env.unwrapped, player
        self._pygame = pygame = import_pygame()
        # Player two sees the table from the other side, so that its arrows are the other way round.
        left, right, down, up = (1, 2, 3, 4) if player == 1 else (2, 1, 4, 3)
        self.keys = {
            pygame.K_LEFT: left,
            pygame.K_RIGHT: right,
            pygame.K_DOWN: down,
            pygame.K_UP: up,
            pygame.K_w: 5,
            pygame.K_s: 6,
            **({pygame.K_SPACE: 7} if self.env.keep_mode else {}),
        }
        self.env.render("human")

    def act(self, obs: Any = None) -> NDArray[np.float64]:
        """Return the action of the keys that are pressed now.

        Args:
            obs: Not used: a person looks at the window.
        """
        self._pygame.event.pump()
        pressed = self._pygame.key.get_pressed()
        action = np.zeros(self.env.num_actions)
        for key, number in self.keys.items():
            if pressed[key]:
                action += self.env.discrete_to_continous_action(number)
        return action
