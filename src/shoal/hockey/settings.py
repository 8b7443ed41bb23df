"""Settings: modes, opponents and rewards of games, as parameters of `Hockey` and `HockeyOne`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.errors import ArgumentError
from shoal.vector.vec import VectorEnv


class Mode(Enum):
    """The kind of a game.

    NORMAL is a whole game of 251 steps. In TRAIN_SHOOTING, player one has the puck and 81 steps to score. In
    TRAIN_DEFENSE, the puck is shot at player one's goal.
    """

    NORMAL = 0
    TRAIN_SHOOTING = 1
    TRAIN_DEFENSE = 2


MODES = {Mode.NORMAL: "mode_normal", Mode.TRAIN_SHOOTING: "mode_shooting", Mode.TRAIN_DEFENSE: "mode_defense"}
OPPONENTS = {name: f"opponent_{name}" for name in ("none", "weak", "strong", "agent")}
STARTS = {None: -1, True: 1, False: 0}
SIDES = {None: -1, "left": 0, "right": 1}
PLAYERS = {"agent": 0, "weak": 1, "strong": 2}


def mode_of(value: Any) -> Mode:
    """Return a mode that is given as a `Mode`, by its name or by its number.

    Raises:
        ArgumentError: If there is no such mode.
    """
    if isinstance(value, Mode):
        return value
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, str) and value.upper() in Mode.__members__:
        return Mode[value.upper()]
    if not isinstance(value, str):
        try:
            return Mode(value)
        except ValueError:
            pass
    known = ", ".join(f"{mode.name} ({mode.value})" for mode in Mode)
    raise ArgumentError(f"mode: expected one of {known}, got {value!r}")


def settings(
    *,
    mode: Any = None,
    opponent: Any = None,
    one_starts: bool | str | None = "unchanged",
    played_by: str | None = None,
    side: str | None = "unchanged",
    win: ArrayLike | None = None,
    closeness: ArrayLike | None = None,
    touch: ArrayLike | None = None,
    direction: ArrayLike | None = None,
) -> dict[str, Any]:
    """Return parameters for ``env_kwargs`` of the envs. Arguments that are not given are not in the result.

    A weight may also be an array with an entry for each env.

    Args:
        mode: A `Mode`, its name or number; or a dict with a weight for each. Each game draws its own.
        opponent: ``"none"``, ``"weak"``, ``"strong"`` or, with two agents, ``"agent"``; or a dict with a
            weight for each.
        one_starts: Whether player one has the puck first; None to draw it for each game.
        played_by: Who plays for player one of `HockeyOne`: ``"agent"``, or a bot, ``"weak"`` or ``"strong"``.
        side: The side of `HockeyOne`'s agent in NORMAL games: ``"left"`` (player one), ``"right"`` (player
            two), or None to draw it for each game. The agent sees its own goal on the left in any case. In
            the other modes it is always player one.
        win: The reward for a goal, and the price of conceding one.
        closeness: The weight of ``reward_closeness_to_puck``.
        touch: The weight of ``reward_touch_puck``.
        direction: The weight of ``reward_puck_direction``.

    Raises:
        ArgumentError: If there is no such mode or opponent, or if a weight is no number, or negative, or if
            all are 0.

    Example:
        >>> from shoal.hockey import settings
        >>> settings(
        ...     mode="TRAIN_SHOOTING", opponent={"weak": 8, "strong": 2}
        ... )  # doctest: +NORMALIZE_WHITESPACE
        {'mode_normal': 0.0, 'mode_shooting': 1.0, 'mode_defense': 0.0,
         'opponent_none': 0.0, 'opponent_weak': 8.0, 'opponent_strong': 2.0, 'opponent_agent': 0.0}
    """
    found: dict[str, Any] = {}
    if mode is not None:
        given = _as_weights("mode", mode)
        found |= _weights("mode", MODES, {mode_of(key): weight for key, weight in given.items()})
    if opponent is not None:
        given = _as_weights("opponent", opponent)
        for key in given:
            if key not in OPPONENTS:
                raise ArgumentError(f"opponent: expected one of {', '.join(OPPONENTS)}, got {key!r}")
        found |= _weights("opponent", OPPONENTS, given)
    if one_starts != "unchanged":
        if not (one_starts is None or isinstance(one_starts, bool)):
            raise ArgumentError(f"one_starts: expected True, False or None, got {one_starts!r}")
        found["start"] = STARTS[one_starts]
    if played_by is not None:
        if played_by not in PLAYERS:
            raise ArgumentError(f"played_by: expected one of {', '.join(PLAYERS)}, got {played_by!r}")
        found["played_by"] = PLAYERS[played_by]
    if side != "unchanged":
        if side not in SIDES:
            raise ArgumentError(f"side: expected left, right or None, got {side!r}")
        found["side"] = SIDES[side]
    rewards = {"win": win, "closeness": closeness, "touch": touch, "direction": direction}
    found |= {f"reward_{name}": _numbers(name, value) for name, value in rewards.items() if value is not None}
    return found


def _as_weights(name: str, given: Any) -> Mapping[Any, Any]:
    if isinstance(given, (list, tuple, np.ndarray)):
        raise ArgumentError(
            f"{name}: expected one, or a dict with weights. A weight may be an array with an entry for each "
            f"env, got {given!r}"
        )
    return given if isinstance(given, Mapping) else {given: 1.0}


def _numbers(name: str, value: Any) -> Any:
    """Return a number, or an array of numbers."""
    try:
        found = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if found.ndim > 1 or not np.isfinite(found).all():
        raise ArgumentError(f"{name}: expected a number, or an array with one for each env, got {value!r}")
    return found if found.ndim else float(found)


def _weights(name: str, parameters: Mapping[Any, str], given: Mapping[Any, Any]) -> dict[str, Any]:
    weights = {key: _numbers(name, given.get(key, 0.0)) for key in parameters}
    total: Any = sum(weights.values())
    if any(np.any(np.less(weight, 0.0)) for weight in weights.values()) or np.any(total == 0.0):
        raise ArgumentError(f"{name}: expected weights of 0 or more, not all 0, got {dict(given)!r}")
    return {parameters[key]: weight for key, weight in weights.items()}


def change(vec: VectorEnv, **chosen: Any) -> None:
    """Change the settings of all games of a vec. A new mode or opponent holds from the next game on.

    Args:
        vec: A vec of `Hockey` or `HockeyOne`.
        **chosen: The arguments of `settings`.

    Raises:
        ArgumentError: If `settings` raises it, or if the envs of the vec do not have the setting.

    Example:
        >>> import shoal
        >>> from shoal.hockey import change
        >>> with shoal.make("shoal/HockeyOne-v0", num_envs=2) as vec:
        ...     change(vec, opponent="strong", touch=1.0)
        ...     print(*vec.get_attr("opponent_strong"), *vec.get_attr("reward_touch"))
        1.0 1.0 1.0 1.0
    """
    found = settings(**chosen)
    if "played_by" in found and vec.agents_per_env == 2:
        raise ArgumentError("played_by: expected a vec of HockeyOne. The players of Hockey are agents")
    if "side" in found and vec.agents_per_env == 2:
        raise ArgumentError("side: expected a vec of HockeyOne. Hockey has an agent on each side")
    if np.any(found.get("opponent_agent", 0.0)) and vec.agents_per_env == 1:
        raise ArgumentError("opponent: HockeyOne has no second agent: use shoal/Hockey-v0")
    for name, value in found.items():
        vec.set_attr(name, list(value) if isinstance(value, np.ndarray) else value)
