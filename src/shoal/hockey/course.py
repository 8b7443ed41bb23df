"""The classes of the course's package `hockey.hockey_env`, on the compiled engine.

A course script runs with one import changed: ``import shoal.hockey as h_env``. Names and arguments are those
of the original, its spelling included. `HockeyEnv` says what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import ActionError, ArgumentError
from shoal.hockey.drawing import draw_observation
from shoal.hockey.envs import Hockey
from shoal.hockey.opponents import BasicOpponent, action_of, numbers, seed_of
from shoal.hockey.rules import (
    FORCE,
    MAX_ANGLE,
    MAX_PUCK_SPEED,
    MAX_TIME_KEEP_PUCK,
    SHOT_SPEED,
    STATE,
    TORQUE,
    ZONE,
    observe,
    proxies,
)
from shoal.hockey.settings import Mode, mode_of, settings
from shoal.hockey.table import CENTER_OFFSET, FPS, HEIGHT, SCALE, WIDTH
from shoal.hockey.window import Window
from shoal.native.math import cos, sin
from shoal.vector.native import Native

VIEWPORT_W, VIEWPORT_H = int(WIDTH * SCALE), int(HEIGHT * SCALE)  # pixels of a frame
W, H = WIDTH, HEIGHT  # metres
CENTER_X, CENTER_Y = W / 2, H / 2
GOAL_SIZE = 75  # pixels: half of the goal's width
RACKETPOLY = [(-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10)]
RACKETFACTOR = 1.2  # a racket is larger than this polygon of pixels
FORCEMULTIPLIER, TORQUEMULTIPLIER, SHOOTFORCEMULTIPLIER = FORCE, TORQUE, SHOT_SPEED

__all__ = [
    "CENTER_X",
    "CENTER_Y",
    "FORCEMULTIPLIER",
    "FPS",
    "GOAL_SIZE",
    "MAX_ANGLE",
    "MAX_PUCK_SPEED",
    "MAX_TIME_KEEP_PUCK",
    "RACKETFACTOR",
    "RACKETPOLY",
    "SCALE",
    "SHOOTFORCEMULTIPLIER",
    "TORQUEMULTIPLIER",
    "VIEWPORT_H",
    "VIEWPORT_W",
    "ZONE",
    "H",
    "HockeyEnv",
    "HockeyEnv_BasicOpponent",
    "W",
]

Observation = NDArray[np.float64]
Transition = tuple[Observation, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class Body:
    """A racket or the puck, in metres from the lower left corner of the frame, as player one sees it.

    The names are those of Box2D. A body is a copy: to change it, call `HockeyEnv.set_state`.

    Attributes:
        position: x and y.
        angle: In radians; 0 for the puck, whose angle nobody sees.
        linearVelocity: Metres per second, in x and y.
        angularVelocity: Radians per second.
    """

    position: NDArray[np.float64]
    angle: float
    linearVelocity: NDArray[np.float64]  # noqa: N815
    angularVelocity: float  # noqa: N815


class HockeyEnv(gymnasium.Env[Observation, Any]):
    """The course's game of two players as one Gymnasium env: an action has both players' numbers.

    An observation is what player one sees; `obs_agent_two` is what player two sees. ``reward`` and ``info``
    are those of player one, too. The observation has the position, angle, velocity and angular velocity of
    the own racket (6 numbers), those of the other racket (6), position and velocity of the puck (4), and how
    long either player may still hold the puck (2, in keep mode only).

    It differs from the original in these points:

    - A game that runs out of time is truncated. The original calls it terminated.
    - A seed decides everything. The first reset with a seed decides all games after it, too.
    - ``reset(mode=...)`` works, and a player that held the puck does not hold it in the next game.
    - `observation_space` has the shape and the dtype of observations, and `discrete_action_space` has all
      discrete actions.

    As in the original, the first game has begun when the env is made, and `step` goes on after the end of a
    game. From then on it returns terminated, so that a loop that ignores ``truncated`` ends one step later.

    Args:
        keep_mode: Whether a player that catches the puck holds it until it shoots.
        mode: A `Mode`, its name or its number.
        verbose: Not used.
        render_mode: ``"rgb_array"``, ``"human"`` to show every step in a window, or None.
        debug: Run the engine uncompiled, as `shoal.Native` does. This needs no Numba.

    Attributes:
        num_actions: The number of numbers in a player's action.
        discrete_action_space: The actions that `discrete_to_continous_action` knows.
        keep_mode: As given.
        one_starts: Whether player one has the puck first in this game. It alternates.
        done: Whether the game has ended, by a goal or by time.

    Raises:
        ArgumentError: If an argument has a value that is not described here.

    Example:
        >>> import numpy as np
        >>> from shoal.hockey import BasicOpponent, HockeyEnv
        >>> env, left, right = HockeyEnv(), BasicOpponent(weak=False, seed=1), BasicOpponent(seed=2)
        >>> obs, info = env.reset(seed=0)
        >>> terminated = truncated = False
        >>> while not (terminated or truncated):
        ...     action = np.hstack([left.act(obs), right.act(env.obs_agent_two())])
        ...     obs, reward, terminated, truncated, info = env.step(action)
        >>> obs.shape, env.winner in (-1, 0, 1)
        ((18,), True)
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": FPS}

    def __init__(
        self,
        keep_mode: bool = True,
        mode: Mode | str | int = Mode.NORMAL,
        verbose: bool = False,
        *,
        render_mode: str | None = None,
        debug: bool = False,
    ) -> None:
        if keep_mode not in (True, False):
            raise ArgumentError(f"keep_mode: expected True or False, got {keep_mode!r}")
        if not (render_mode is None or render_mode in self.metadata["render_modes"]):
            raise ArgumentError(f"render_mode: expected 'human', 'rgb_array' or None, got {render_mode!r}")
        self.mode = mode
        self.verbose, self.render_mode, self._debug = verbose, render_mode, debug
        self._window: Window | None = None
        self._next_seed: int | None = None
        self.keep_mode = bool(keep_mode)
        self._open()
        self.num_actions = 4 if self.keep_mode else 3
        self.observation_space = Box(-np.inf, np.inf, (18 if self.keep_mode else 16,), np.float64)
        self.action_space = Box(-1.0, 1.0, (2 * self.num_actions,), np.float32)
        self.discrete_action_space = Discrete(8 if self.keep_mode else 7)
        self._begin(True, self._mode, None)

    def _open(self) -> None:
        self._vec = Native(
            Hockey,
            1,
            env_kwargs={"keep_mode": self.keep_mode},
            num_workers=1,
            autoreset_mode=AutoresetMode.DISABLED,
            copy=False,
            debug=self._debug,
        )
        # For the functions of rules.py. These arrays are views of the engine's memory.
        views = {name: self._column(name)[0] for name in ("rackets", "puck", "possession")}
        self._state: Any = SimpleNamespace(**views)

    def _column(self, name: str) -> NDArray[Any]:
        """Return a view of a parameter or of a field of the state."""
        column = self._vec.column_of(name)
        assert column is not None
        return column

    # -- playing ---------------------------------------------------------------------------------------

    def reset(
        self,
        one_starting: bool | None = None,
        mode: Mode | str | int | None = None,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a game.

        Args:
            one_starting: Whether player one has the puck first. By default players take turns; with a seed,
                the seed decides.
            mode: The mode from now on: a `Mode`, its name or its number. By default as before.
            seed: The seed of this game and of all games after it, until another one is given.
            options: ``one_starting`` and ``mode`` can be given here too, through wrappers that know only
                `seed` and `options`.

        Returns:
            What player one sees, and its infos.

        Raises:
            ArgumentError: If an argument has a value that is not described here. No game has begun then.
        """
        given = dict(options or {})
        one_starting = given.pop("one_starting", one_starting)
        mode = given.pop("mode", mode)
        if given:
            raise ArgumentError(f"options: expected only one_starting and mode, got {sorted(given)}")
        if one_starting is not None:
            if not isinstance(one_starting, (bool, np.bool_, int)) or one_starting not in (0, 1):
                raise ArgumentError(f"one_starting: expected True, False or None, got {one_starting!r}")
            one_starting = bool(one_starting)
        chosen = self._mode if mode is None else mode_of(mode)
        if seed is None:
            seed, self._next_seed = self._next_seed, None
        if one_starting is None and seed is None:
            one_starting = not self.one_starts
        self._begin(one_starting, chosen, seed)
        super().reset(seed=seed)
        if self.render_mode == "human":
            self.render()
        return self._observe(0), self._info(0)

    def _begin(self, one_starting: bool | None, mode: Mode, seed: int | None) -> None:
        for name, value in settings(mode=mode, one_starts=one_starting).items():
            self._column(name)[0] = value
        self._vec.reset(seed=seed)
        self._mode, self.done = mode, False
        self.one_starts = bool(self._column("one_starts")[0])
        self._state.time_limit = self.max_timesteps
        self._begun = self._vec.snapshot()

    def step(self, action: Any) -> Transition:
        """Do one step: a 50th of a second.

        Args:
            action: Force x, force y, torque and, in keep mode, shoot, for player one and then for player two.
                Each player's numbers are as it sees the table. They are clipped to -1 ... 1.

        Returns:
            What player one sees, its reward, whether there was a goal, whether the time is over, its infos.

        Raises:
            ActionError: If the action has a wrong shape or a NaN. Nothing has moved then.
        """
        actions = action_of(action, 2 * self.num_actions).reshape(2, -1)
        was_over = self.done
        if was_over:
            self._go_on()
        truncated = bool(self._vec.step(actions)[3][0])
        terminated = was_over or self.winner != 0
        self.done = terminated or truncated
        if self.render_mode == "human":
            self.render()
        info = self._info(0)
        return self._observe(0), self.get_reward(info), terminated, truncated and not terminated, info

    def _go_on(self) -> None:
        """Let a game that has ended go on.

        A vec does not step it. So begin the game again, and put its state back.
        """
        now = {name: self._column(name).copy() for name in STATE.names or ()}
        self._vec.restore(self._begun)
        for name, value in now.items():
            self._column(name)[:] = value

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Set the seed of the next reset, for scripts that do not give it to `reset`.

        Raises:
            ArgumentError: If the seed is not None or an integer of 0 or more.
        """
        self._next_seed = seed_of(seed)
        return [seed]

    def close(self) -> None:
        """Close the window and the engine."""
        if self._window is not None:
            self._window.close()
            self._window = None
        self._vec.close()

    # -- what players see ------------------------------------------------------------------------------

    def _observe(self, player: int) -> Observation:
        obs = np.empty(18 if self.keep_mode else 16)
        observe(self._state, player, self.keep_mode, obs)  # type: ignore[no-untyped-call]
        return obs

    def _info(self, player: int) -> dict[str, Any]:
        closeness, touch, direction = proxies(self._state, player)  # type: ignore[no-untyped-call]
        return {
            "winner": self.winner * (1 - 2 * player),
            "reward_closeness_to_puck": float(closeness),
            "reward_touch_puck": float(touch),
            "reward_puck_direction": float(direction),
        }

    def obs_agent_two(self) -> Observation:
        """Return what player two sees: the table from its side, as if it were player one."""
        return self._observe(1)

    def get_info_agent_two(self) -> dict[str, Any]:
        """Return the infos of player two, who has won if ``winner`` is 1."""
        return self._info(1)

    def get_reward(self, info: dict[str, Any]) -> float:
        """Return the reward of player one.

        Args:
            info: Its infos.
        """
        return self._result() + float(info["reward_closeness_to_puck"])

    def get_reward_agent_two(self, info_two: dict[str, Any]) -> float:
        """Return the reward of player two.

        Args:
            info_two: Its infos, of `get_info_agent_two`.
        """
        return -self._result() + float(info_two["reward_closeness_to_puck"])

    def _result(self) -> float:
        return 10.0 * self.winner if self.done else 0.0

    def discrete_to_continous_action(self, discrete_action: int) -> list[float]:
        """Return the numbers of a player for a discrete action.

        Args:
            discrete_action: 0 for nothing, 1 and 2 for force -x and x, 3 and 4 for force -y and y, 5 and 6
                for torque - and +, and 7 to shoot, in keep mode.

        Raises:
            ActionError: If there is no such action.
        """
        if not self.discrete_action_space.contains(discrete_action):
            last = int(self.discrete_action_space.n) - 1
            raise ActionError(f"discrete_action: expected 0 to {last}, got {discrete_action!r}")
        action = [0.0] * self.num_actions
        if discrete_action == 7:
            action[3] = 1.0
        elif discrete_action > 0:
            action[(discrete_action - 1) // 2] = 1.0 if discrete_action % 2 == 0 else -1.0
        return action

    # -- the state -------------------------------------------------------------------------------------

    def set_state(self, obs: Any, puck_spin: float | None = None) -> None:
        """Put rackets and puck where an observation of player one says, with its velocities and counters.

        The time, the winner, and which bodies touch each other stay as they are.

        Args:
            obs: An observation of player one.
            puck_spin: The angular velocity of the puck, which no observation has. By default as it is.

        Raises:
            ArgumentError: If it is not an observation of this env. Nothing has changed then.
        """
        own = numbers("obs", obs, 18 if self.keep_mode else 16)
        counters = own[16:]
        if not np.isin(counters, np.arange(MAX_TIME_KEEP_PUCK + 1)).all():
            raise ArgumentError(
                f"obs: expected counters from 0 to {MAX_TIME_KEEP_PUCK} in entries 16 and 17, got "
                f"{counters.tolist()}"
            )
        spin = None if puck_spin is None else numbers("puck_spin", [puck_spin], 1)[0]
        for player, racket in enumerate((own[:6], own[6:12] * (-1, -1, 1, -1, -1, 1))):
            angle = racket[2]
            self._state.rackets[player] = racket
            self._state.rackets[player, :2] -= CENTER_OFFSET * cos(angle), CENTER_OFFSET * sin(angle)
        self._state.puck[:4] = own[12:16]
        if self.keep_mode:
            self._state.possession[:] = counters
        if spin is not None:
            self._state.puck[4] = spin

    @property
    def mode(self) -> Mode:
        """The mode of this game; after it was set, of the next one."""
        return self._mode

    @mode.setter
    def mode(self, value: Mode | str | int) -> None:
        self._mode = mode_of(value)

    @property
    def time(self) -> int:
        """The number of steps that this game has had."""
        return int(self._column("time")[0])

    @property
    def max_timesteps(self) -> int:
        """The time limit. The step that begins at this time is the last one."""
        return int(self._column("time_limit")[0])

    @property
    def winner(self) -> int:
        """1 if player one has won, -1 if player two has, 0 if there is no goal."""
        return int(self._column("winner")[0])

    @property
    def player1_has_puck(self) -> int:
        """For how many steps player one may still hold the puck; 0 if it does not hold it."""
        return int(self._state.possession[0])

    @property
    def player2_has_puck(self) -> int:
        """For how many steps player two may still hold the puck; 0 if it does not hold it."""
        return int(self._state.possession[1])

    @property
    def player1(self) -> Body:
        """The racket of player one."""
        return self._racket(0)

    @property
    def player2(self) -> Body:
        """The racket of player two."""
        return self._racket(1)

    @property
    def puck(self) -> Body:
        """The puck."""
        x, y, vx, vy, spin = self._state.puck.tolist()
        return Body(np.array([CENTER_X + x, CENTER_Y + y]), 0.0, np.array([vx, vy]), spin)

    def _racket(self, player: int) -> Body:
        x, y, angle, vx, vy, spin = self._observe(0)[6 * player : 6 * player + 6].tolist()
        return Body(np.array([CENTER_X + x, CENTER_Y + y]), angle, np.array([vx, vy]), spin)

    # -- to look at ------------------------------------------------------------------------------------

    def render(self, mode: str | None = None) -> Any:
        """Draw the table.

        Args:
            mode: ``"rgb_array"`` to return a frame of shape (480, 600, 3), ``"human"`` to show it in a
                window, at 50 frames a second. By default the `render_mode` of the env, or else a window.

        Raises:
            ArgumentError: If there is no such mode.
            MissingExtra: If a window is asked for and pygame is not installed.
        """
        mode = mode or self.render_mode or "human"
        if mode not in self.metadata["render_modes"]:
            raise ArgumentError(f"mode: expected 'human' or 'rgb_array', got {mode!r}")
        frame = draw_observation(self._observe(0))
        if mode == "rgb_array":
            return frame
        if self._window is None:
            self._window = Window(frame)
        else:
            self._window.show(frame)
        return None

    # -- copies ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return all that a copy needs: a copy goes on as the env does, and has no window."""
        own = {name: value for name, value in self.__dict__.items() if name not in ("_vec", "_state")}
        return {**own, "_window": None, "_now": self._vec.snapshot()}

    def __setstate__(self, own: dict[str, Any]) -> None:
        """Make an engine, and put it into the state of the env that was copied."""
        now = own.pop("_now")
        self.__dict__.update(own)
        self._open()
        self._vec.restore(now)
        self._state.time_limit = self.max_timesteps


class HockeyEnv_BasicOpponent(HockeyEnv):  # noqa: N801 - the original's name
    """One player against the bot of the course's game.

    Args:
        mode: As for `HockeyEnv`.
        weak_opponent: Whether it is the weak bot.
        render_mode: As for `HockeyEnv`.
        debug: As for `HockeyEnv`.

    Attributes:
        opponent: The bot.

    Example:
        >>> import numpy as np
        >>> from shoal.hockey import HockeyEnv_BasicOpponent
        >>> env = HockeyEnv_BasicOpponent(weak_opponent=True)
        >>> obs, info = env.reset(seed=0)
        >>> obs, reward, terminated, truncated, info = env.step(np.zeros(4))
        >>> env.action_space.shape, terminated
        ((4,), False)
    """

    def __init__(
        self,
        mode: Mode | str | int = Mode.NORMAL,
        weak_opponent: bool = False,
        *,
        render_mode: str | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(mode=mode, render_mode=render_mode, debug=debug)
        self.opponent = BasicOpponent(weak=weak_opponent)
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)

    def _begin(self, one_starting: bool | None, mode: Mode, seed: int | None) -> None:
        super()._begin(one_starting, mode, seed)
        if seed is not None:
            self.opponent.seed(seed)

    def step(self, action: Any) -> Transition:
        """Do one step with the action of player one: force x, force y, torque, shoot."""
        own = action_of(action, 4)
        return super().step(np.hstack([own, self.opponent.act(self.obs_agent_two())]))
