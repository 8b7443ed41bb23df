"""Kernels on disk, each under the name of all that it was made of: none is ever out of date."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps


def folder() -> Path:
    """``$SHOAL_CACHE_DIR``, or ``shoal`` in the user's cache."""
    if own := os.environ.get("SHOAL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "shoal"


def key_of(fingerprint: str) -> str:
    """Of a class with its config, for this machine and these versions."""
    known = (
        fingerprint,
        _kit(),
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        platform.python_version(),
        numba.config.BOUNDSCHECK,
        numba.config.OPT,
    )
    machine = cpu_target.target_context.codegen().magic_tuple()
    return hashlib.sha256(repr((known, machine)).encode()).hexdigest()[:40]


@cache
def _kit() -> str:
    """The text of those files here of which something is in every kernel."""
    names = ("bodies", "columns", "compiling", "config", "rng", "rng_compiled", "spec", "straight")
    texts = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return hashlib.sha256(b"".join(texts)).hexdigest()


class Store:
    """The place of one kernel, as Numba asks for it.

    Args:
        key: Of the kernel.
        check: Raises if what was compiled is not to be kept.
    """

    def __init__(self, key: str, check: Callable[[], None]) -> None:
        self._path, self._check = folder() / f"{key}.kernel", check

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The kernel, if it is there and whole."""
        context.refresh()
        try:
            # Written by `save_overload` alone, into the user's own cache.
            return CompileResult._rebuild(context, *pickle.loads(self._path.read_bytes()))
        except Exception:  # not there, torn, or of a module that is not: it is made anew
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep it, if the disk can be written and the code does not point into this process."""
        self._check()
        if compiled.library.has_dynamic_globals:
            return
        with suppress(OSError, pickle.PicklingError, TypeError):
            data = dumps(compiled._reduce())
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).replace(self._path)  # whole or not at all
