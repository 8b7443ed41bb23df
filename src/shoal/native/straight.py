"""Straight steps: a `step` is straight if it is harmless for any state and action.

A kernel may call a straight step even for an env that needs no step. A step is straight if it has no loop
and no computed index, draws no random numbers, and its state has no arrays. Then no input can make it write
outside its arrays or run forever.
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
    """Return whether the step of an env class is straight."""
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
        return False  # it may call itself forever
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
    """Return the value of a name or of an attribute of a module; None if it is not known."""
    if isinstance(node, ast.Name):
        return known.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, known)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _is_harmless(called: Any, seen: set[Any]) -> bool:
    """Return whether a function is safe for any number. Functions that make or read arrays are not."""
    plain = getattr(called, "py_func", called)
    if isinstance(plain, FunctionType):
        return _is_straight(plain, seen)
    if getattr(called, "__module__", None) == "math":
        return True
    is_type = isinstance(called, type) and issubclass(called, (bool, int, float, np.generic))
    return isinstance(called, np.ufunc) or is_type or called in (abs, min, max, round)
