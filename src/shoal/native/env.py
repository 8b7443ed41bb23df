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


class NativeEnv:
    """An env whose `reset` and `step` are compiled, and run over many envs by a pool of threads.

    A subclass says what an env consists of, and writes two static methods. They get what they ask for by
    name:

    - ``state``: the env's own record, with the fields of `state`; all zero when an episode begins
    - ``action``: a number for a Discrete, an array for a Box, a record for a Dict (``action.steer``)
    - ``rng``: a random stream of this env alone: ``uniform(low, high)``, ``normal(mean, deviation)``,
      ``integers(low, high)``
    - ``obs``: to be written: ``obs[0] = x``; a record for a Dict (``obs.map[i, j] = 1``, ``obs.goal = 3``)
    - ``config``: the constants and this env's parameters: ``config.length``

    `reset` returns nothing, `step` ``reward, terminated`` (or ``reward, terminated, truncated``). Autoreset,
    `max_episode_steps`, episode statistics and snapshots are the kit's. With several agents there are
    ``actions``, ``obs``, ``rewards``, ``terminated`` and ``alive``, arrays over agents, of which the last
    four are written, and `step` returns nothing; who is terminated, or is cleared in ``alive``, does not act
    from then on. `reset` may ask for ``alive`` too.

    What is compiled is checked when the class is made: see `shoal.errors.NativeError`.

    Attributes:
        observation_space: Of an agent. This and the next five may be functions of the constants:
            ``observation_space = lambda config: Box(0, 1, (config.length,))``.
        action_space: Of an agent.
        state: A structured dtype: numbers, bools and arrays of them.
        num_agents: Of an env.
        max_episode_steps: After which an episode is truncated; None for never.
        bounds: The lowest and the highest value of fields of the state that `vec.set_attr` may change, and of
            parameters: ``{"place": (0, 9)}``. A field without bounds can be read only.
        constants: Names and default values that are compiled in. Other values are another kernel.
        parameters: Names and default values that each env has of its own, and `vec.set_attr` changes.
        metadata: As Gymnasium's.

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
            NativeError: If it cannot work; with the line.
        """
        super().__init_subclass__(**kwargs)
        missing = [
            name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(cls, name)
        ]
        if len(missing) == 4:
            return  # a base for others
        if missing:
            raise NativeError(f"{cls.__name__} must define {', '.join(missing)}")
        spec = Spec.of(cls)
        from shoal.native.checks import check_run, check_syntax

        if not check_syntax(spec):  # else it is being debugged
            check_run(spec)

    def __new__(cls, **kwargs: Any) -> Any:
        """A single env: Gymnasium's, or with several agents a `shoal.Env`."""
        from shoal.native.single import SingleNative, TeamNative

        config = {
            name: value for name, value in kwargs.items() if name not in ("render_mode", "debug", "check")
        }
        return (TeamNative if Spec.of(cls, config).agents > 1 else SingleNative)(cls, **kwargs)


def is_native(env: Any) -> bool:
    """Whether this is a class of compiled envs, or a ``functools.partial`` of one."""
    while isinstance(env, partial):
        env = env.func
    return inspect.isclass(env) and issubclass(env, NativeEnv)


def compiled(spec: Spec, *, checked: bool = False) -> Any:
    """The kernel of an env class.

    Args:
        spec: Of the class.
        checked: Whether an index outside of its array is to raise.

    Raises:
        MissingExtra: Without Numba.
        NativeError: If it cannot be compiled.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingExtra(
            'compiled envs need Numba, which is not installed: pip install "shoal[native]". With debug=True '
            "they run without it"
        )
    from shoal.native.compiling import compile_kernel

    return compile_kernel(spec, checked=checked)
