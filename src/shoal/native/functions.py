"""Copy an env's function with all functions that it calls, and replace each of them."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

FOREIGN = ("math", "cmath", "numpy", "numba")  # modules in which nothing is replaced


def plain_of(value: Any) -> FunctionType | None:
    """Return the Python function of a plain or Numba-compiled function; None for other values."""
    plain = getattr(value, "py_func", value)
    return plain if isinstance(plain, FunctionType) else None


def is_compiled(value: Any) -> bool:
    """Return whether this is a function that Numba compiles, for instance by ``@njit``."""
    return plain_of(value) is not None and plain_of(value) is not value


def names_in(code: CodeType) -> set[str]:
    """Return all names that the code reads, with attributes, also in functions defined inside it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for each in inner for name in names_in(each))}


class Replacement:
    """Replaces a function and, recursively, the functions that it calls.

    The original functions do not change: the replacements are made from copies with their own globals.

    Args:
        replace: Takes a copy and its original, and returns the function to call instead.
        concerns: Returns whether a called function is to be replaced.
    """

    def __init__(self, replace: Callable[[FunctionType, Any], Any], concerns: Callable[[Any], bool]) -> None:
        self._replace, self._concerns = replace, concerns
        self._made: dict[int, tuple[Any, Any]] = {}  # by the id of the original, which is kept alive

    def of(self, function: Any) -> Any:
        """Return the replacement of this function."""
        if id(function) in self._made:
            return self._made[id(function)][1]  # also ends recursion: a function may call itself
        plain = plain_of(function)
        assert plain is not None
        code, known = plain.__code__, dict(plain.__globals__)
        cells = tuple(CellType() for _ in code.co_freevars)
        copy = FunctionType(code, known, plain.__name__, plain.__defaults__, cells or None)
        copy.__kwdefaults__ = plain.__kwdefaults__
        copy.__qualname__, copy.__module__ = plain.__qualname__, plain.__module__
        made = self._replace(copy, function)
        self._made[id(function)] = function, made
        names = names_in(code)
        for name in names & known.keys():
            known[name] = self._instead_of(known[name], names)
        for cell, old in zip(cells, plain.__closure__ or (), strict=True):
            cell.cell_contents = self._instead_of(old.cell_contents, names)
        return made

    def _instead_of(self, value: Any, names: set[str]) -> Any:
        if isinstance(value, ModuleType):
            return self._module(value, names)
        return self.of(value) if plain_of(value) is not None and self._concerns(value) else value

    def _module(self, module: ModuleType, names: set[str]) -> ModuleType:
        """Return the module, or a copy of it if one of the named functions in it is replaced."""
        if module.__name__.partition(".")[0] in FOREIGN:
            return module
        own = {name: value for name, value in vars(module).items() if name in names and value is not module}
        # Numba does not compile plain functions of modules, so only compiled functions matter here.
        other = {
            name: self._instead_of(value, names)
            for name, value in own.items()
            if is_compiled(value) or isinstance(value, ModuleType)
        }
        if all(other[name] is own[name] for name in other):
            return module
        copy = ModuleType(module.__name__)
        vars(copy).update({**vars(module), **other})
        return copy
