"""make(): any env by name or creator, on the backend that suits it."""

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
NATIVE_ARGUMENTS = ("num_workers", "batch_size", "surplus_envs", "mode", "order")  # of those below

# Arguments that only `Multiprocessing` has, with their defaults.
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
) -> VectorEnv:
    """Make a vec of envs.

    Args:
        env: A name (`shoal.registry` says which there are), a class or function that makes envs, or a list of
            these, one for each env.
        num_envs: How many; by default one, or as many as the list has.
        env_kwargs: Arguments for whatever makes the env.
        wrappers: Put around each env, the first one innermost.
        render_mode: Passed to whatever makes the env.
        backend: ``"serial"``, ``"multiprocessing"``, ``"native"``, or ``"auto"``: Native for compiled envs;
            Multiprocessing if an argument is given that only it has; Serial for one env, on one core, and for
            envs that step many at once by themselves. Else a measurement decides: one env is built in this
            process, stepped for some milliseconds and closed. ``repr(vec)`` says what was found.
        num_workers: See `shoal.Multiprocessing`, as for all arguments down to `order` and from `timeout` on.
        envs_per_worker: See there.
        batch_size: See there.
        surplus_envs: See there.
        mode: See there.
        order: See there.
        autoreset_mode: See `shoal.Serial`, as for all arguments down to `rows_as_envs`.
        flat: See there.
        copy: See there.
        seed: See there.
        episode_stats: See there.
        observation_mode: See there.
        rows_as_envs: See there.
        timeout: See `shoal.Multiprocessing`.
        on_error: See there.
        start_method: See there.
        parent_steps: See there.
        debug: Of compiled envs: run them uncompiled; see `shoal.Native`.
        check: Of compiled envs: notice an index outside of its array; see `shoal.Native`.

    Raises:
        UnknownEnv: If nothing has that name; the nearest names are suggested.
        MissingExtra: If its package is not installed; says how to install it.
        ArgumentError: If an argument cannot work, or not together with another.

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
    mode_of_reset = autoreset(autoreset_mode)
    asked = {
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
    for_processes = {name: value for name, value in asked.items() if value != PROCESS_ARGUMENTS[name]}
    common = {
        "autoreset_mode": mode_of_reset,
        "flat": flat,
        "copy": copy,
        "seed": seed,
        "episode_stats": episode_stats,
        "rows_as_envs": rows_as_envs,
    }
    compiled = bool(sources) and sources[0].native is not None and not wrappers
    if backend == "native" or (backend == "auto" and compiled):
        vec = _native(env, sources, num_envs, env_kwargs, wrappers, for_processes, observation_mode)(
            render_mode=render_mode, debug=debug, check=check, **common
        )
        return _named(vec, sources)
    own = {name: True for name, value in (("debug", debug), ("check", check)) if value}
    if own and not all(source.native for source in sources):
        raise ArgumentError(f"{', '.join(own)}: only compiled envs have it; others are Python as they are")
    kwargs = {**(env_kwargs or {}), **({} if render_mode is None else {"render_mode": render_mode}), **own}
    recipes = [
        _Recipe(_creator(source, env_kwargs or {}), kwargs, tuple(wrappers)).simplest() for source in sources
    ]
    creators: Any = recipes[0] if isinstance(env, str) or callable(env) else recipes
    count = len(creators_of(creators, num_envs))
    alone = count == 1
    if any(source.steps_many for source in sources):
        creators, num_envs = _engines(sources, count, kwargs, wrappers, mode_of_reset, for_processes), None
        alone = True
    reason = ""
    if backend == "auto":
        asked_for = [name for name, value in for_processes.items() if value != "sync"]
        backend, reason = _automatic(creators_of(creators, num_envs), mode_of_reset, asked_for, alone=alone)
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
    """`Native` for these envs, but for what all backends have.

    Raises:
        ArgumentError: If something was asked for that it does not have.
    """
    for source in sources:
        if source.native is None:
            raise ArgumentError(
                f"backend: 'native' runs compiled envs, classes derived from shoal.NativeEnv, and "
                f"{source.name or source.create!r} is not one. Leave backend away, or use 'multiprocessing'"
            )
    wrong = [name for name in asked if name not in NATIVE_ARGUMENTS]
    if wrappers:
        wrong.append("wrappers")
    if observation_mode != "same":
        wrong.append("observation_mode")
    if wrong:
        raise ArgumentError(
            f"{', '.join(wrong)}: compiled envs run on threads in this process and have no such thing. Leave "
            "it away, or use backend='multiprocessing', where each is an env of its own"
        )
    given = dict(env_kwargs or {})
    # One creator for each name: so Native sees that all are the same.
    named = {source.name: _registered_native(source, given) for source in sources if source.name}
    creators: Any = [named.get(source.name, source.create) for source in sources]
    if isinstance(env, str) or callable(env):
        (creators,) = creators
    return partial(Native, creators, num_envs, env_kwargs=env_kwargs, **asked)


def _registered_native(source: Source, given: Mapping[str, Any]) -> Callable[..., Any]:
    """The class of compiled envs that a name stands for, with what it was registered with."""
    if source.native is None:
        return source.create
    own = {name: value for name, value in source.defaults.items() if name not in given}
    limit = source.max_episode_steps
    if limit is not None and "max_episode_steps" not in given:
        # As with Gymnasium's TimeLimit around the env: the class's own limit holds too.
        steps = Spec.of(source.native, {**own, **given}).max_steps
        own["max_episode_steps"] = min(limit, steps or limit)
    return partial(source.native, **own) if own else source.native


def _creator(source: Source, given: Mapping[str, Any]) -> Callable[..., Any]:
    """What makes one env of a source."""
    if source.native is None or source.gymnasium_id is None:
        return source.create
    # Gymnasium's own make refuses envs with several agents.
    several = Spec.of(source.native, {**source.defaults, **given}).agents > 1
    return _registered_native(source, given) if several else source.create


def make_own(env: str, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """What ``gymnasium.make_vec`` calls for an env of Shoal's own.

    Args:
        env: Its id.
        num_envs: How many.
        **kwargs: Arguments of `make`; all others are the env's.
    """
    known = inspect.signature(make).parameters
    own = {name: value for name, value in kwargs.items() if name in known}
    rest = {name: value for name, value in kwargs.items() if name not in known}
    return make(env, num_envs, **{**own, "env_kwargs": {**(own.get("env_kwargs") or {}), **rest}})


@dataclass(frozen=True)
class _Recipe:
    """A creator without arguments."""

    create: Callable[..., Any]
    kwargs: Mapping[str, Any]
    wrappers: tuple[Callable[[Any], Any], ...]

    def __call__(self) -> Any:
        env = self.create(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def simplest(self) -> Creator:
        return self if self.kwargs or self.wrappers else self.create


def _sources(env: Any) -> list[Source]:
    """What each name or creator stands for.

    Raises:
        ArgumentTypeError: On an env that is made already, or something else that makes none.
    """
    if isinstance(env, str):
        return [find(env)]
    if callable(env) and not is_env(env):
        return [source_of(env)]
    if isinstance(env, Iterable) and not isinstance(env, Mapping) and not is_env(env):
        return [source for each in env for source in _sources(each)]
    return [Source(creator) for creator in creators_of(env, None)]  # says what is wrong


def _engines(
    sources: list[Source],
    num_envs: int,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Any],
    mode: AutoresetMode,
    for_processes: Mapping[str, Any],
) -> list[Creator]:
    """Creators of vector envs that have all envs among them: one for each worker."""
    wrong = {"batch_size", "surplus_envs", "envs_per_worker", "parent_steps"}.intersection(for_processes)
    wrong |= {"num_envs", "autoreset_mode"}.intersection(kwargs)
    if len(sources) > 1 or wrappers or wrong or for_processes.get("mode") == "async":
        raise ArgumentError(
            f"env: {sources[0].name!r} steps many envs by itself, so that it stands alone, without wrappers, "
            "batch_size, surplus_envs, envs_per_worker, parent_steps, mode='async' and counts in env_kwargs"
        )
    sizes = split(num_envs, for_processes.get("num_workers", 1), None, 1, parent_steps=False)
    create = sources[0].create
    return [_Recipe(create, {**kwargs, "num_envs": n, "autoreset_mode": mode}, ()) for n in sizes]


def _automatic(
    creators: list[Creator], mode: AutoresetMode, asked_for: Sequence[str], *, alone: bool
) -> tuple[str, str]:
    """The backend that ``"auto"`` stands for, and why: empty if an argument leaves no choice."""
    if asked_for:
        return "multiprocessing", ""
    if alone:
        return "serial", "nothing to step beside it"
    if usable_cores() == 1:
        return "serial", "one core"
    if not Multiprocessing.is_available():
        return "serial", "no processes without Linux and the compiled core"
    from shoal.vector.choosing import choose  # needs Linux

    decision = choose(creators, mode)
    return decision.backend, decision.reason


def _backend(name: str, for_processes: dict[str, Any]) -> Callable[..., VectorEnv]:
    if name == "multiprocessing":
        return Multiprocessing
    if for_processes.get("mode") == "sync":
        del for_processes["mode"]  # it always is
    if for_processes:
        raise ArgumentError(
            f"{', '.join(for_processes)}: Serial runs all envs in this process, and has no such thing. Use "
            "backend='multiprocessing', or leave it away"
        )
    return Serial
