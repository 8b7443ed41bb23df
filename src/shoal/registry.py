"""Names of envs -> creators of envs.

`shoal.make` and the command line look a name up in this order:

    shoal/Foragers-v0        an env of Shoal
    CartPole-v1              a Gymnasium id, made by Gymnasium
    atari-breakout           an env of a family: the envs of a package, with their usual preprocessing
    my-maze                  a name given to `shoal.register`
    path/to/file.py:Maze     a class or function in a file

The package of a family is imported only when one of its names, or an unknown name, is looked up.
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
from shoal.native.env import OF_SINGLE_ENVS


@dataclass(frozen=True)
class Family:
    """A family: the envs of one package.

    Attributes:
        name: The prefix of its names, before a dash.
        about: A description in one line.
        module: Shoal's module for it, with ``names()`` and ``create(name, **kwargs)``; if the package has its
            own vector envs, ``create(name, *, num_envs, autoreset_mode, **kwargs)``.
        extra: The extra of Shoal that installs its package; "" if it needs only Gymnasium.
        package: The modules that must be installed.
        prefixes: The prefixes of Gymnasium ids that importing the last of these modules registers.
        steps_many: Whether `create` makes vector envs.
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
        """Whether the package is installed."""
        return all(importlib.util.find_spec(module) is not None for module in self.package)

    @property
    def pip(self) -> str:
        """The command that installs the package."""
        return f'pip install "shoal[{self.extra}]"'

    def names(self) -> list[str]:
        """Return all names of the family, in order.

        Raises:
            MissingExtra: If the package is not installed.
        """
        return [f"{self.name}-{name}" for name in self.load().names()]

    def register_ids(self) -> None:
        """Import the package, so that it registers its Gymnasium ids.

        Raises:
            MissingExtra: If the package is not installed.
        """
        package = self.package[-1]
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{self.name} envs need packages that are not installed: {self.pip}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the packages that it imports
            importlib.import_module(package)

    def load(self) -> Any:
        """Import Shoal's module for the family.

        Raises:
            MissingExtra: If the package is not installed.
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
            ("pettingzoo",),  # a game that needs more packages raises when it is made
        ),
    )
}

OWN = {
    "shoal/Acrobot-v1": "shoal.envs.acrobot:Acrobot",
    "shoal/Breakout-v0": "shoal.envs.breakout:Breakout",
    "shoal/CartPole-v1": "shoal.envs.cartpole:CartPole",
    "shoal/Foragers-v0": "shoal.envs.foragers:Foragers",
    "shoal/Hockey-v0": "shoal.hockey.envs:Hockey",
    "shoal/HockeyOne-v0": "shoal.hockey.envs:HockeyOne",
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
"""The envs of Shoal, by id. All are compiled, except Foragers."""

SINGLE = {"shoal/Hockey-v0": "shoal.hockey.course:HockeyEnv"}
"""Envs of several agents that have a single env with the actions of all agents, for ``gymnasium.make``."""

ANY = "shoal/make"  # the id by which gymnasium.make_vec makes the env given as `env=`

# Gymnasium's envs that need the package of a family.
ENTRY_POINTS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}

# Packages whose envs are never compiled envs of Shoal.
PACKAGES = {"gymnasium", *(module for family in FAMILIES.values() for module in family.package)}

_registered: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Source:
    """The result of looking up a name or creator.

    Attributes:
        create: A function that makes an env from keyword arguments, in any process. If `steps_many`, it makes
            a vector env, and also takes `num_envs` and `autoreset_mode`.
        name: The name of the env; "" if it has none.
        steps_many: Whether `create` makes vector envs.
        gymnasium_id: The Gymnasium id; None if it has none.
        native: The env class, if the envs are compiled.
        defaults: Default arguments for that class.
        max_episode_steps: The step limit of the Gymnasium registration, if it has one.
    """

    create: Callable[..., Any]
    name: str = ""
    steps_many: bool = False
    gymnasium_id: str | None = None
    native: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None


def source_of(creator: Callable[..., Any], name: str = "") -> Source:
    """Return the source for a class or function that makes envs."""
    return Source(creator, name, native=creator if is_native(creator) else None)


def register(name: str, creator: Callable[..., Any]) -> None:
    """Give a creator a name, for `shoal.make` in this process.

    Args:
        name: A name that is not taken. The same creator may be registered again.
        creator: A class, or a function that returns an env. ``env_kwargs`` of `shoal.make` are its arguments.

    Raises:
        ArgumentError: If the name is taken.
        ArgumentTypeError: If `creator` is not a class or function.

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
    """Look up a name.

    Raises:
        UnknownEnv: If no env has this name.
        MissingExtra: If the env needs a package that is not installed.
    """
    if name in OWN:
        made = _own(OWN[name])
        return source_of(made if is_native(made) else partial(_create_own, OWN[name]), name)
    in_file = ".py:" in name  # though the file's name may begin like that of a family
    family = None if in_file else _family_of(name)
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
    elif in_file:
        path, _, attribute = name.rpartition(":")
        return _source_in_file(Path(path), attribute, name)
    raise UnknownEnv(_unknown(name))


def _family_of(name: str) -> Family | None:
    for family in FAMILIES.values():
        if name.startswith((f"{family.name}-", *family.prefixes)):
            return family
    return None


def names_code(name: Any) -> bool:
    """Return whether looking up the name imports a file or module that the name itself chooses."""
    if not isinstance(name, str):
        return True  # such as a list of names
    return ".py:" in name or (":" in name and name not in gymnasium.registry and name not in _registered)


def _is_in_a_module(name: str) -> bool:
    """Return whether the name has Gymnasium's form ``module:id``."""
    module, colon, _ = name.partition(":")
    return bool(colon) and not module.endswith(".py")


def _gymnasium_source(name: str) -> Source:
    module, colon, own = name.rpartition(":")
    if colon:
        _import_package(module, name)  # which registers it
    try:
        spec = gymnasium.spec(own)
    except gymnasium.error.Error as error:
        package = f"the package {module!r} was imported, but does not register {own!r}: " if colon else ""
        raise UnknownEnv(
            f"env: Gymnasium does not know {name!r}: {package}{error}{_hint(module, own)}"
        ) from error
    entry = str(spec.entry_point)
    for start, family in ENTRY_POINTS.items():
        if entry.startswith(start) and not FAMILIES[family].is_installed:
            raise MissingExtra(f"{name} needs packages that are not installed: {FAMILIES[family].pip}")
    create = partial(gymnasium.make, name)
    native = _native_entry(spec)
    if native is None:
        return Source(create, name, gymnasium_id=own)
    return Source(create, name, False, own, native, dict(spec.kwargs), spec.max_episode_steps)


def _import_package(package: str, name: str) -> None:
    """Import the package that a name begins with.

    Raises:
        UnknownEnv: If it is not there, or cannot be imported.
    """
    try:
        if not package or package.startswith("."):
            raise ModuleNotFoundError("a name of a package is missing", name=package)
        importlib.import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}.")
        why = "there is no package" if missing else f"{error}, in the import of the package"
        raise UnknownEnv(f"env: Gymnasium does not know {name!r}: {why} {package!r}") from error


def _hint(package: str, attribute: str) -> str:
    """What to do if the package has such a class, but has not registered it."""
    if attribute and callable(getattr(sys.modules.get(package), attribute, None)):
        return f" To make envs of {package}.{attribute}, pass the class itself instead of its name"
    return ""


def _native_entry(spec: EnvSpec) -> Any:
    """Return the class of an id, if it is a class of compiled envs and has no wrappers; else None."""
    entry: Any = spec.entry_point
    if spec.additional_wrappers or {*OF_SINGLE_ENVS} & spec.kwargs.keys():
        return None  # only gymnasium.make handles these
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        if module.partition(".")[0] in PACKAGES:
            return None  # known without importing the package
        try:
            entry = getattr(importlib.import_module(module), attribute)
        except NativeError:
            raise
        except Exception:
            return None  # making the env will raise the error
    return entry if isinstance(entry, type) and is_native(entry) else None


def tell_gymnasium() -> None:
    """Register Shoal's envs for ``gymnasium.make`` and ``gymnasium.make_vec``."""
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
    """Make a single env of Shoal, for ``gymnasium.make``. It returns all infos that its class declares.

    Raises:
        ArgumentError: If the env has several agents.
    """
    create = _own(SINGLE.get(env, OWN[env]))
    if is_native(create) and create.infos is not None:
        kwargs.setdefault("infos", True)
    made = create(**kwargs)
    if isinstance(made, Env):
        made.close()
        raise ArgumentError(
            f"env: {env} has {made.num_agents} agents, and Gymnasium's envs have one. Make a vec, with a row "
            f'for each agent: shoal.make("{env}", num_envs=...)'
        )
    return made


def _create_in_family(module: str, name: str, /, **kwargs: Any) -> Any:
    """Make an env of a family. The module is given by name, so that a worker imports only what it needs."""
    return importlib.import_module(module).create(name, **kwargs)


def object_in_file(name: str) -> Any:
    """Return what a name such as ``path/to/file.py:Class`` stands for; None if the file has no such thing.

    Raises:
        UnknownEnv: If there is no such file.
    """
    file, _, attribute = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UnknownEnv(f"env: there is no file {path}")
    return getattr(_module_in(path), attribute, None)


def _source_in_file(path: Path, attribute: str, name: str) -> Source:
    path = path.expanduser().resolve()
    creator = object_in_file(f"{path}:{attribute}")
    if creator is None:
        raise UnknownEnv(f"env: {path} has no {attribute!r}")
    if is_env(creator) or not callable(creator):
        raise ArgumentTypeError(f"env: expected a class or a function in {path}, got {creator!r}")
    # By path, because other processes do not know the module by the name that it has here.
    create = partial(_create_in_file, path, attribute)
    return Source(create, name, native=creator if is_native(creator) else None)


def _create_in_file(path: Path, attribute: str, /, **kwargs: Any) -> Any:
    return getattr(_module_in(path), attribute)(**kwargs)


def _module_in(path: Path) -> ModuleType:
    """Import a file as a module, once."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UnknownEnv(f"env: {path} is not a Python file")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # so that it can import files of its folder
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            with suppress(Exception):  # an exception may refuse notes
                error.add_note(f"raised while importing {path}")
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
        return f"env: no env is called {name!r}. Did you mean {' or '.join(map(repr, near))}? {elsewhere}"
    return (
        f"env: no env is called {name!r}. Expected a Gymnasium id, one of {', '.join(FAMILIES)} and a name "
        "(`shoal envs` lists them), a name given to shoal.register(), or path/to/file.py:Class. " + elsewhere
    )


def _known_names() -> list[str]:
    names = [*(name for name in gymnasium.registry if name != ANY), *_registered]
    for family in FAMILIES.values():
        with suppress(Exception):  # a family whose package is missing or broken has no suggestions
            names += family.names()
    return names
