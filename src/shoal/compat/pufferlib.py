"""PufferLib's classic interface on top of Shoal's vecs, for code written for PufferLib.

    pufferlib.make                                        make a vector env by name or creator
    pufferlib.PufferEnv                                   a base class for envs
    pufferlib.vectorization.Serial, Multiprocessing       vector envs in the classic form
    pufferlib.vectorization.VectorEnv                     their base class, also for your own vector envs

`shoal.compat.install_as_pufferlib` installs these under the names above. They can be imported from here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import DTypeLike

from shoal.compat._classic import Multiprocessing, Serial, VectorEnv
from shoal.compat._facade import Facade
from shoal.errors import ArgumentError, ArgumentTypeError

__all__ = ["Multiprocessing", "PufferEnv", "Serial", "VectorEnv", "make"]


def make(
    env_creator: Any,
    num_envs: int | None = None,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    num_agents: int | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Make a vector env in the classic form, on a suitable backend.

    Args:
        env_creator: As for `VectorEnv`.
        num_envs: As for `VectorEnv`.
        num_workers: As for `VectorEnv`.
        envs_per_worker: As for `VectorEnv`.
        num_agents: The number of agents that each env must have. knights-archers-zombies is made with this
            number: one half archers and one half knights. With an odd number there is one more archer.
        **kwargs: As for `VectorEnv`.

    Raises:
        ArgumentError: If the envs have another number of agents, or an argument cannot work.

    Example:
        >>> from shoal.compat import pufferlib
        >>> with pufferlib.make("CartPole-v1", num_envs=4, backend="serial") as env:
        ...     obs = env.reset()
        >>> obs.shape, env
        ((4, 4), <VectorEnv: Serial(CartPole-v1, num_envs=4)>)
    """
    if num_agents is not None:
        if not isinstance(num_agents, (int, np.integer)) or num_agents < 1:  # type: ignore[redundant-expr]
            raise ArgumentError(f"num_agents: expected a positive integer, got {num_agents!r}")
        if env_creator == "pettingzoo-knights-archers-zombies":
            knights = num_agents // 2
            sides = {"num_archers": num_agents - knights, "num_knights": knights}
            kwargs["env_kwargs"] = {**sides, **(kwargs.get("env_kwargs") or {})}
    env = VectorEnv(env_creator, num_envs, num_workers=num_workers, envs_per_worker=envs_per_worker, **kwargs)
    has = env.vec.agents_per_env
    if num_agents not in (None, has):
        env.close()
        raise ArgumentError(
            f"num_agents: expected {has}, as many as the env has, got {num_agents}. If the env can have "
            "another number, set it by the env's own arguments, in env_kwargs={...}"
        )
    return env


class PufferEnv(gymnasium.Env[Any, Any]):
    """A base class for single envs in the classic form.

    A subclass sets ``observation_space`` and ``action_space`` in its ``__init__``, and defines

        reset() -> obs
        step(action) -> obs, reward, done, info

    Gymnasium's form works too. The vector env copies returned observations into the env's row at once, so an
    env may return the same array each time. ``self.np_random`` follows the vector env's seed.

    Args:
        buf: Stored as ``self.buf``. Shoal passes None. Use `shoal.Env` for an env that writes its rows
            itself.

    Example:
        >>> import numpy as np
        >>> from shoal.compat.pufferlib import PufferEnv, Serial
        >>> class Dice(PufferEnv):
        ...     def __init__(self, buf=None):
        ...         super().__init__(buf)
        ...         self.observation_space = self.make_space({"eyes": (2,)})
        ...         self.action_space = self.make_space(3)
        ...
        ...     def reset(self):
        ...         self.eyes = self.np_random.integers(1, 7, 2, np.uint8)
        ...         return {"eyes": self.eyes}
        ...
        ...     def step(self, action):
        ...         if action < 2:
        ...             self.eyes[action] = self.np_random.integers(1, 7)
        ...         return {"eyes": self.eyes}, float(self.eyes.sum()), action == 2, {}
        >>> env = Serial(Dice, num_envs=3)
        >>> env.reset(seed=0)["eyes"].shape
        (3, 2)
    """

    def __init__(self, buf: Any = None) -> None:
        self.buf = buf

    @staticmethod
    def make_space(wanted: Any, dtype: DTypeLike = np.uint8) -> Space[Any]:
        """Make a space from a short description.

        Args:
            wanted: The description. A shape gives a Box with the whole range of `dtype`: 0 to 255 for uint8,
                -inf to inf for floats. An integer gives a Discrete. A dict gives a Dict of spaces, made from
                its values. A space is returned unchanged.
            dtype: The dtype of every Box.

        Raises:
            ArgumentTypeError: If `wanted` is none of these.

        Example:
            >>> from shoal.compat.pufferlib import PufferEnv
            >>> PufferEnv.make_space({"camera": (84, 84, 3), "gear": 5})
            Dict('camera': Box(0, 255, (84, 84, 3), uint8), 'gear': Discrete(5))
            >>> PufferEnv.make_space((4,), np.float32)
            Box(-inf, inf, (4,), float32)
        """
        whole = (int, np.integer)
        if isinstance(wanted, Space):
            return wanted
        if isinstance(wanted, Mapping):
            return spaces.Dict({key: PufferEnv.make_space(part, dtype) for key, part in wanted.items()})
        if isinstance(wanted, whole) and wanted > 0:
            return spaces.Discrete(int(wanted))
        if isinstance(wanted, Sequence) and all(isinstance(size, whole) and size > 0 for size in wanted):
            kind: Any = np.dtype(dtype)
            low, high = (0, 1) if kind == np.bool_ else (-np.inf, np.inf)
            if kind.kind in "iu":
                low, high = np.iinfo(kind).min, np.iinfo(kind).max
            return spaces.Box(low, high, tuple(wanted), kind.type)
        raise ArgumentTypeError(
            "expected a shape such as (84, 84, 3), a positive integer, a space, or a dict of them, "
            f"got {wanted!r}"
        )

    def seed(self, seed: int) -> None:
        """Seed ``np_random``. Shoal calls this before a seeded reset if `reset` takes no seed."""
        super().reset(seed=seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode. A subclass defines this, and may call it by super() to seed ``np_random``."""
        name = type(self).__name__
        if type(self).reset is PufferEnv.reset:
            raise NotImplementedError(f"{name} must define reset(), which returns an observation")
        super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Do one step. A subclass defines this method."""
        name = type(self).__name__
        raise NotImplementedError(
            f"{name} must define step(), which returns obs, reward, done, info. If it does, and calls "
            f"super().step(), add a base class that has one after it: class Mine({name}, Game)"
        )


# -- under the name of pufferlib -----------------------------------------------------------------------------

FACADE = Facade(
    "PufferLib",
    {
        "pufferlib": {"make": make, "PufferEnv": PufferEnv},
        "pufferlib.vectorization": {
            "Serial": Serial,
            "Multiprocessing": Multiprocessing,
            "VectorEnv": VectorEnv,
        },
    },
    "Shoal's stand-in for pufferlib has only make, PufferEnv and vectorization, and that only Serial, "
    "Multiprocessing and VectorEnv",
    "shoal.compat.pufferlib",
)


def is_installed() -> bool:
    """Return whether ``import pufferlib`` imports Shoal's version in this process."""
    return FACADE.is_installed()


def install() -> None:
    """Install this module as ``pufferlib``: see `shoal.compat.install_as_pufferlib`."""
    FACADE.install()
