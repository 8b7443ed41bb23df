"""Kernels on disk, each under the name of all that it was made of: none is ever out of date.

Guarantees
  - A file is read only if this user owns it and its folder, and no other user may write to either: what it
    contains is unpickled and run.
  - A file is used only if it is whole: it begins with a digest of its key and of all that follows, which is
    compared before anything is unpickled. Anything else is as if it were not there.
  - A file appears under its name whole, or not at all.
  - While a process compiles a kernel, others that want the same one wait for it. If it is killed, they go on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import platform
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import llvmlite
import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

DIGEST = hashlib.sha256().digest_size
PATIENCE = 300.0  # seconds to wait for another process that compiles; it may have been stopped
LOOK = 0.02  # seconds between two looks at a lock


def folder() -> Path:
    """``$SHOAL_CACHE_DIR``, or ``shoal`` in the user's cache."""
    if own := os.environ.get("SHOAL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "shoal"


def key_of(fingerprint: str, *, checked: bool) -> str:
    """Name the kernel of a class with its config, for this machine and these versions."""
    known = (
        fingerprint,
        checked,
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
    names = (
        "bodies",
        "cache",
        "columns",
        "compiling",
        "config",
        "functions",
        "rng",
        "rng_compiled",
        "spec",
        "straight",
    )
    texts = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return hashlib.sha256(b"".join(texts)).hexdigest()


class Store:
    """The place of one kernel, as Numba asks for it. Used as a context: its end is the end of the lock.

    Args:
        key: Of the kernel.
        check: Raises if what was compiled is not to be kept.

    Attributes:
        refusal: Why the kernel is not kept on disk; "" if it is.
    """

    def __init__(self, key: str, check: Callable[[], None]) -> None:
        self._key, self._name, self._check = key, f"{key}.kernel", check
        self._lock: int | None = None
        self.refusal = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            # Still locked: those that wait for it see that the name is gone, or stands for another file.
            with suppress(OSError), _opened(folder()) as place:
                os.unlink(f"{self._key}.lock", dir_fd=place)
            os.close(self._lock)
            self._lock = None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The kernel, if it is there and whole. If it is not, no other process compiles it until the end."""
        context.refresh()
        found = self._load(context)
        if found is not None:
            return found
        with suppress(OSError):  # where nothing can be written there is no lock
            _make(folder())
            with _opened(folder()) as place:
                self._lock = _locked(place, f"{self._key}.lock")
        return self._load(context)  # another process may have compiled it meanwhile

    def _load(self, context: Any) -> Any:
        try:
            with _opened(folder()) as place:
                data = _read(place, self._name)
            if data[:DIGEST] != self._digest(data[DIGEST:]):
                return None
            return CompileResult._rebuild(context, *pickle.loads(data[DIGEST:]))
        except Exception:  # not there, not ours, or of a module that is not there: it is made anew
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep it, if the disk can be written and the code does not point into this process."""
        self._check()
        if compiled.library.has_dynamic_globals:
            self.refusal = "it points into the memory of this process"
            return
        try:
            data = dumps(compiled._reduce())
            _make(folder())
            with _opened(folder()) as place:
                _write(place, self._name, self._digest(data) + data)
        except OSError as error:
            self.refusal = f"{folder()}: {error.strerror or error}"
        except (pickle.PicklingError, TypeError) as error:
            self.refusal = str(error)

    def _digest(self, data: bytes) -> bytes:
        """Of the key too: a file that was given another name is not that kernel."""
        return hashlib.sha256(self._key.encode() + data).digest()


def _make(path: Path) -> None:
    """Make the folder, and those above it, for this user alone whatever the umask is."""
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The folder as a descriptor, so that what was checked is what is used.

    Raises:
        OSError: If it is not there, or if others may write into it.
    """
    place = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _check_ours(place)
        yield place
    finally:
        os.close(place)


def _check_ours(descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise PermissionError(0, f"owned by another user, {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(found.st_mode):o}"
        raise PermissionError(0, f"other users may write to it, mode {mode}: chmod 700 it, or delete it")


def _read(place: int, name: str) -> bytes:
    # Whatever has that name, a link or a pipe say: it is neither followed nor waited for.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    with os.fdopen(descriptor, "rb") as file:
        _check_ours(descriptor)
        return file.read()


def _write(place: int, name: str, data: bytes) -> None:
    draft = f"{name}.{os.getpid()}.{threading.get_ident()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place)
        raise


def _locked(place: int, name: str) -> int:
    """The descriptor of a file that is locked until it is closed, by the end of this process at the latest.

    Raises:
        OSError: If there can be no lock, or another process has held it for too long.
    """
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=place)
        try:
            # A child that was forked during a compilation keeps its lock; but the name is gone after that.
            while _is_named(descriptor, name, place):
                if _locks(descriptor) and _is_named(descriptor, name, place):
                    return descriptor
                if time.monotonic() > until:
                    raise TimeoutError
                time.sleep(LOOK)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was unlinked meanwhile: another file may have the name now


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(descriptor: int, name: str, place: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=place, follow_symlinks=False))
    except FileNotFoundError:
        return False
