"""The fingerprint of a kernel: a text of its functions, the values and functions they use, and its config."""

from __future__ import annotations

import hashlib
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from shoal.native.functions import FOREIGN, names_in, plain_of
from shoal.native.spec import Spec

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)


class Unknown(Exception):
    """A value cannot be written as text, so that there is no fingerprint."""


def text_of(constants: dict[str, Any]) -> str:
    """Return a hash of the constants. Different constants have different hashes."""
    return hashlib.sha256(repr(_of(constants, {})).encode()).hexdigest()


def fingerprint(spec: Spec) -> str | None:
    """Return a text that is the same for equal kernels; None if a value cannot be written as text."""
    seen: dict[int, int] = {}
    try:
        parts = [_of(function, seen) for function in (spec.step, spec.reset)]
        parts += [_of(spec.constants, seen), _of(spec.parameter_dtype, seen), _of(spec.state, seen)]
        parts += [_of(spec.infos, seen), _of(spec.workspace, seen)]
    except Unknown:
        return None
    rows = [
        repr([(field.path, field.dtype, field.shape, field.offset) for field in layout.fields])
        + str(layout.nbytes)
        for layout in (spec.observation, spec.action)
    ]
    return repr((parts, rows, spec.agents, spec.is_team, spec.max_steps))


def _of(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (tuple, list)):
        return [_of(each, seen) for each in value]
    if isinstance(value, dict):
        return [(str(key), _of(each, seen)) for key, each in sorted(value.items())]
    if isinstance(value, type) and issubclass(value, Enum):
        return value.__qualname__, [(member.name, _of(member.value, seen)) for member in value]
    if isinstance(value, type) and value.__module__.partition(".")[0] not in ("builtins", "numpy"):
        raise Unknown
    if isinstance(value, (type, BuiltinFunctionType, np.ufunc)):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)
    if isinstance(value, CodeType):
        constants = [_of(each, seen) for each in value.co_consts]
        return value.co_code, constants, value.co_names, value.co_varnames, value.co_freevars
    function = plain_of(value)
    if function is not None:
        return _of_function(function, seen), repr(getattr(value, "targetoptions", ""))
    raise Unknown


def _of_function(function: FunctionType, seen: dict[int, int]) -> Any:
    if id(function) in seen:
        return seen[id(function)]
    seen[id(function)] = len(seen)
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    names = {*names_in(code), *code.co_freevars}
    read = {name: known[name] for name in sorted(names) if name in known}
    parts: list[Any] = []
    for name, value in read.items():
        if isinstance(value, ModuleType):
            parts.append((name, value.__name__, _of_module(value, names, seen)))
        else:
            parts.append((name, _of(value, seen)))
    return _of(code, seen), _of(function.__defaults__, seen), _of(function.__kwdefaults__, seen), parts


def _of_module(module: ModuleType, names: set[str], seen: dict[int, int]) -> Any:
    """Return the values of a user's module that the code may read: all that have one of these names."""
    if module.__name__.partition(".")[0] in FOREIGN:
        return ()
    found = {name: getattr(module, name) for name in sorted(names) if hasattr(module, name)}
    return [
        (name, _of_module(value, names, seen) if isinstance(value, ModuleType) else _of(value, seen))
        for name, value in found.items()
    ]
