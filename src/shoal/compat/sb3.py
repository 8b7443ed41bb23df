"""A vec for the learners of Stable-Baselines3.

    learner -(actions)-> step_async: vec.send ... vec.recv :step_wait -(obs, rewards, dones, infos)-> learner

This file translates between the two contracts. SB3 has one flag for the end of an episode, rewards of 32
bits, a list of infos, actions and options for each env, and seeds that the next reset uses.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from shoal.batch import Batch
from shoal.errors import ArgumentError, ArgumentTypeError, EnvsElsewhere, MissingExtra
from shoal.making import make
from shoal.vector.native import Native
from shoal.vector.serial import Serial
from shoal.vector.vec import VectorEnv

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f'shoal.compat.sb3 needs Stable-Baselines3 ({missing}). Install it: pip install "shoal[sb3]"'
    ) from missing


class ShoalVecEnv(VecEnv):
    """Stable-Baselines3's `VecEnv` on Shoal's backends. It replaces `DummyVecEnv` and `SubprocVecEnv`.

    For the same seeds and actions, observations, rewards, dones and infos are equal to theirs. A call for
    some envs (``indices``) reaches only these envs.

    Args:
        env_fns: A list of creators, one per env, or anything else that `shoal.make` accepts. Lambdas and
            local classes work with workers too.
        **options: Options of `shoal.make`, such as ``backend``, ``num_workers`` or ``parent_steps``.

    Raises:
        ArgumentError: If an option is not valid, or cannot be used with Stable-Baselines3.

    Example:
        >>> import numpy as np
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> from shoal.compat.sb3 import ShoalVecEnv
        >>> options = {"backend": "serial"}
        >>> env = make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=ShoalVecEnv, vec_env_kwargs=options)
        >>> obs = env.reset()
        >>> for _ in range(8):
        ...     obs, rewards, dones, infos = env.step(np.array([1, 1]))
        >>> dones, infos[0]["TimeLimit.truncated"], infos[0]["episode"]["l"]
        (array([ True, False]), False, 8)
        >>> env.close()
    """

    def __init__(
        self, env_fns: str | Callable[..., Any] | Sequence[str | Callable[..., Any]], **options: Any
    ) -> None:
        vec = make(env_fns, **{"autoreset_mode": AutoresetMode.SAME_STEP, **options})
        try:
            self._take(vec)
        except BaseException:
            vec.close()
            raise

    def _take(self, vec: VectorEnv) -> None:
        _refuse_unfit(vec)
        self._vec, space = vec, vec.single_action_space
        self._structured = isinstance(space, (spaces.Dict, spaces.Tuple))
        self._integral = not self._structured and space.dtype is not None and space.dtype.kind in "iu"
        try:
            vec.call("has_wrapper_attr", "step")
            self._gymnasium = True
        except AttributeError:
            self._gymnasium = False
        if self._gymnasium and len(set(self._identities())) < vec.num_envs // vec.agents_per_env:
            raise ArgumentError(
                "env_fns: expected a new env from every call, got the same one twice. Make it in the "
                "function: lambda: make_my_env()"
            )
        super().__init__(vec.num_envs, vec.single_observation_space, space)
        self.metadata = vec.metadata

    # -- the verbs -------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        """Reset every env with the seeds and options that were set since the last reset.

        Raises:
            ArgumentError: If the number of options is not the number of envs.
        """
        if len(self._options) != self.num_envs:
            raise ArgumentError(
                f"options: expected a dict, or one for each of {self.num_envs} envs, got {len(self._options)}"
            )
        vec, everyone = self._vec, np.ones(self.num_envs, np.bool_)
        # A vec passes the same options to all envs of a reset. An env gets the options of its first row.
        whose = [id(options) if options else 0 for options in self._options[:: vec.agents_per_env]]
        masks = [np.repeat(np.equal(whose, each), vec.agents_per_env) for each in dict.fromkeys(whose)]
        parts = [(mask, self._options[mask.argmax()]) for mask in masks]
        if len(parts) > 1 and vec.needs_whole_reset:
            # Such a vec cannot be reset in parts, so all envs are reset first.
            parts = [(everyone, {}), *((mask, options) for mask, options in parts if options)]
        obs: Any = None
        for mask, options in parts:
            obs = self._begin(mask, options)
        self._reset_seeds()
        self._reset_options()
        return obs  # type: ignore[no-any-return]

    def _begin(self, mask: NDArray[np.bool_], options: dict[str, Any]) -> Any:
        """Reset the envs of the mask, and return the observations of all envs."""
        seeds = None if set(self._seeds) == {None} else self._seeds
        part = {} if mask.all() else {"reset_mask": mask}
        self._vec.async_reset(seeds, {**options, **part} or None)
        batch, of_envs = self._vec.recv_apart()
        for row in np.flatnonzero(mask).tolist():
            self.reset_infos[row] = {}
        for row, info in of_envs:
            self.reset_infos[row].update(info)
        return self._obs_of(batch)

    def step_async(self, actions: Any) -> None:
        """Begin a step of every env.

        Args:
            actions: One action for each env.

        Raises:
            ActionError: If an action does not fit; no env has moved.
        """
        space = self.action_space
        if self._structured:
            empty: Any = create_empty_array(space, len(actions))
            actions = concatenate(space, list(actions), empty)
        elif self._integral and (given := np.asarray(actions)).dtype.kind == "f":
            whole = given.astype(space.dtype)  # SB3 sends floats for MultiBinary
            actions = whole if np.array_equal(whole, given) else given
        self._vec.send(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step, and return observations, rewards, dones and infos.

        Envs that are done have been reset: their observation is the first one of the next episode.
        """
        batch, of_envs = self._vec.recv_apart()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = set()
        for row, info in of_envs:
            if "final_obs" in info or "final_info" in info:
                infos[row].update(info.pop("final_info", {}))
                if "final_obs" in info:
                    infos[row]["terminal_observation"] = info.pop("final_obs")
                self.reset_infos[row] = info
                ended.add(row)
            elif row not in ended:
                infos[row].update(info)
            elif batch.mask[row]:  # otherwise the row's agent waits until the other agents have ended
                self.reset_infos[row] = info  # the info of the reset that followed
        truncated = batch.truncations & ~batch.terminations
        for info, flag in zip(infos, truncated.tolist(), strict=True):
            info["TimeLimit.truncated"] = flag
        if "episode" in batch.infos:  # the vec was made with episode_stats
            for row in np.flatnonzero(batch.infos["_episode"]).tolist():
                figures = {name: values[row].item() for name, values in batch.infos["episode"].items()}
                infos[row].setdefault("episode", figures)
        dones = batch.terminations | batch.truncations
        return self._obs_of(batch), batch.rewards.astype(np.float32), dones, infos

    def _obs_of(self, batch: Batch) -> Any:
        """Return the observations in a form that the caller may keep."""
        return batch.obs if self._vec.copy else deepcopy(batch.obs)

    def close(self) -> None:
        """Close every env. This may be called twice."""
        self._vec.close()

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """Return the frame of each env; None for each if the render mode is not ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode is {self.render_mode!r}: 'rgb_array' would give images", stacklevel=2)
            return [None] * self.num_envs
        return list(self._vec.render())

    # -- access to the envs ----------------------------------------------------------------------------

    @property
    def envs(self) -> list[Any]:
        """The env objects, one for each row, if the vec is a `shoal.Serial`.

        Raises:
            EnvsElsewhere: If the envs are compiled or run in workers. The error is an AttributeError, so that
                ``hasattr(env, "envs")`` is False.
        """
        vec = self._vec
        if not isinstance(vec, Serial):
            where = "are compiled" if isinstance(vec, Native) else "run in worker processes"
            raise EnvsElsewhere(
                f"envs: the envs of a {type(vec).__name__} {where}, so there are no objects here. Use "
                "get_attr(), set_attr() and env_method(), or make them with backend='serial'"
            )
        return [env for env in vec.envs for _ in range(vec.agents_per_env)]

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every env, or a wrapper around it, has this attribute."""
        if not self._gymnasium:
            return super().has_attr(attr_name)
        return all(self._vec.call("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each of these envs; it may be an attribute of a wrapper."""
        if self._gymnasium:
            return self._ask(indices, "get_wrapper_attr", attr_name)
        values: Sequence[Any] = [self._vec.render_mode] * self.num_envs
        if attr_name != "render_mode":  # every vec has a render_mode, but not every env
            try:
                values = self._vec.call("__getattribute__", attr_name)
            except TypeError:  # compiled envs are not objects
                values = self._vec.get_attr(attr_name)
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each of these envs, or of the wrapper that has it.

        If neither the env nor a wrapper has the attribute, set it on the outermost wrapper.
        """
        if indices is None:
            self._vec.set_attr(attr_name, [value] * self.num_envs)
        else:
            self._ask(indices, "set_wrapper_attr", attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each of these envs, and return the results."""
        return self._ask(indices, method_name, *method_args, **method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether each of these envs is inside a wrapper of this class."""
        # The class is compared by its name, so that a worker need not import SB3 and torch.
        wanted = wrapper_class.__module__, wrapper_class.__qualname__

        def is_wrapped(env: Any) -> bool:
            while isinstance(env, gymnasium.Wrapper):
                if any((kind.__module__, kind.__qualname__) == wanted for kind in type(env).__mro__):
                    return True
                env = env.env
            return False

        found = self._run_in_envs(is_wrapped) if self._gymnasium else [False] * self.num_envs
        return [found[index] for index in self._get_indices(indices)]

    def _ask(self, indices: VecEnvIndices, name: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of each of these envs, and return the results."""
        if indices is None:
            return list(self._vec.call(name, *args, **kwargs))
        if not self._gymnasium:
            raise ArgumentError(
                f"indices: expected None, got {indices!r}: only Gymnasium's envs can be called one by one"
            )
        identities = self._identities()
        chosen = [identities[index] for index in self._get_indices(indices)]

        def ask(env: Any) -> Any:
            if (os.getpid(), id(env.unwrapped)) in chosen:
                return env.get_wrapper_attr(name)(*args, **kwargs)
            return None

        results = dict(zip(identities, self._run_in_envs(ask), strict=True))
        return [results[each] for each in chosen]

    def _identities(self) -> list[tuple[int, int]]:
        """Return the process and the id of the env of each row, which differ between envs."""
        return self._run_in_envs(lambda env: (os.getpid(), id(env.unwrapped)))

    def _run_in_envs(self, task: Callable[[Any], Any]) -> list[Any]:
        """Call `task` with every env, in the process of the env, and return the results.

        `vec.call` can only call methods of an env, so Gymnasium's Env gets a method that runs the task.
        Functions that are defined inside a function are sent to workers by value. So workers need not import
        this module, which imports SB3 and torch.
        """

        def add_method() -> None:
            gymnasium.Env._shoal_run = lambda env, task: task(env)  # type: ignore[attr-defined]

        if not all(self._vec.call("has_wrapper_attr", "_shoal_run")):  # not yet, or not in a new worker
            self._vec.set_attr("_shoal_add_method", add_method)
            self._vec.call("_shoal_add_method")
            self._vec.call("_shoal_run", lambda env: env.__dict__.pop("_shoal_add_method", None))
        return list(self._vec.call("_shoal_run", task))


def as_vec_env(vec: VectorEnv) -> ShoalVecEnv:
    """Make a `VecEnv` of Stable-Baselines3 from a vec. The `VecEnv` owns the vec and closes it.

    Args:
        vec: A synchronous vec with ``autoreset_mode=AutoresetMode.SAME_STEP``. If its envs have several
            agents, it needs ``rows_as_envs=True``. With ``episode_stats=True``, learners log returns without
            a `Monitor`.

    Raises:
        ArgumentError: If the vec cannot be used with Stable-Baselines3.

    Example:
        >>> import shoal
        >>> from shoal.compat.sb3 import as_vec_env
        >>> vec = shoal.make("CartPole-v1", num_envs=2, autoreset_mode="SAME_STEP", backend="serial")
        >>> env = as_vec_env(vec)
        >>> env.seed(0)
        [0, 1]
        >>> env.reset().shape
        (2, 4)
        >>> env.close()
    """
    env = ShoalVecEnv.__new__(ShoalVecEnv)
    env._take(vec)
    return env


def _refuse_unfit(vec: Any) -> None:
    if not isinstance(vec, VectorEnv):
        raise ArgumentTypeError(
            f"vec: expected a vec of Shoal, which shoal.make() returns, got {type(vec).__name__}. Around "
            "it, use wrappers of Stable-Baselines3 instead of Gymnasium's"
        )
    if vec.is_async:
        raise ArgumentError(
            "vec: expected a synchronous vec, got an asynchronous one. Stable-Baselines3 waits for all envs "
            "in every step: drop batch_size, surplus_envs and mode"
        )
    if vec.autoreset_mode is not AutoresetMode.SAME_STEP:
        raise ArgumentError(
            "autoreset_mode: Stable-Baselines3 expects envs to be reset in the step that ends them, got "
            f"{vec.autoreset_mode.name}. Make the vec with autoreset_mode=AutoresetMode.SAME_STEP"
        )
    if vec.num_rows > vec.num_envs:
        raise ArgumentError(
            "rows_as_envs: Stable-Baselines3 does not support agents, and the envs have "
            f"{vec.agents_per_env}. Make the vec with rows_as_envs=True"
        )
