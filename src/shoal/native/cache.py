"""Kernels on disk, each under the name of all that it was made of: none is ever out of date."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.registry import cpu_target


def folder() -> Path:
    """``$SHOAL_CACHE_DIR``, or ``shoal`` in the user's cache."""
    if own := os.environ.get("SHOAL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "shoal"


@dataclass(frozen=True)
class Found:
    """A kernel that was on disk."""

    address: int
    library: Any


def key_of(fingerprint: str) -> str:
    """Of a class with its config, for this machine and these versions."""
    known = (
        fingerprint,
        _kit(),
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        platform.python_version(),
    )
    machine = cpu_target.target_context.codegen().magic_tuple()
    return hashlib.sha256(repr((known, machine)).encode()).hexdigest()[:40]


@cache
def _kit() -> str:
    """The text of those files here of which something is in every kernel."""
    names = ("bodies", "columns", "compiling", "config", "rng", "rng_compiled", "spec")
    texts = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def load(key: str) -> Found | None:
    """The kernel of that key, if it is there and whole."""
    try:
        # Written by `save` alone, into the user's own cache.
        name, state = pickle.loads((folder() / f"{key}.kernel").read_bytes())
        context = cpu_target.target_context
        context.refresh()
        library = context.codegen().unserialize_library(state)
        return Found(library.get_pointer_to_function(name), library)
    except FileNotFoundError:
        return None
    except Exception:  # torn, or of another kind: it is made anew
        return None


def save(key: str, compiled: Any) -> None:
    """Keep a kernel, if the disk can be written and the code does not point into this process."""
    library = compiled._library
    if library.has_dynamic_globals:
        return
    data = pickle.dumps((compiled.native_name, library.serialize_using_object_code()))
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder())
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(folder() / f"{key}.kernel")  # whole or not at all
