"""OnePlayer: a vec of two players as a vector env of one; others play the second side.

    learner's actions --+
                        +--> both rows of each env --> two-player vec --> row of the learner's side
    opponents' actions -+                                           |
             one call for each opponent  <-- rows of the other side

A learner takes it in a vec: ``shoal.Serial(lambda: OnePlayer(vec, choose, player_of), flat=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.vector.vec import VectorEnv

Player = Callable[[NDArray[Any]], NDArray[Any]]


class OnePlayer(GymnasiumVectorEnv[Any, Any, Any]):
    """A vec of two players as a vector env of one player.

    Both players must have the same spaces, act in every step, and end their games together.

    Args:
        vec: Vec with two agents, flat observations and NEXT_STEP autoreset. It is closed with this env.
        choose: Function that is given the number of an env and returns the key of its next opponent. It is
            called when the next game begins.
        player_of: Function that returns the player of a key: a function from flat observations, [rows, ...],
            to actions, such as ``policy.act_batch``. None if the game plays that opponent itself.
        on_game: Function to call with the number of an env, the key of its opponent, and the learner's
            return minus the opponent's, when a game ends.
        prepare: Function to call with envs and their new opponents, before their next games begin.
        side: The player that the learner plays for, 0 or 1; None to draw it for each game.
        seed: Seed of the sides.

    Attributes:
        keys: The key of each env's opponent.
        side: The player that the learner plays for in each env.
        random: Generator of the sides. `choose` and players may draw from it too: it is part of a snapshot.
    """

    def __init__(
        self,
        vec: VectorEnv,
        choose: Callable[[int], str],
        player_of: Callable[[str], Player | None],
        *,
        on_game: Callable[[int, str, float], None] | None = None,
        prepare: Callable[[Sequence[int], Sequence[str]], None] | None = None,
        side: int | None = 0,
        seed: int = 0,
    ) -> None:
        if vec.agents_per_env != 2 or vec.rows_as_envs:
            flag = " and rows_as_envs" if vec.rows_as_envs else ""
            raise ArgumentError(f"vec: expected one with two agents, got {vec.agents_per_env}{flag}")
        if vec.autoreset_mode is not AutoresetMode.NEXT_STEP or vec.batch_size < vec.num_envs:
            raise ArgumentError("vec: expected a synchronous one with autoreset_mode=NEXT_STEP")
        if side not in (0, 1, None):
            raise ArgumentError(f"side: expected 0, 1 or None, got {side!r}")
        self._vec, self._choose, self._player_of = vec, choose, player_of
        self._on_game, self._prepare = on_game, prepare
        self._wanted_side = side
        self.num_envs = vec.num_envs
        self.metadata = {**vec.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = vec.render_mode
        self.single_observation_space = vec.single_observation_space
        self.single_action_space = vec.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.random = np.random.default_rng(seed)
        self._envs = np.arange(self.num_envs)
        self.keys = [""] * self.num_envs
        self.side = np.zeros(self.num_envs, np.int64)
        self._balance = np.zeros(self.num_envs)  # the learner's return minus the opponent's
        self._obs: NDArray[Any] = np.zeros(0)
        self._acting = np.zeros((self.num_envs, 2), np.bool_)
        self._ended = np.zeros(self.num_envs, np.bool_)  # games that the next step begins anew

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin new games in all envs."""
        if options is not None:
            raise ArgumentError(f"options: expected none, got {options!r}")
        self._begin(self._envs)
        self._ended[:] = False
        obs, _ = self._vec.reset(seed=seed)
        self._see(obs)
        return self._own(self._obs).copy(), {}

    def step(self, actions: Any) -> Any:
        """Step all games with the learner's actions and those of the opponents."""
        if self._ended.any():
            self._begin(np.flatnonzero(self._ended))
        sent = np.zeros((self.num_envs, 2, *np.shape(actions)[1:]), np.asarray(actions).dtype)
        sent[self._envs, self.side] = actions
        self._let_opponents_act(sent)
        obs, rewards, terminations, truncations, _ = self._vec.step(sent.reshape(-1, *sent.shape[2:]))
        self._see(obs)
        paid = rewards.reshape(self.num_envs, 2)
        own = self._own(paid).copy()
        self._balance += own - paid[self._envs, 1 - self.side]
        terminated = self._own(terminations.reshape(self.num_envs, 2)).copy()
        truncated = self._own(truncations.reshape(self.num_envs, 2)).copy()
        seen = self._own(self._obs).copy()
        self._ended = terminated | truncated
        if self._on_game is not None:
            for env in np.flatnonzero(self._ended).tolist():
                self._on_game(env, self.keys[env], float(self._balance[env]))
        return seen, own, terminated, truncated, {}

    def _own(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of the learner's side."""
        found: NDArray[Any] = values[self._envs, self.side]
        return found

    def _see(self, obs: Any) -> None:
        self._obs = obs.reshape(self.num_envs, 2, *obs.shape[1:])
        self._acting = self._vec.mask.reshape(self.num_envs, 2).copy()

    def _begin(self, envs: NDArray[np.int64]) -> None:
        chosen = [self._choose(env) for env in envs.tolist()]
        for env, key in zip(envs.tolist(), chosen, strict=True):
            self.keys[env] = key
        self._balance[envs] = 0.0
        if self._wanted_side is None:
            self.side[envs] = self.random.integers(0, 2, len(envs))
        else:
            self.side[envs] = self._wanted_side
        if self._prepare is not None:
            self._prepare(envs.tolist(), chosen)

    def _let_opponents_act(self, sent: NDArray[Any]) -> None:
        """Write the actions of all opponents that act now, by one call for each player."""
        acting = np.flatnonzero(self._acting[self._envs, 1 - self.side])
        groups: dict[str, list[int]] = {}
        for env in acting.tolist():
            groups.setdefault(self.keys[env], []).append(env)
        for key, envs in groups.items():
            play = self._player_of(key)
            if play is not None:
                sides = 1 - self.side[envs]
                sent[envs, sides] = play(np.ascontiguousarray(self._obs[envs, sides]))

    # -- access to the envs --------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute."""
        return tuple(self._vec.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env."""
        return tuple(self._vec.get_attr(name))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env."""
        self._vec.set_attr(name, values)

    def render(self) -> Any:
        """Return the frame of every env."""
        return self._vec.render()

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all games; that of the policies is not part of it."""
        arrays = self.side, self._balance, self._obs, self._acting, self._ended
        return {
            "vec": self._vec.snapshot(),
            "keys": list(self.keys),
            "arrays": [each.copy() for each in arrays],
            "random": self.random.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._vec.restore(state["vec"])
        self.keys = list(state["keys"])
        arrays = [each.copy() for each in state["arrays"]]
        self.side, self._balance, self._obs, self._acting, self._ended = arrays
        self.random.bit_generator.state = state["random"]

    def close(self, **kwargs: Any) -> None:
        """Close the vec."""
        self._vec.close()
