"""Any env -> one interface that the steppers can use.

    a creator returns                          the stepper gets
    ------------------------------------------------------------------------------------
    gymnasium.Env, or an env with its methods  SingleEnv: one row
    old gym: reset() -> obs, 4-tuples, seed()  SingleEnv: one row
    shoal.Env                                  the same env: num_agents rows, written in place
    PettingZoo: parallel and AEC               AgentsEnv: one row for each possible agent
    a vector env                               the same vector env: its envs become envs of the vec

The steppers (`shoal._core`) pack observations into rows. This file only gives all envs the same methods.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

from shoal.adapters.agents import AgentsEnv
from shoal.adapters.env import Env
from shoal.errors import ArgumentError, ArgumentTypeError, ShoalError, SpaceError

Creator = Callable[[], Any]


class SingleEnv:
    """A single-agent env of any style, with the methods of `gymnasium.Env`.

    Args:
        env: An env of Gymnasium or old gym, or any object with the same methods.
    """

    num_envs = 1
    num_agents = 1

    def __init__(self, env: Any) -> None:
        self.env = env
        self.step: Callable[[Any], Any] = env.step
        self.observation_space = to_gymnasium_space(env.observation_space)
        self.action_space = to_gymnasium_space(env.action_space)
        space = self.observation_space
        # The keys of the second part of an observation, if it could be mistaken for a pair (obs, info).
        self._pair_keys: set[str] | None = None
        if isinstance(space, spaces.Tuple) and len(space) == 2 and isinstance(space[1], spaces.Dict):
            self._pair_keys = set(space[1].spaces)
        self._warned = False
        self._named, self._passes_on = _parameters(env.reset)
        self._takes_seed = _takes(env, "seed")

    def __reduce__(self) -> tuple[type[SingleEnv], tuple[Any]]:
        """Pickle only the env; the rest follows from it."""
        return SingleEnv, (self.env,)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Pass the seed in the way that the env's style supports.

        Raises:
            ArgumentTypeError: If options are given to an env whose reset() takes none.
        """
        arguments: dict[str, Any] = {}
        if "seed" in self._named:
            arguments["seed"] = seed
        elif seed is not None:
            arguments = self._seed_old(seed)
        # Copied, because an env may change its options.
        own = dict(options) if isinstance(options, dict) else options
        # If reset() takes options only by **kwargs, it is a wrapper, and the env inside may not take options.
        # So empty options are not passed then.
        if "options" in self._named or (options and self._passes_on):
            arguments["options"] = own
        elif options:
            raise ArgumentTypeError(
                f"options: reset() of {type(self.env).__name__} takes none, got {options!r}"
            )
        return self._with_info(self.env.reset(**arguments))

    def _seed_old(self, seed: int) -> dict[str, Any]:
        """Seed an env whose `reset` has no parameter `seed`. Return the arguments that its `reset` needs."""
        if self._takes_seed:
            return {"seed": seed}
        try:
            put = self.get_attr("seed")
        except AttributeError:
            put = None
        if callable(put):
            put(seed)
        elif self._passes_on:
            return {"seed": seed}  # the wrapper may use the seed or pass it on
        elif not self._warned:
            self._warned = True
            name = type(self.env).__name__
            warnings.warn(
                f"{name} takes no seed, by reset(seed=...) or seed(): it was not seeded", stacklevel=2
            )
        return {}

    def restart(self) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode without a new seed: the env's random stream goes on."""
        return self._with_info(self.env.reset())

    def _with_info(self, result: Any) -> tuple[Any, dict[str, Any]]:
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            return result, {}
        first, info = result
        if not (isinstance(info, Mapping) or info is None):
            return result, {}
        if self._pair_keys is not None and info is not None and self._pair_keys <= set(info):
            inner = isinstance(first, (tuple, list)) and len(first) == 2 and isinstance(first[1], Mapping)
            if not inner:
                return result, {}  # the result is the observation itself; there is no info
        return first, dict(info or {})

    def get_attr(self, name: str) -> Any:
        """Return the attribute `name` of the env or of a wrapper around it."""
        get = getattr(self.env, "get_wrapper_attr", None)
        return getattr(self.env, name) if get is None else get(name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set the attribute `name` on the env or wrapper that has it."""
        put = getattr(self.env, "set_wrapper_attr", None)
        if put is None:
            setattr(self.env, name, value)
        else:
            put(name, value)

    def render(self) -> Any:
        """Return the env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the env, if it has a close method."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


def _parameters(verb: Any) -> tuple[set[str], bool]:
    """Return the names of a method's parameters, and whether it takes **kwargs."""
    try:
        parameters = inspect.signature(verb).parameters.values()
    except (TypeError, ValueError):  # a compiled method has no signature
        return set(), True
    return {each.name for each in parameters}, any(each.kind is each.VAR_KEYWORD for each in parameters)


def _takes(env: Any, name: str) -> bool:
    """Return whether `reset` takes this argument, or passes it through wrappers to an env that takes it."""
    names, passes_on = _parameters(env.reset)
    if passes_on and name not in names:
        # Do not read `env.env`: a mock of an env has another env inside, without end. Do not read
        # `env.__dict__`: CPython then keeps the attributes in a dict, and every step of the env is slower.
        try:
            inner = object.__getattribute__(env, "env")
        except AttributeError:
            return True
        if inner is not env and hasattr(inner, "reset"):
            return _takes(inner, name)
    return passes_on or name in names


def adopt(env: Any) -> SingleEnv | Env | VectorEnv[Any, Any, Any]:
    """Adapt the env that a creator returned to an interface that the steppers know.

    Raises:
        ArgumentTypeError: If `env` is not an env.
    """
    if isinstance(env, VectorEnv):
        return env
    if isinstance(env, type):
        raise ArgumentTypeError(
            f"a creator must return an env, got the class {env.__name__}. Pass the class itself as the "
            f"creator, or call it: lambda: {env.__name__}()"
        )
    missing = [
        name
        for name in ("reset", "step", "observation_space", "action_space")
        if getattr(env, name, None) is None
    ]
    if missing:
        raise ArgumentTypeError(
            f"a creator must return an env, got {type(env).__name__} without {', '.join(missing)}"
        )
    if hasattr(env, "possible_agents") and not isinstance(env, Env):
        return AgentsEnv(env)
    for name in ("observation_space", "action_space"):
        space = to_gymnasium_space(getattr(env, name))
        if not isinstance(space, Space):
            raise _no_space(env, name, space)
    if not isinstance(env, Env):
        return SingleEnv(env)
    agents: Any = env.num_agents
    if not isinstance(agents, (int, np.integer)) or agents < 1:
        raise ArgumentError(
            f"num_agents of {type(env).__name__}: expected a positive integer, got {env.num_agents!r}"
        )
    return env


def _no_space(env: Any, name: str, found: Any) -> ShoalError:
    """Return the error for an env whose space is not a space."""
    kind = type(env).__name__
    if not callable(found):
        return SpaceError(f"{name} of {kind}: expected a gymnasium.Space, got {found!r}")
    if _parameters(found)[0]:  # the method takes an agent
        return ArgumentTypeError(
            f"possible_agents: {kind} has a method {name}(agent), as PettingZoo's envs have, but no "
            "possible_agents. Give it a list with the name of each agent that may ever act: "
            'self.possible_agents = ["player_0", "player_1"]'
        )
    return SpaceError(
        f"{name} of {kind}: expected a gymnasium.Space, got a method. Set it as an attribute in __init__, or "
        "put @property above the method"
    )


def to_gymnasium_space(space: Any) -> Space[Any]:
    """Convert a space of old gym to one of Gymnasium. Return any other space unchanged."""
    if isinstance(space, Space) or not type(space).__module__.startswith("gym."):
        return space  # type: ignore[no-any-return]
    name = type(space).__name__
    if name == "Dict":
        return spaces.Dict({key: to_gymnasium_space(s) for key, s in space.spaces.items()})
    if name == "Tuple":
        return spaces.Tuple([to_gymnasium_space(s) for s in space.spaces])
    if name == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if name == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if name == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype)
    if name == "MultiBinary":
        return spaces.MultiBinary(space.n)
    raise ArgumentTypeError(f"{name} of old gym cannot be converted. Give the env a gymnasium.Space instead.")


def is_env(thing: Any) -> bool:
    """Return whether `thing` is an env, and not a class or function that makes envs."""
    if isinstance(thing, type):
        return False
    known = isinstance(thing, (gymnasium.Env, VectorEnv, Env))
    return known or (hasattr(thing, "step") and hasattr(thing, "reset"))
