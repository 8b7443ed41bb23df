"""An env's function with all functions that it calls, each replaced by what is to run instead of it."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

FOREIGN = ("math", "cmath", "numpy", "numba")  # modules in which nothing is replaced


def plain_of(value: Any) -> FunctionType | None:
    """The Python function that this is, or that Numba has made this of; None if it is neither."""
    plain = getattr(value, "py_func", value)
    return plain if isinstance(plain, FunctionType) else None


def is_compiled(value: Any) -> bool:
    """Whether this is a function that Numba was told to compile, by ``@njit`` for instance."""
    return plain_of(value) is not None and plain_of(value) is not value


def names_in(code: CodeType) -> set[str]:
    """All names that are read there, attributes included, also by what is defined inside."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for each in inner for name in names_in(each))}


class Replacement:
    """Replaces functions, whatever they call, and what that calls.

    The functions themselves stay as they are: what is replaced are copies, with globals of their own.

    Args:
        replace: Gets a copy and what it is a copy of, and returns what is to be called instead.
        concerns: Which of the functions that are called are to be replaced.
    """

    def __init__(self, replace: Callable[[FunctionType, Any], Any], concerns: Callable[[Any], bool]) -> None:
        self._replace, self._concerns = replace, concerns
        self._made: dict[int, tuple[Any, Any]] = {}  # by the id of what they replace, which is kept

    def of(self, function: Any) -> Any:
        """What is to be called instead of this function."""
        if id(function) in self._made:
            return self._made[id(function)][1]  # perhaps the caller: a function may call itself
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
        """The module; or a copy, if something that may be read there is replaced."""
        if module.__name__.partition(".")[0] in FOREIGN:
            return module
        own = {name: value for name, value in vars(module).items() if name in names and value is not module}
        # Numba does not compile plain functions of modules: only those that are compiled already matter.
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
