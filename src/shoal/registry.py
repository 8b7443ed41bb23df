"""Names of envs -> what makes them.

A name is looked up in this order, by `shoal.make` and on the command line alike:

    shoal/Foragers-v0        an env of Shoal's own
    CartPole-v1              a Gymnasium id, made by Gymnasium as ever
    atari-breakout           an id of a family: a package with the preprocessing its users expect
    my-maze                  a name that `shoal.register` was told
    path/to/file.py:Maze     a class or function in a file

No family's package is imported before one of its names is asked for, or one that nothing has.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from shoal.adapters.env import Env
from shoal.adapters.single import is_env
from shoal.errors import ArgumentError, ArgumentTypeError, MissingExtra, NativeError, UnknownEnv
from shoal.native import is_native


@dataclass(frozen=True)
class Family:
    """The envs of one package.

    Attributes:
        name: What its ids begin with, before a dash.
        about: What it has, in a line.
        module: Our file for it, which offers ``names()`` and ``create(name, **kwargs)``; if the package steps
            many envs by itself, ``create(name, *, num_envs, autoreset_mode, **kwargs)``.
        extra: That pip installs its package with; "" if Gymnasium alone will do.
        package: Modules that must be there.
        prefixes: Of the Gymnasium ids that are registered when the last of them is imported.
        steps_many: Whether one of its envs is a vector env.
    """

    name: str
    about: str
    module: str
    extra: str = ""
    package: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    steps_many: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its package is there."""
        return all(importlib.util.find_spec(module) is not None for module in self.package)

    @property
    def pip(self) -> str:
        """The command that installs its package."""
        return f'pip install "shoal[{self.extra}]"'

    def names(self) -> list[str]:
        """All its ids, in order.

        Raises:
            MissingExtra: If its package is not installed.
        """
        return [f"{self.name}-{name}" for name in self.load().names()]

    def register_ids(self) -> None:
        """Have its package register its Gymnasium ids.

        Raises:
            MissingExtra: If it is not installed.
        """
        package = self.package[-1]
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{self.name} envs need packages that are not installed: {self.pip}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of whatever it imports
            importlib.import_module(package)

    def load(self) -> Any:
        """Our file for it.

        Raises:
            MissingExtra: If its package is not installed.
        """
        if not self.is_installed:
            raise MissingExtra(f"{self.name} envs need packages that are not installed: {self.pip}")
        return importlib.import_module(self.module)


FAMILIES = {
    family.name: family
    for family in (
        Family("classic", "Gymnasium's classic control and toy text", "shoal.envs.classic"),
        Family(
            "box2d", "Gymnasium's Box2D: landers, walkers, a car", "shoal.envs.box2d", "box2d", ("Box2D",)
        ),
        Family("mujoco", "Gymnasium's MuJoCo, actions clipped", "shoal.envs.mujoco", "mujoco", ("mujoco",)),
        Family(
            "atari",
            "Atari games, 84x84 grey, four frames, as CleanRL has them",
            "shoal.envs.atari",
            "atari",
            ("cv2", "ale_py"),
            ("ALE/",),
        ),
        Family(
            "ale",
            "Atari games by ale-py's own vector env, on its threads",
            "shoal.envs.ale",
            "atari",
            ("ale_py",),
            steps_many=True,
        ),
        Family(
            "minigrid",
            "grid worlds with a mission in words",
            "shoal.envs.minigrid",
            "minigrid",
            ("minigrid",),
            ("MiniGrid-", "BabyAI-"),
        ),
        Family("nethack", "NetHack", "shoal.envs.nethack", "nethack", ("nle",), ("NetHack",)),
        Family(
            "minihack",
            "small tasks in NetHack",
            "shoal.envs.minihack",
            "nethack",
            ("nle", "minihack"),
            ("MiniHack-",),
        ),
        Family(
            "pettingzoo",
            "games of many agents",
            "shoal.envs.pettingzoo",
            "pettingzoo",
            ("pettingzoo",),  # a game that needs more says so when it is made
        ),
    )
}

OWN = {
    "shoal/Acrobot-v1": "shoal.envs.acrobot:Acrobot",
    "shoal/Breakout-v0": "shoal.envs.breakout:Breakout",
    "shoal/CartPole-v1": "shoal.envs.cartpole:CartPole",
    "shoal/Foragers-v0": "shoal.envs.foragers:Foragers",
    "shoal/MountainCar-v0": "shoal.envs.mountain_car:MountainCar",
    "shoal/MountainCarContinuous-v0": "shoal.envs.mountain_car:MountainCarContinuous",
    "shoal/Pendulum-v1": "shoal.envs.pendulum:Pendulum",
    "shoal/Snake-v0": "shoal.envs.snake:Snake",
    "shoal/ProbeBandit-v0": "shoal.envs.probes:Bandit",
    "shoal/ProbeContinuous-v0": "shoal.envs.probes:Continuous",
    "shoal/ProbeMemory-v0": "shoal.envs.probes:Memory",
    "shoal/ProbeAgents-v0": "shoal.envs.probes:Agents",
    "shoal/ProbeNested-v0": "shoal.envs.probes:Nested",
    "shoal/ProbePassword-v0": "shoal.envs.probes:Password",
    "shoal/ProbeSquared-v0": "shoal.envs.probes:Squared",
    "shoal/ProbeStochastic-v0": "shoal.envs.probes:Stochastic",
}
"""Envs of Shoal's own, by id: compiled ones, all but Foragers."""

ANY = "shoal/make"  # by which gymnasium.make_vec makes whatever `env=` says

# Where Gymnasium's own envs need a package of a family.
ENTRY_POINTS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}

# Whose envs are not ours to compile.
PACKAGES = {"gymnasium", *(module for family in FAMILIES.values() for module in family.package)}

_registered: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Source:
    """What a name, or a creator, stands for.

    Attributes:
        create: Makes an env, from keyword arguments, in any process; or a vector env, from `num_envs`,
            `autoreset_mode` and them.
        name: If it has one.
        steps_many: Whether it makes vector envs.
        gymnasium_id: If it is one.
        native: The class, if the envs are compiled.
        defaults: Arguments for that class, unless others are given.
        max_episode_steps: After which its registration truncates, if the class itself does not before.
    """

    create: Callable[..., Any]
    name: str = ""
    steps_many: bool = False
    gymnasium_id: str | None = None
    native: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None


def source_of(creator: Callable[..., Any], name: str = "") -> Source:
    """A class or function that makes envs."""
    return Source(creator, name, native=creator if is_native(creator) else None)


def register(name: str, creator: Callable[..., Any]) -> None:
    """Give a creator a name, for `shoal.make` in this process.

    Args:
        name: Any that is not taken. It may be given anew to the same creator.
        creator: A class, or a function that returns an env. ``env_kwargs`` of `shoal.make` are its arguments.

    Raises:
        ArgumentError: If the name is taken.
        ArgumentTypeError: If it is not a creator.

    Example:
        >>> import shoal
        >>> from shoal.testing import SampleEnv
        >>> from gymnasium.spaces import Discrete
        >>> shoal.register("two-doors", lambda: SampleEnv(Discrete(2), Discrete(2)))
        >>> shoal.make("two-doors", num_envs=3, backend="serial")
        Serial(two-doors, num_envs=3)
    """
    if not isinstance(name, str) or not name or ":" in name:  # type: ignore[redundant-expr]
        raise ArgumentError(f"name: expected a string that is not empty and has no colon, got {name!r}")
    if is_env(creator) or not callable(creator):
        raise ArgumentTypeError(
            f"creator: expected a class or a function that makes envs, got {type(creator).__name__}"
        )
    taken = _registered.get(name)
    if (taken is not None and taken is not creator) or name in gymnasium.registry or _family_of(name):
        raise ArgumentError(f"name: {name!r} is taken already. Choose another")
    _registered[name] = creator


def find(name: str) -> Source:
    """What a name stands for.

    Raises:
        UnknownEnv: If nothing has that name.
        MissingExtra: If it needs a package that is not installed.
    """
    if name in OWN:
        made = _own(OWN[name])
        return source_of(made if is_native(made) else partial(_create_own, OWN[name]), name)
    family = _family_of(name)
    known = name in gymnasium.registry or name in _registered
    if family is not None and not known and family.prefixes and name.startswith(family.prefixes):
        family.register_ids()
    if (name in gymnasium.registry and name != ANY) or _is_in_a_module(name):
        return _gymnasium_source(name)
    if family is not None and name.startswith(f"{family.name}-"):
        module, own = family.load(), name.removeprefix(f"{family.name}-")
        if own in module.names():
            return Source(partial(_create_in_family, family.module, own), name, family.steps_many)
    elif name in _registered:
        return source_of(_registered[name], name)
    elif ".py:" in name:
        path, _, attribute = name.rpartition(":")
        return _source_in_file(Path(path), attribute, name)
    raise UnknownEnv(_unknown(name))


def _family_of(name: str) -> Family | None:
    for family in FAMILIES.values():
        if name.startswith((f"{family.name}-", *family.prefixes)):
            return family
    return None


def _is_in_a_module(name: str) -> bool:
    """Whether it is what Gymnasium calls ``module:id``."""
    module, colon, _ = name.partition(":")
    return bool(colon) and not module.endswith(".py")


def _gymnasium_source(name: str) -> Source:
    module, colon, own = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)  # which registers it
        spec = gymnasium.spec(own)
    except (gymnasium.error.Error, ImportError) as error:
        raise UnknownEnv(f"env: Gymnasium does not know {name!r}: {error}") from error
    entry = str(spec.entry_point)
    for start, family in ENTRY_POINTS.items():
        if entry.startswith(start) and not FAMILIES[family].is_installed:
            raise MissingExtra(f"{name} needs packages that are not installed: {FAMILIES[family].pip}")
    create = partial(gymnasium.make, name)
    native = _native_entry(spec)
    if native is None:
        return Source(create, name, gymnasium_id=own)
    return Source(create, name, False, own, native, dict(spec.kwargs), spec.max_episode_steps)


def _native_entry(spec: EnvSpec) -> Any:
    """The class that an id was registered with, if it is one of compiled envs, and nothing is around it."""
    entry: Any = spec.entry_point
    if spec.additional_wrappers or {"render_mode", "debug", "check"} & spec.kwargs.keys():
        return None  # only Gymnasium knows what to do with these
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        if module.partition(".")[0] in PACKAGES:
            return None  # which need not be imported here to know that
        try:
            entry = getattr(importlib.import_module(module), attribute)
        except NativeError:
            raise
        except Exception:
            return None  # whoever makes the env will say what is wrong
    return entry if isinstance(entry, type) and is_native(entry) else None


def tell_gymnasium() -> None:
    """Register what ``gymnasium.make`` and ``gymnasium.make_vec`` may ask for."""
    for name in OWN:
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="shoal.registry:create_single",
                vector_entry_point="shoal.making:make_own",
                kwargs={"env": name},
            )
    if ANY not in gymnasium.registry:
        gymnasium.register(ANY, vector_entry_point="shoal:make")


def _own(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _create_own(place: str, /, **kwargs: Any) -> Any:
    return _own(place)(**kwargs)


def create_single(env: str, **kwargs: Any) -> Any:
    """What ``gymnasium.make`` calls for an env of Shoal's own.

    Raises:
        ArgumentError: If it has several agents.
    """
    made = _own(OWN[env])(**kwargs)
    if isinstance(made, Env):
        made.close()
        raise ArgumentError(
            f"env: {env} has {made.num_agents} agents, and Gymnasium's envs have one. Make a vec, with a row "
            f'for each agent: shoal.make("{env}", num_envs=...)'
        )
    return made


def _create_in_family(module: str, name: str, /, **kwargs: Any) -> Any:
    """By name, so that a worker imports only what it needs."""
    return importlib.import_module(module).create(name, **kwargs)


def _source_in_file(path: Path, attribute: str, name: str) -> Source:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UnknownEnv(f"env: there is no file {path}")
    creator = getattr(_module_in(path), attribute, None)
    if creator is None:
        raise UnknownEnv(f"env: {path} has no {attribute!r}")
    if is_env(creator) or not callable(creator):
        raise ArgumentTypeError(f"env: expected a class or a function in {path}, got {creator!r}")
    # By path: no other process knows the module by the name it has here.
    create = partial(_create_in_file, path, attribute)
    return Source(create, name, native=creator if is_native(creator) else None)


def _create_in_file(path: Path, attribute: str, /, **kwargs: Any) -> Any:
    return getattr(_module_in(path), attribute)(**kwargs)


def _module_in(path: Path) -> ModuleType:
    """The file as a module of its own, imported once."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UnknownEnv(f"env: {path} is not a Python file")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # for what it imports from its own folder
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _unknown(name: str) -> str:
    if name in FAMILIES:
        return f"env: {name!r} is a family of envs: add one of its names, which `shoal envs {name}-` lists"
    if name.endswith(".py"):
        return f"env: expected a class or function in that file too, such as '{name}:MyEnv', got {name!r}"
    elsewhere = (
        f"If a package registers it with Gymnasium, import that package first, or name it: 'package:{name}'"
    )
    known = {known.casefold(): known for known in _known_names()}
    near = [known[match] for match in difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.6)]
    if near:
        return f"env: nothing is called {name!r}. Did you mean {' or '.join(map(repr, near))}? {elsewhere}"
    return (
        f"env: nothing is called {name!r}. Expected a Gymnasium id, one of {', '.join(FAMILIES)} and a name "
        "(`shoal envs` lists them), a name that shoal.register() was told, or path/to/file.py:Class. "
        + elsewhere
    )


def _known_names() -> list[str]:
    names = [*(name for name in gymnasium.registry if name != ANY), *_registered]
    for family in FAMILIES.values():
        with suppress(Exception):  # one whose package is missing, or broken, suggests nothing
            names += family.names()
    return names
