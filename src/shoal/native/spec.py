"""Spec: what an env class says of itself, with its config filled in and checked."""

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

# What `step` and `reset` may ask for, by name, and in which order a kernel passes it.
SINGLE_STEP = ("state", "action", "rng", "obs", "config")
SEVERAL_STEP = ("state", "actions", "rng", "obs", "rewards", "terminated", "alive", "config")
OF_TEAMS = {*SEVERAL_STEP} - {*SINGLE_STEP}
RESET_ARGUMENTS = ("state", "rng", "obs", "alive", "config")

SUCH_A_STATE = 'such as np.dtype([("place", np.int32), ("speed", np.float64)])'
PLAIN = (bool, int, float, np.bool_, np.integer, np.floating)


@dataclass(frozen=True)
class Spec:
    """An env class with its config.

    Attributes:
        cls: The class.
        constants: Part of the compiled code, by name.
        parameters: Values of each env, by name; one for all, or an array with one for each.
        state: The dtype of an env's state, as compiled code sees it.
        declared: The same, with arrays of bools as such.
        observation: Layout of an agent's observation.
        action: Layout of an agent's action.
        agents: How many an env has.
        is_team: Whether its functions are written for several.
        max_steps: After which an episode is truncated; 0 for never.
        step: The env's own function.
        reset: Likewise.
        bounds: Of parameters and fields of the state, by name, as far as the class has declared them.
    """

    cls: Any
    constants: dict[str, Any]
    parameters: dict[str, Any]
    state: np.dtype[Any]
    declared: np.dtype[Any]
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
        """Fill in the config.

        Args:
            env: The class.
            kwargs: Values for its constants and parameters, and ``max_episode_steps``.

        Raises:
            NativeError: If the class says something that cannot work.
            ArgumentError: If an argument is none of the class's, or has a wrong value.
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
                "num_agents",
                "max_episode_steps",
                "bounds",
            )
        }
        declared = _state(name, found["state"])
        state = np.dtype([(key, _in_record(declared[key])) for key in declared.names or ()], align=True)
        for key in {*constants, *parameters}.intersection(state.names or ()):
            raise NativeError(f"{name}: {key!r} is both a field of the state and of the config")
        kinds = {key: np.asarray(default).dtype for key, default in env.parameters.items()}
        bounds = bounds_of(
            name, found["bounds"], {**kinds, **{key: declared[key] for key in declared.names or ()}}
        )
        for key, value in parameters.items():
            parameters[key] = fitting(key, value, kinds[key], bounds.get(key))
        agents = _count(f"{name}.num_agents", found["num_agents"])
        # A team of one is a team all the same, if its class is written for several.
        is_team = agents > 1 or bool(OF_TEAMS.intersection(_names_of(env.step)))
        limit = found["max_episode_steps"] if limit is None else limit
        return cls(
            env,
            constants,
            parameters,
            state,
            declared,
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
        """Of the values of one env."""
        return np.dtype([(name, np.asarray(value).dtype) for name, value in self.parameters.items()])

    @property
    def step_arguments(self) -> tuple[str, ...]:
        """All that a step may ask for."""
        return SEVERAL_STEP if self.is_team else SINGLE_STEP


def _resolved(env: Any, part: str, config: SimpleNamespace) -> Any:
    """A value, or what a function of the constants gives."""
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
        array = np.array(value, default.dtype, order="C")  # a copy, which nobody else can change
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


def _state(name: str, state: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(state)
    except (TypeError, ValueError):  # whose words are about how dtypes may be spelt
        raise NativeError(
            f"{name}.state: expected a structured dtype, {SUCH_A_STATE}, got {state!r}"
        ) from None
    if not dtype.names:
        raise NativeError(f"{name}.state: expected fields with names, {SUCH_A_STATE}, got {state!r}")
    for field in dtype.names:
        kind = dtype[field].base
        if kind.kind not in "biuf" or not kind.isnative:
            raise NativeError(
                f"{name}.state[{field!r}]: expected numbers or bools of a fixed size, or arrays of them, "
                f"got {kind}"
            )
    return np.dtype([(field, dtype[field]) for field in dtype.names], align=True)


def _in_record(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Numba has no arrays of bools in records; as bytes they are the same."""
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
    """The names of what a function asks for, in its own order."""
    return list(inspect.signature(function).parameters)


def row_dtype(layout: Layout) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape by which an env sees a row: an array, or a record if it is a Dict or Tuple."""
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
