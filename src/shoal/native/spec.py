"""Spec: the definition of an env class with its config, checked."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import Space

from shoal.errors import ArgumentError, ArgumentTypeError, NativeError
from shoal.native.bounds import Bounds, bounds_of, fitting
from shoal.rows.fields import Branch, Kind, Leaf, Node, walk
from shoal.rows.layout import Layout

# The arguments that `step` and `reset` may ask for by name, in the order in which a kernel passes them.
SINGLE_STEP = ("state", "action", "rng", "obs", "config", "info", "workspace")
SEVERAL_STEP = (
    *("state", "actions", "rng", "obs", "rewards", "terminated", "alive", "config", "infos", "workspace"),
)
OF_TEAMS = {*SEVERAL_STEP} - {*SINGLE_STEP} - {"infos"}
RESERVED = ("episode", "final_obs", "final_info")  # names of infos that a vec itself gives
NOTHING = np.dtype([("nothing", np.uint8)])  # a record that is not used
RESET_ARGUMENTS = ("state", "rng", "obs", "alive", "config", "workspace")

SUCH_A_STATE = 'such as np.dtype([("place", np.int32), ("speed", np.float64)])'
PLAIN = (bool, int, float, np.bool_, np.integer, np.floating)


@dataclass(frozen=True)
class Spec:
    """An env class with its config.

    Attributes:
        cls: The env class.
        constants: The constants by name. They are part of the compiled code.
        parameters: The parameters by name: one value for all envs, or an array with one value for each env.
        state: The dtype of an env's state in compiled code.
        declared: The dtype of the state as the class declares it: arrays of bools are still bools.
        infos: The dtype of an agent's infos; without fields if the class declares none.
        workspace: The dtype of the memory for intermediate results.
        observation: The layout of an agent's observation.
        action: The layout of an agent's action.
        agents: The number of agents of an env.
        is_team: Whether `step` is written for several agents.
        max_steps: The number of steps after which an episode is truncated; 0 for no limit.
        step: The env's `step`.
        reset: The env's `reset`.
        bounds: The bounds that the class declares for parameters and fields of the state, by name.
    """

    cls: Any
    constants: dict[str, Any]
    parameters: dict[str, Any]
    state: np.dtype[Any]
    declared: np.dtype[Any]
    infos: np.dtype[Any]
    workspace: np.dtype[Any]
    observation: Layout
    action: Layout
    agents: int
    is_team: bool
    max_steps: int
    step: FunctionType
    reset: FunctionType
    bounds: dict[str, Bounds]

    @classmethod
    def of(cls, env: Any, kwargs: Mapping[str, Any] | None = None) -> Spec:
        """Make the spec of an env class with the given config.

        Args:
            env: The class.
            kwargs: Values for its constants and parameters, and ``max_episode_steps``.

        Raises:
            NativeError: If the definition of the class cannot work.
            ArgumentError: If the class does not have an argument, or its value is wrong.
        """
        name, given = env.__name__, dict(kwargs or {})
        limit = given.pop("max_episode_steps", None)
        constants, parameters = dict(env.constants), dict(env.parameters)
        for key in constants.keys() & parameters.keys():
            raise NativeError(f"{name}: {key!r} is both a constant and a parameter")
        for key, value in given.items():
            if key not in constants and key not in parameters:
                known = ", ".join([*constants, *parameters, "max_episode_steps"])
                raise ArgumentError(f"{key}: {name} has no such argument. Expected some of: {known}")
            (constants if key in constants else parameters)[key] = value
        for key, value in constants.items():
            constants[key] = _constant(f"{name}.constants[{key!r}]", value, env.constants[key])
        for key, value in parameters.items():
            parameters[key] = _parameter(f"{name}.parameters[{key!r}]", value, env.parameters[key])
        config = SimpleNamespace(**constants)
        found = {
            part: _resolved(env, part, config)
            for part in (
                "observation_space",
                "action_space",
                "state",
                "infos",
                "workspace",
                "num_agents",
                "max_episode_steps",
                "bounds",
            )
        }
        declared = _record_of(name, "state", found["state"])
        state = _compiled_record(declared)
        infos = np.dtype([]) if found["infos"] is None else _record_of(name, "infos", found["infos"])
        for key in infos.names or ():
            if key.startswith("_") or key in RESERVED:
                raise NativeError(
                    f"{name}.infos[{key!r}]: expected another name. Those that begin with _ are masks, and "
                    f"{', '.join(RESERVED)} are given by the vec"
                )
        workspace = NOTHING if found["workspace"] is None else found["workspace"]
        asked = {*_names_of(env.step), *_names_of(env.reset)}
        for argument, part in (("info", "infos"), ("infos", "infos"), ("workspace", "workspace")):
            if argument in asked and found[part] is None:
                raise NativeError(
                    f"{name}: step or reset asks for {argument}, but the class declares no {part}. Write "
                    f'{part} = np.dtype([("name", np.float64)])'
                )
        for key in {*constants, *parameters}.intersection(state.names or ()):
            raise NativeError(f"{name}: {key!r} is both a field of the state and of the config")
        kinds = {key: np.asarray(default).dtype for key, default in env.parameters.items()}
        bounds = bounds_of(
            name, found["bounds"], {**kinds, **{key: declared[key] for key in declared.names or ()}}
        )
        for key, value in parameters.items():
            parameters[key] = fitting(key, value, kinds[key], bounds.get(key))
        agents = _count(f"{name}.num_agents", found["num_agents"])
        # With one agent it is still a team, if its class is written for several agents.
        is_team = agents > 1 or bool(OF_TEAMS.intersection(_names_of(env.step)))
        limit = found["max_episode_steps"] if limit is None else limit
        return cls(
            env,
            constants,
            parameters,
            state,
            declared,
            _compiled_record(infos),
            _compiled_record(_record_of(name, "workspace", workspace)),
            _layout(name, "observation_space", found["observation_space"]),
            _layout(name, "action_space", found["action_space"]),
            agents,
            is_team,
            0 if limit is None else _count(f"{name}.max_episode_steps", limit),
            _function(env, "step", SEVERAL_STEP if is_team else SINGLE_STEP),
            _function(env, "reset", RESET_ARGUMENTS),
            bounds,
        )

    @property
    def parameter_dtype(self) -> np.dtype[Any]:
        """The dtype of the parameters of one env."""
        return np.dtype([(name, np.asarray(value).dtype) for name, value in self.parameters.items()])

    @property
    def step_arguments(self) -> tuple[str, ...]:
        """The names of all arguments that `step` may ask for."""
        return SEVERAL_STEP if self.is_team else SINGLE_STEP


def _resolved(env: Any, part: str, config: SimpleNamespace) -> Any:
    """Return an attribute of the class. If it is a function of the constants, call it."""
    value = inspect.getattr_static(env, part)
    if isinstance(value, staticmethod):
        value = value.__func__
    return value(config) if isinstance(value, FunctionType) else getattr(env, part)


def _constant(where: str, value: Any, default: Any) -> Any:
    if isinstance(value, PLAIN) and isinstance(default, PLAIN):
        kind = (
            bool
            if isinstance(default, (bool, np.bool_))
            else float
            if isinstance(default, (float, np.floating))
            else int
        )
        if kind(value) == value:
            return kind(value)
        raise ArgumentError(f"{where}: expected a value like {default!r}, got {value!r}")
    if isinstance(default, np.ndarray) and isinstance(value, (np.ndarray, list, tuple)):
        array = np.array(value, default.dtype, order="C")  # a copy that the caller cannot change
        if not np.array_equal(array, value):
            raise ArgumentError(f"{where}: expected an array of {default.dtype}, got {value!r}")
        return array
    raise ArgumentTypeError(
        f"{where}: expected a number, a bool or an array, like {default!r}, got {value!r}"
    )


def _parameter(where: str, value: Any, default: Any) -> Any:
    if not isinstance(default, PLAIN):
        raise ArgumentTypeError(f"{where}: expected a number or a bool, got {default!r}")
    kind = np.asarray(default).dtype
    array = np.asarray(value)
    if array.ndim > 1 or not np.can_cast(array.dtype, kind, "same_kind"):
        raise ArgumentTypeError(
            f"{where}: expected a value like {default!r}, or an array of them, got {value!r}"
        )
    return array


def _count(where: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise NativeError(f"{where}: expected a positive integer, got {value!r}")
    return number


def _record_of(name: str, part: str, declared: Any) -> np.dtype[Any]:
    """Check the structured dtype of the state, the infos or the workspace, and align it."""
    try:
        dtype: np.dtype[Any] = np.dtype(declared)
    except (TypeError, ValueError):  # NumPy's message would only explain how to write dtypes
        raise NativeError(
            f"{name}.{part}: expected a structured dtype, {SUCH_A_STATE}, got {declared!r}"
        ) from None
    if not dtype.names:
        raise NativeError(f"{name}.{part}: expected fields with names, {SUCH_A_STATE}, got {declared!r}")
    for field in dtype.names:
        kind = dtype[field].base
        if kind.kind not in "biuf" or not kind.isnative:
            raise NativeError(
                f"{name}.{part}[{field!r}]: expected numbers or bools of a fixed size, or arrays of them, "
                f"got {kind}"
            )
    return np.dtype([(field, dtype[field]) for field in dtype.names], align=True)


def _compiled_record(declared: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a record in compiled code."""
    return np.dtype([(key, _in_record(declared[key])) for key in declared.names or ()], align=True)


def _in_record(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Replace arrays of bools by bytes, because Numba has no arrays of bools in records."""
    return np.dtype((np.uint8, dtype.shape)) if dtype.shape and dtype.base == np.bool_ else dtype


def _layout(name: str, part: str, space: Any) -> Layout:
    if not isinstance(space, Space):
        raise NativeError(f"{name}.{part}: expected a Gymnasium space, got {space!r}")
    layout = Layout(space, objects=True)
    layout.require_bytes("Compiled code")
    for node in walk(layout.root):
        field = node.field if not isinstance(node, Branch) else None
        if field is not None and (
            field.kind is Kind.CHOICE
            or field.dtype.kind not in "biuf"
            or (field.dtype.itemsize == 2 and field.dtype.kind == "f")
        ):
            raise NativeError(
                f"{name}.{part}: expected Box, Discrete, MultiDiscrete, MultiBinary, Text, or Dict and Tuple "
                f"of them, got {field.space}"
            )
    return layout


def _function(env: Any, verb: str, known: tuple[str, ...]) -> FunctionType:
    function = inspect.getattr_static(env, verb)
    function = function.__func__ if isinstance(function, staticmethod) else function
    if not isinstance(function, FunctionType):
        raise NativeError(f"{env.__name__}.{verb}: expected a static method, got {function!r}")
    for parameter in inspect.signature(function).parameters.values():
        if (
            parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            or parameter.name not in known
        ):
            hint = ". Write @staticmethod above it" if parameter.name == "self" else ""
            raise NativeError(
                f"{env.__name__}.{verb}: expected arguments among {', '.join(known)}, got {parameter}{hint}"
            )
    return function


def _names_of(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters) if callable(function) else []


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters, in order."""
    return list(inspect.signature(function).parameters)


def row_dtype(layout: Layout) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of a row for an env: an array, or a record for a Dict or Tuple."""
    root = layout.root
    if isinstance(root, Leaf):
        return root.field.dtype, root.field.shape
    return _record(root, 0, layout.nbytes), ()


def _record(node: Node, start: int, nbytes: int) -> np.dtype[Any]:
    assert isinstance(node, Branch)
    names = [str(key) if node.is_dict else f"f{key}" for key in node.keys]
    formats, offsets = [], []
    for child in node.children:
        leaves = [leaf.field for leaf in walk(child) if isinstance(leaf, Leaf)]
        first = min(leaf.offset for leaf in leaves)
        end = max(leaf.offset + leaf.nbytes for leaf in leaves)
        offsets.append(first - start)
        if isinstance(child, Leaf):
            formats.append(_in_record(np.dtype((child.field.dtype, child.field.shape))))
        else:
            formats.append(_record(child, first, end - first))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes})
