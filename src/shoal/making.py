"""make(): make a vec of any env, by name or creator, on the backend that suits it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from shoal.adapters.single import Creator, is_env
from shoal.cores import usable_cores
from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.native.spec import Spec
from shoal.processes.placement import split
from shoal.registry import Source, find, source_of
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.native import Native
from shoal.vector.options import autoreset, creators_of
from shoal.vector.serial import Serial
from shoal.vector.spaces import ObservationMode
from shoal.vector.vec import VectorEnv

BACKENDS = ("auto", "serial", "multiprocessing", "native")

# The arguments that `Multiprocessing` has and `Serial` does not, with their defaults.
PROCESS_ARGUMENTS: dict[str, Any] = {
    "num_workers": None,
    "envs_per_worker": None,
    "batch_size": None,
    "surplus_envs": 0,
    "mode": None,
    "order": "fifo",
    "timeout": None,
    "on_error": "raise",
    "start_method": None,
    "parent_steps": False,
}
# Those of them that `Native` has too.
NATIVE_ARGUMENTS = ("num_workers", "batch_size", "surplus_envs", "mode", "order")


def make(
    env: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    num_envs: int | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    render_mode: str | None = None,
    backend: str = "auto",
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    batch_size: int | None = None,
    surplus_envs: int = 0,
    mode: str | None = None,
    order: str = "fifo",
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    flat: bool = False,
    copy: bool = True,
    seed: int | None = None,
    episode_stats: bool = False,
    observation_mode: ObservationMode = "same",
    rows_as_envs: bool = False,
    timeout: float | None = None,
    on_error: str = "raise",
    start_method: str | None = None,
    parent_steps: bool = False,
    debug: bool = False,
    check: bool = False,
    infos: bool = False,
) -> VectorEnv:
    """Make a vec of envs.

    Args:
        env: A name (see `shoal.registry`), a class or function that returns an env, or a list of these, one
            for each env.
        num_envs: The number of envs; by default one, or the length of the list.
        env_kwargs: Arguments for the class or function that returns the env.
        wrappers: Functions or classes to wrap each env with, the innermost first.
        render_mode: The render mode, which is passed to the class or function that returns the env.
        backend: ``"serial"``, ``"multiprocessing"``, ``"native"`` or ``"auto"``. With ``"auto"``, compiled
            envs run on Native. Others run on Multiprocessing if an argument is given that only it has, and on
            Serial if there is one env, one core, or a vector env that steps all envs. Otherwise a measurement
            decides: one env is built in this process, stepped for some milliseconds and closed. ``repr(vec)``
            shows the result.
        num_workers: See `shoal.Multiprocessing`.
        envs_per_worker: See `shoal.Multiprocessing`.
        batch_size: See `shoal.Multiprocessing`.
        surplus_envs: See `shoal.Multiprocessing`.
        mode: See `shoal.Multiprocessing`.
        order: See `shoal.Multiprocessing`.
        autoreset_mode: See `shoal.Serial`.
        flat: See `shoal.Serial`.
        copy: See `shoal.Serial`.
        seed: See `shoal.Serial`.
        episode_stats: See `shoal.Serial`.
        observation_mode: See `shoal.Serial`.
        rows_as_envs: See `shoal.Serial`.
        timeout: See `shoal.Multiprocessing`.
        on_error: See `shoal.Multiprocessing`.
        start_method: See `shoal.Multiprocessing`.
        parent_steps: See `shoal.Multiprocessing`.
        debug: Run compiled envs uncompiled; see `shoal.Native`.
        check: Make compiled envs raise if an index is outside its array; see `shoal.Native`.
        infos: Show the infos that a class of compiled envs declares; see `shoal.Native`.

    Raises:
        UnknownEnv: If no env has that name. The message suggests the nearest names.
        MissingExtra: If the package of the env is not installed. The message says how to install it.
        ArgumentError: If an argument is not valid, or cannot be combined with another.

    Example:
        >>> import shoal
        >>> with shoal.make("CartPole-v1", num_envs=4, backend="serial") as vec:
        ...     obs, infos = vec.reset(seed=0)
        >>> obs.shape, vec
        ((4, 4), Serial(CartPole-v1, num_envs=4))
    """
    if backend not in BACKENDS:
        raise ArgumentError(f"backend: expected one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    if not isinstance(env_kwargs, (Mapping, type(None))):
        raise ArgumentTypeError(f"env_kwargs: expected a dict or None, got {env_kwargs!r}")
    if not isinstance(wrappers, Iterable) or not all(map(callable, wrappers)):  # type: ignore[redundant-expr]
        raise ArgumentTypeError(f"wrappers: expected a list of functions or classes, got {wrappers!r}")
    sources = _sources(env)
    resetting = autoreset(autoreset_mode)
    given = {
        "num_workers": num_workers,
        "envs_per_worker": envs_per_worker,
        "batch_size": batch_size,
        "surplus_envs": surplus_envs,
        "mode": mode,
        "order": order,
        "timeout": timeout,
        "on_error": on_error,
        "start_method": start_method,
        "parent_steps": parent_steps,
    }
    for_processes = {name: value for name, value in given.items() if value != PROCESS_ARGUMENTS[name]}
    common = {
        "autoreset_mode": resetting,
        "flat": flat,
        "copy": copy,
        "seed": seed,
        "episode_stats": episode_stats,
        "rows_as_envs": rows_as_envs,
    }
    compiled = bool(sources) and sources[0].native is not None and not wrappers
    if backend == "native" or (backend == "auto" and compiled):
        vec = _native(env, sources, num_envs, env_kwargs, wrappers, for_processes, observation_mode)(
            render_mode=render_mode, debug=debug, check=check, infos=infos, **common
        )
        return _named(vec, sources)
    chosen = {"debug": debug, "check": check, "infos": infos}
    flags = {name: True for name, value in chosen.items() if value}
    if flags and not all(source.native for source in sources):
        raise ArgumentError(
            f"{', '.join(flags)}: only compiled envs have it. Others run as Python anyway, and give infos "
            "without being asked"
        )
    kwargs = {**(env_kwargs or {}), **({} if render_mode is None else {"render_mode": render_mode}), **flags}
    recipes = [
        _Recipe(_creator(source, env_kwargs or {}), kwargs, tuple(wrappers)).simplest() for source in sources
    ]
    creators: Any = recipes[0] if isinstance(env, str) or callable(env) else recipes
    count = len(creators_of(creators, num_envs))
    one_unit = count == 1
    if any(source.steps_many for source in sources):
        creators, num_envs = _vector_envs(sources, count, kwargs, wrappers, resetting, for_processes), None
        one_unit = True
    reason = ""
    if backend == "auto":
        needed = [name for name, value in for_processes.items() if value != "sync"]
        backend, reason = _automatic(creators_of(creators, num_envs), resetting, needed, one_unit=one_unit)
    vec = _backend(backend, for_processes)(
        creators,
        num_envs,
        observation_mode=observation_mode,
        **common,
        **for_processes,
    )
    vec.chosen_because = reason
    return _named(vec, sources)


def _named(vec: VectorEnv, sources: list[Source]) -> VectorEnv:
    """Set the name and the spec of the vec, if all envs have the same name; return the vec."""
    names = {source.name for source in sources}
    if len(names) == 1:
        vec.env_name = names.pop()
        if sources[0].gymnasium_id is not None:
            vec.spec = gymnasium.spec(sources[0].gymnasium_id)
    return vec


def _native(
    env: Any,
    sources: list[Source],
    num_envs: int | None,
    env_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[Any],
    asked: Mapping[str, Any],
    observation_mode: ObservationMode,
) -> Callable[..., VectorEnv]:
    """Return a function that makes a `Native` of these envs; it takes the options that all backends have.

    Raises:
        ArgumentError: If an env is not compiled, or if `Native` does not have an argument.
    """
    for source in sources:
        if source.native is None:
            raise ArgumentError(
                f"backend: 'native' runs compiled envs, classes derived from shoal.NativeEnv, and "
                f"{source.name or source.create!r} is not one. Drop backend, or use 'multiprocessing'"
            )
    wrong = [name for name in asked if name not in NATIVE_ARGUMENTS]
    if wrappers:
        wrong.append("wrappers")
    if observation_mode != "same":
        wrong.append("observation_mode")
    if wrong:
        raise ArgumentError(
            f"{', '.join(wrong)}: compiled envs run on threads in this process, without this argument. Drop "
            "it, or use backend='multiprocessing', where each of them runs as a separate env"
        )
    given = dict(env_kwargs or {})
    # All envs of a name get the same creator, so that Native sees that they are equal.
    named = {source.name: _registered_native(source, given) for source in sources if source.name}
    creators: Any = [named.get(source.name, source.create) for source in sources]
    if isinstance(env, str) or callable(env):
        (creators,) = creators
    return partial(Native, creators, num_envs, env_kwargs=env_kwargs, **asked)


def _registered_native(source: Source, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the class of the compiled envs of a source, with the arguments it was registered with."""
    if source.native is None:
        return source.create
    own = {name: value for name, value in source.defaults.items() if name not in given}
    limit = source.max_episode_steps
    if limit is not None and "max_episode_steps" not in given:
        # The class's own limit holds too, as if Gymnasium's TimeLimit were around the env.
        steps = Spec.of(source.native, {**own, **given}).max_steps
        own["max_episode_steps"] = min(limit, steps or limit)
    return partial(source.native, **own) if own else source.native


def _creator(source: Source, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that makes one env of a source."""
    if source.native is None or source.gymnasium_id is None:
        return source.create
    # Gymnasium's own make refuses envs with several agents.
    several = Spec.of(source.native, {**source.defaults, **given}).agents > 1
    return _registered_native(source, given) if several else source.create


def make_own(env: str, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """Make a vec of one of Shoal's own envs; ``gymnasium.make_vec`` calls this.

    Args:
        env: The id of the env.
        num_envs: The number of envs.
        **kwargs: Arguments of `make`. All other arguments are passed to the env.
    """
    known = inspect.signature(make).parameters
    own = {name: value for name, value in kwargs.items() if name in known}
    rest = {name: value for name, value in kwargs.items() if name not in known}
    return make(env, num_envs, **{**own, "env_kwargs": {**(own.get("env_kwargs") or {}), **rest}})


@dataclass(frozen=True)
class _Recipe:
    """A creator that needs no arguments: it holds the arguments and the wrappers of the env."""

    create: Callable[..., Any]
    kwargs: Mapping[str, Any]
    wrappers: tuple[Callable[[Any], Any], ...]

    def __call__(self) -> Any:
        env = self.create(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def simplest(self) -> Creator:
        """Return the function itself if there are no arguments and wrappers, or else this recipe."""
        return self if self.kwargs or self.wrappers else self.create


def _sources(env: Any) -> list[Source]:
    """Return the source of each name or creator.

    Raises:
        ArgumentTypeError: If an env, or another object that is no creator, is passed instead of a creator.
    """
    if isinstance(env, str):
        return [find(env)]
    if callable(env) and not is_env(env):
        return [source_of(env)]
    if isinstance(env, Iterable) and not isinstance(env, Mapping) and not is_env(env):
        return [source for each in env for source in _sources(each)]
    return [Source(creator) for creator in creators_of(env, None)]  # this raises, with the reason


def _vector_envs(
    sources: list[Source],
    num_envs: int,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Any],
    mode: AutoresetMode,
    for_processes: Mapping[str, Any],
) -> list[Creator]:
    """Return creators of vector envs that together have `num_envs` envs, one creator for each worker."""
    wrong = {"batch_size", "surplus_envs", "envs_per_worker", "parent_steps"}.intersection(for_processes)
    wrong |= {"num_envs", "autoreset_mode"}.intersection(kwargs)
    if len(sources) > 1 or wrappers or wrong or for_processes.get("mode") == "async":
        raise ArgumentError(
            f"env: {sources[0].name!r} steps many envs by itself, so it cannot be combined with other envs, "
            "wrappers, batch_size, surplus_envs, envs_per_worker, parent_steps, mode='async', or with "
            "num_envs or autoreset_mode in env_kwargs"
        )
    sizes = split(num_envs, for_processes.get("num_workers", 1), None, 1, parent_steps=False)
    create = sources[0].create
    return [_Recipe(create, {**kwargs, "num_envs": n, "autoreset_mode": mode}, ()) for n in sizes]


def _automatic(
    creators: list[Creator], mode: AutoresetMode, needed: Sequence[str], *, one_unit: bool
) -> tuple[str, str]:
    """Choose the backend for ``"auto"``; return its name and the reason.

    Args:
        creators: The creators of the envs.
        mode: The autoreset mode of the vec.
        needed: The arguments that only Multiprocessing has. If there are some, the reason is empty.
        one_unit: Whether there is only one unit to step.
    """
    if needed:
        return "multiprocessing", ""
    if one_unit:
        return "serial", "nothing to step beside it"
    if usable_cores() == 1:
        return "serial", "one core"
    if not Multiprocessing.is_available():
        return "serial", "no processes without Linux and the compiled core"
    from shoal.vector.choosing import choose  # needs Linux

    decision = choose(creators, mode)
    return decision.backend, decision.reason


def _backend(name: str, for_processes: dict[str, Any]) -> Callable[..., VectorEnv]:
    """Return the class of a backend; raise if it does not have all of these arguments."""
    if name != "serial":
        return {"multiprocessing": Multiprocessing}[name]
    if for_processes.get("mode") == "sync":
        del for_processes["mode"]  # Serial is always synchronous
    if for_processes:
        raise ArgumentError(
            f"{', '.join(for_processes)}: Serial runs all envs in this process, without this argument. Drop "
            "it, or use backend='multiprocessing'"
        )
    return Serial
