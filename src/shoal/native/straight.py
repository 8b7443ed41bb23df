"""Whether a `step` is straight: harmless for any state and action, so that it may be called for nothing.

Straight is what has no loop and no index that is computed, uses no random numbers, and has a state of single
numbers: then no input can make it write where it should not, or go on for ever.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from shoal.native.spec import Spec, arguments_of

LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)


def is_straight(spec: Spec) -> bool:
    """Whether its step is."""
    fields: Any = spec.state.fields
    return (
        not spec.is_team
        and "rng" not in arguments_of(spec.step)
        and all(field[0].shape == () for field in fields.values())
        and _is_straight(spec.step, set())
    )


def _is_straight(function: Any, seen: set[Any]) -> bool:
    function = getattr(function, "py_func", function)
    if function in seen:
        return False  # it may call itself for ever
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells.items()}}
    (definition,) = tree.body
    for node in [node for statement in getattr(definition, "body", ()) for node in ast.walk(statement)]:
        if isinstance(node, LOOPS):
            return False
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
            return False
        if isinstance(node, ast.Call) and not _is_harmless(_value_of(node.func, known), {*seen, function}):
            return False
    return True


def _value_of(node: ast.AST, known: dict[str, Any]) -> Any:
    """What a name, or an attribute of one, stands for."""
    if isinstance(node, ast.Name):
        return known.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, known)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _is_harmless(called: Any, seen: set[Any]) -> bool:
    """Whether any number will do for it: what makes arrays, or looks into them, is not."""
    plain = getattr(called, "py_func", called)
    if isinstance(plain, FunctionType):
        return _is_straight(plain, seen)
    if getattr(called, "__module__", None) == "math":
        return True
    is_type = isinstance(called, type) and issubclass(called, (bool, int, float, np.generic))
    return isinstance(called, np.ufunc) or is_type or called in (abs, min, max, round)
