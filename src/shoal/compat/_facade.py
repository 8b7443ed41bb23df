"""Modules under the names of a package that is not installed, with clear errors for what they lack."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from shoal.errors import CallError, MissingExtra


class Facade:
    """Modules under the names of another package.

    Args:
        title: Name of the other project, for messages.
        modules: Contents of each module, by its name; the first one is the package. A content is a value, or
            with `is_later` a function that returns it when it is first asked for.
        described: What is offered, for messages: "Shoal's stand-in for x has only a and b".
        source: Module that has the same contents under its own name.
        is_later: Whether contents are functions that return them.
    """

    def __init__(
        self,
        title: str,
        modules: Mapping[str, Mapping[str, Any]],
        described: str,
        source: str,
        *,
        is_later: bool = False,
    ) -> None:
        self._title, self._described, self._source = title, described, source
        self._name = next(iter(modules))
        self._modules = {
            name: self._module(name, contents, is_later=is_later) for name, contents in modules.items()
        }
        for name, module in self._modules.items():
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(self._modules[parent], last, module)
                self._modules[parent].__all__.append(last)

    def _module(self, name: str, contents: Mapping[str, Any], *, is_later: bool) -> ModuleType:
        def find(attribute: str) -> Any:
            if is_later and attribute in contents:
                make: Callable[[], Any] = contents[attribute]
                return make()
            raise AttributeError(self.not_offered(f"{name}.{attribute}"))

        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin="shoal.compat", is_package=True)
        module.__path__ = []  # makes it a package, so that imports from it reach `find_spec`
        module.__dict__.update({} if is_later else contents, __all__=list(contents), __getattr__=find)
        return module

    def not_offered(self, name: str) -> str:
        """Return the message for a name that is not offered."""
        return f"{name}: {self._described}"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise a clear error for unknown modules of the package. It is the last finder for imports."""
        if name.startswith(f"{self._name}.") and self.is_installed():
            raise MissingExtra(self.not_offered(name))

    def is_installed(self) -> bool:
        """Return whether an import finds Shoal's version in this process."""
        return sys.modules.get(self._name) is self._modules[self._name]

    def install(self) -> None:
        """Put the modules into ``sys.modules``.

        Raises:
            CallError: If the package itself is installed or imported; nothing of it is replaced.
        """
        if self.is_installed():
            return
        there = sys.modules.get(self._name)
        spec = importlib.util.find_spec(self._name) if there is None else there.__spec__
        where = None if spec is None else spec.origin
        if there is not None or where is not None:  # without an origin, it is only a folder of that name
            raise CallError(
                f"{self._title} itself is installed, in {where}, and is not replaced. Uninstall it, or "
                f"import what you need from {self._source}"
            )
        sys.modules.update(self._modules)
        if self not in sys.meta_path:
            sys.meta_path.append(self)
