"""The disk cache of kernels. A file is named by a hash of all inputs, so a cached kernel is never outdated.

Guarantees
  - A file is read only if this user owns it and its folder, and no other user may write to either, because
    its content is unpickled and run.
  - A file is used only if it is complete. It begins with a digest of its key and of the data that follows.
    The digest is compared before anything is unpickled. A file with a wrong digest counts as missing.
  - Files are replaced atomically: a name never stands for a half-written file.
  - While a process compiles a kernel, other processes that want the same kernel wait for it. If that process
    is killed, another one goes on.
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
from numba.core.environment import Environment
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

DIGEST = hashlib.sha256().digest_size
PATIENCE = 300.0  # seconds to wait for another process that compiles; it may have been stopped
# The symbol by which a recursive function calls itself: Numba resolves it only when it compiles.
UNRESOLVED = b".numba.unresolved$"
LOOK = 0.02  # seconds between two attempts to take a lock


def folder() -> Path:
    """Return the cache folder: ``$SHOAL_CACHE_DIR``, or ``shoal`` in the user's cache folder."""
    if own := os.environ.get("SHOAL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "shoal"


def key_of(fingerprint: str, *, checked: bool) -> str:
    """Return the cache key of a kernel, for this machine and the installed versions."""
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
    """Return a hash of the files of this folder whose code is part of every kernel."""
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
    """The cache entry of one kernel, with the methods that Numba calls. Leaving its context frees its lock.

    Args:
        key: The key of the kernel.
        check: A function that raises if the compiled kernel must not be stored.

    Attributes:
        refusal: The reason why the kernel was not stored on disk; "" if it was stored.
    """

    def __init__(self, key: str, check: Callable[[], None]) -> None:
        self._key, self._name, self._check = key, f"{key}.kernel", check
        self._lock: int | None = None
        self.refusal = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            # Unlink while locked: waiting processes see that the name is gone or belongs to another file.
            with suppress(OSError), _opened(folder()) as place:
                os.unlink(f"{self._key}.lock", dir_fd=place)
            os.close(self._lock)
            self._lock = None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load the kernel; return None if it is missing, so that Numba compiles it.

        In that case this process holds the lock until `__exit__`, if the folder is writable.
        """
        context.refresh()
        found = self._load(context)
        if found is not None:
            return found
        with suppress(OSError):  # without a writable folder there is no lock
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
        except Exception:  # missing, not safe, or it needs a module that is missing: compile again
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store the kernel, if the folder is writable and the code has no pointers into this process."""
        self._check()
        if compiled.library.has_dynamic_globals:
            self.refusal = "it points into the memory of this process"
            return
        try:
            data = dumps(_portable(compiled._reduce()))
            if UNRESOLVED in data:
                self.refusal = "a function of it calls itself"
                return
            _make(folder())
            with _opened(folder()) as place:
                _write(place, self._name, self._digest(data) + data)
        except OSError as error:
            self.refusal = f"{folder()}: {error.strerror or error}"
        except (pickle.PicklingError, TypeError) as error:
            self.refusal = str(error)

    def _digest(self, data: bytes) -> bytes:
        """Return the digest of key and data. The key is included so that a renamed file does not match."""
        return hashlib.sha256(self._key.encode() + data).digest()


def _portable(part: Any) -> Any:
    """Let no part of a kernel name the env's module, which another process may not be able to import.

    Numba imports that module for the globals of an environment. A kernel reads only its constants.
    """
    if isinstance(part, tuple):
        return tuple(map(_portable, part))
    if not isinstance(part, Environment):
        return part
    copy = Environment({"__name__": __name__})
    copy.consts[:] = part.consts
    copy.env_name = part.env_name
    return copy


def _make(path: Path) -> None:
    """Create the folder and its parents with access for this user only, whatever the umask is."""
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the folder as a descriptor, so that the folder that was checked is the one that is used.

    Raises:
        OSError: If the folder is missing, or other users may write into it.
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
    # Do not follow a symbolic link, and do not block on a pipe, if one has this name.
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
    """Lock a file and return its descriptor. Closing the descriptor, or the end of the process, unlocks it.

    Raises:
        OSError: If the file cannot be locked, or another process has held the lock for too long.
    """
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=place)
        try:
            # A child that was forked during a compilation keeps the lock, but the name is unlinked later.
            while _is_named(descriptor, name, place):
                if _locks(descriptor) and _is_named(descriptor, name, place):
                    return descriptor
                if time.monotonic() > until:
                    raise TimeoutError
                time.sleep(LOOK)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was unlinked in the meantime: another file may have the name now


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
