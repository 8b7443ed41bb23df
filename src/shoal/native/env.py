"""NativeEnv: an env written in plain Python that steps at the speed of C."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import MissingExtra, NativeError
from shoal.native.spec import Spec

OF_SINGLE_ENVS = ("render_mode", "debug", "check", "infos")  # arguments that are not of the class


class NativeEnv:
    """An env whose `reset` and `step` are compiled. A thread pool runs them for many envs.

    A subclass defines the attributes below and two static methods, `reset` and `step`. The methods ask for
    their arguments by name:

    - ``state``: the state of the env, a record with the fields of `state`; all zero when an episode begins
    - ``action``: a number for a Discrete, an array for a Box, a record for a Dict (``action.steer``)
    - ``rng``: the random stream of this env: ``uniform(low, high)``, ``normal(mean, deviation)``,
      ``integers(low, high)``
    - ``obs``: the observation to write: ``obs[0] = x``; a record for a Dict (``obs.map[i, j] = 1``,
      ``obs.goal = 3``)
    - ``config``: the constants and the parameters of this env: ``config.length``
    - ``info``: (`step` only) the infos to write, a record with the fields of `infos`; all zero before a step
    - ``workspace``: memory for intermediate results, a record with the fields of `workspace`. What it holds
      at the beginning of a call is undefined: other envs use it too

    `reset` returns nothing. `step` returns ``reward, terminated`` or ``reward, terminated, truncated``. Shoal
    does autoreset, `max_episode_steps`, episode statistics and snapshots.

    With several agents, `step` gets arrays over agents: ``actions``, ``obs``, ``rewards``, ``terminated``,
    ``alive`` and ``infos``. It writes the last five and returns nothing. An agent that `step` terminates, or
    clears in ``alive``, does not act from then on. `reset` may ask for ``alive`` too.

    The code is checked when the class is defined: see `shoal.errors.NativeError`.

    Attributes:
        observation_space: The observation space of an agent. This and the next seven may be functions of the
            constants: ``observation_space = lambda config: Box(0, 1, (config.length,))``.
        action_space: The action space of an agent.
        state: The structured dtype of the state: numbers, bools and arrays of them.
        infos: The structured dtype of what `step` tells beside observation and reward; None for nothing. A
            vec that is made with ``infos=True`` has an array over rows for each field in its infos.
        workspace: The structured dtype of the memory for intermediate results; None for nothing.
        num_agents: The number of agents of an env.
        max_episode_steps: The number of steps after which an episode is truncated; None for no limit.
        bounds: The lowest and highest values that `vec.set_attr` may give to fields of the state and to
            parameters: ``{"place": (0, 9)}``. A field without bounds is read-only.
        constants: The names and default values of numbers that are compiled into the kernel. Other values
            need another kernel.
        parameters: The names and default values of numbers that each env has for itself. `vec.set_attr`
            changes them.
        metadata: The metadata, as in Gymnasium.

    Example:
        >>> import numpy as np, shoal
        >>> from gymnasium.spaces import Box, Discrete
        >>> class Corridor(shoal.NativeEnv):
        ...     observation_space = Box(0, 1, (1,), np.float32)
        ...     action_space = Discrete(2)
        ...     state = np.dtype([("place", np.int32)])
        ...     max_episode_steps = 200
        ...     constants = {"length": 10}
        ...
        ...     @staticmethod
        ...     def reset(state, obs):
        ...         obs[0] = 0.0
        ...
        ...     @staticmethod
        ...     def step(state, action, obs, config):
        ...         state.place = max(0, state.place + 2 * action - 1)
        ...         obs[0] = state.place / config.length
        ...         arrived = state.place == config.length
        ...         return 1.0 if arrived else 0.0, arrived
        >>> with shoal.make(Corridor, num_envs=1000, env_kwargs={"length": 5}) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     for _ in range(5):
        ...         obs, rewards, terminations, truncations, infos = vec.step(np.ones(1000, np.int64))
        >>> int(rewards.sum()), bool(terminations.all())
        (1000, True)
    """

    # Any: a value, or a function of the constants.
    observation_space: Any
    action_space: Any
    state: Any = np.dtype([("nothing", np.uint8)])
    infos: Any = None
    workspace: Any = None
    num_agents: Any = 1
    max_episode_steps: Any = None
    bounds: Any = {}
    constants: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
    render: Callable[..., Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the class. It is compiled when it is first used.

        Raises:
            NativeError: If the class cannot work. The message shows the line.
        """
        super().__init_subclass__(**kwargs)
        missing = [
            name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(cls, name)
        ]
        if len(missing) == 4:
            return  # a base class of other env classes
        if missing:
            raise NativeError(f"{cls.__name__} must define {', '.join(missing)}")
        spec = Spec.of(cls)
        from shoal.native.checks import check_run, check_syntax

        if not check_syntax(spec):  # code with print() or breakpoint() is being debugged: do not run it
            check_run(spec)

    def __new__(cls, **kwargs: Any) -> Any:
        """Make a single env: a `gymnasium.Env`, or a `shoal.Env` if there are several agents."""
        from shoal.native.single import SingleNative, TeamNative

        config = {name: value for name, value in kwargs.items() if name not in OF_SINGLE_ENVS}
        return (TeamNative if Spec.of(cls, config).agents > 1 else SingleNative)(cls, **kwargs)


def is_native(env: Any) -> bool:
    """Return whether `env` is a class of compiled envs, or a ``functools.partial`` of one."""
    while isinstance(env, partial):
        env = env.func
    return inspect.isclass(env) and issubclass(env, NativeEnv)


def compiled(spec: Spec, *, checked: bool = False) -> Any:
    """Return the kernel of an env class.

    Args:
        spec: The spec of the class.
        checked: Whether an index outside its array raises.

    Raises:
        MissingExtra: If Numba is not installed.
        NativeError: If the class cannot be compiled.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingExtra(
            'compiled envs need Numba, which is not installed: pip install "shoal[native]". With debug=True '
            "they run without it"
        )
    from shoal.native.compiling import compile_kernel

    return compile_kernel(spec, checked=checked)
