"""The family "ale": Atari games by ale-py's own vector env, which steps them on threads in C++.

The preprocessing has the arguments and defaults of the family "atari". But ale-py does some things in another
way:

- A lost life begins a new game. Later lives are seen only with ``episodic_life=False``.
- A reset presses FIRE before the no-ops and not after them, and takes fewer than `noop_max` no-ops.
- The frames before a reset are black.
- Under SAME_STEP there is no ``final_info``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.envs.atari import GAMES, check_names
from shoal.errors import ArgumentError


def names() -> list[str]:
    """Return the names of the envs without the prefix "ale-"."""
    return list(GAMES)


def create(
    name: str,
    *,
    num_envs: int,
    autoreset_mode: AutoresetMode,
    frame_skip: int = 4,
    noop_max: int = 30,
    episodic_life: bool = True,
    fire_reset: bool = True,
    clip_rewards: bool = True,
    size: int | tuple[int, int] = 84,
    greyscale: bool = True,
    stack: int = 4,
    render_mode: str | None = None,
    **kwargs: Any,
) -> Games:
    """Make a vector env of one game.

    Args:
        name: The name of the game.
        num_envs: The number of envs.
        autoreset_mode: When a finished env is reset.
        frame_skip: As in `shoal.envs.atari.create`.
        noop_max: As in `shoal.envs.atari.create`.
        episodic_life: Whether a lost life ends the episode and the game.
        fire_reset: As in `shoal.envs.atari.create`.
        clip_rewards: As in `shoal.envs.atari.create`.
        size: As in `shoal.envs.atari.create`.
        greyscale: As in `shoal.envs.atari.create`.
        stack: As in `shoal.envs.atari.create`.
        render_mode: Must be None, because ale-py's vector env cannot render.
        **kwargs: Other arguments of `ale_py.vector_env.AtariVectorEnv`, except ``batch_size`` and
            ``life_loss_info``.

    Example:
        >>> import shoal
        >>> with shoal.make("ale-breakout", num_envs=2) as vec:
        ...     obs, infos = vec.reset(seed=0)
        >>> obs.shape, obs.dtype, infos["lives"].tolist()
        ((2, 4, 84, 84), dtype('uint8'), [5, 5])
    """
    if render_mode is not None:
        raise ArgumentError(f"render_mode: ale-py's vector env cannot render. Use 'atari-{name}'")
    taken = {"game", "frameskip", "img_width", "img_height", "grayscale", "stack_num", "use_fire_reset"}
    check_names(kwargs, AtariVectorEnv, taken={*taken, "reward_clipping"}, own=create)
    if wrong := {"batch_size", "life_loss_info"}.intersection(kwargs):
        raise ArgumentError(
            f"{', '.join(sorted(wrong))}: a vec steps all envs and resets envs that terminate. "
            f"Use 'atari-{name}'"
        )
    width, height = (size, size) if isinstance(size, int) else size
    return Games(
        GAMES[name],
        num_envs,
        autoreset_mode,
        frameskip=frame_skip,
        noop_max=noop_max,
        episodic_life=episodic_life,
        use_fire_reset=fire_reset,
        reward_clipping=clip_rewards,
        img_width=width,
        img_height=height,
        grayscale=greyscale,
        stack_num=stack,
        **kwargs,
    )


class Games(AtariVectorEnv):
    """ale-py's vector env, with seeds, masks and infos as in Gymnasium's vector envs.

    Args:
        game: The name of the ROM.
        num_envs: The number of envs.
        autoreset_mode: When a finished env is reset. With DISABLED the caller must reset finished envs before
            the next step; `shoal.Serial` ensures this.
        **kwargs: Other arguments of `AtariVectorEnv`.
    """

    def __init__(self, game: str, num_envs: int, autoreset_mode: AutoresetMode, **kwargs: Any) -> None:
        self.metadata = {}  # a new dict, because ale-py would write into the dict that all vector envs share
        disabled = autoreset_mode is AutoresetMode.DISABLED
        # ale-py has no DISABLED mode. But with NEXT_STEP, an env that the caller reset is not reset again.
        inner = AutoresetMode.NEXT_STEP if disabled else autoreset_mode
        super().__init__(game, num_envs, autoreset_mode=inner, **kwargs)
        self.autoreset_mode = self.metadata["autoreset_mode"] = autoreset_mode

    def reset(  # type: ignore[override]  # ale-py declares a type variable as its result
        self,
        *,
        seed: int | Sequence[int | None] | NDArray[np.integer[Any]] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        Args:
            seed: An integer ``n`` gives env i the seed ``n + i``. A list has one seed for every env, also for
                envs that are not reset.
            options: Only ``reset_mask`` is read.
        """
        chosen = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            chosen = options["reset_mask"]
        mask = None if chosen.all() else {"reset_mask": chosen}
        obs, infos = super().reset(seed=self._seeds(seed)[chosen], options=mask)
        del infos["env_id"]
        return obs, infos | {f"_{key}": chosen for key in infos}

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every env."""
        obs, rewards, terminations, truncations, infos = super().step(actions)
        del infos["env_id"]
        if "final_obs" in infos:  # it has a row for each env, but only finished envs wrote theirs
            infos["_final_obs"] = terminations | truncations
        return obs, rewards, terminations, truncations, infos

    def _seeds(self, seed: int | Sequence[int | None] | NDArray[np.integer[Any]] | None) -> NDArray[np.int64]:
        """Return the seed of each env. -1 is ale-py's None: the random stream goes on."""
        if seed is None:
            return np.full(self.num_envs, -1)
        each = range(seed, seed + self.num_envs) if isinstance(seed, (int, np.integer)) else seed
        if any(own is not None and own < 0 for own in each):
            raise ArgumentError(f"seed: expected integers that are not negative, got {seed}")
        return np.array([-1 if own is None else own % 2**31 for own in each])  # seeds of ale-py have 31 bits

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Raise an AttributeError, because the envs cannot be reached from Python."""
        raise AttributeError(f"{name}: ale-py's envs are stepped in C++, and have no attributes in Python")

    def set_attr(self, name: str, values: Any) -> None:
        """Raise an AttributeError, because the envs cannot be reached from Python."""
        self.call(name)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads, which ale-py leaves to the garbage collector."""
        self.__dict__.pop("ale", None)
