"""The parent's end of the launcher: how a pool gets its processes, and hears of their deaths."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, WorkerError
from shoal.vector import _launcher
from shoal.vector._launcher import PATIENCE
from shoal.vector._mail import Deadline, Gone, Late, Mail, Packets, dumps, dumps_by_value

METHODS = ("forkserver", "fork", "spawn")

# A worker has one core: libraries that would start a thread for every core are told so, unless the user has
# told them something else.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}


class Channel:
    """One vec's line to the launcher.

    Args:
        line: The line.
        dumps: How to pickle what is sent to its workers.
        then: Called when it has been closed.
    """

    def __init__(
        self,
        line: socket.socket,
        dumps: Callable[[Any], bytes],
        then: Callable[[], Any] = lambda: None,
    ) -> None:
        self._line, self.dumps, self._then = Packets(line), dumps, then
        self._owner = os.getpid()

    def fileno(self) -> int:
        """The descriptor; it can be read when somebody has died."""
        return self._line.fileno()

    def start(self, token: int) -> Mail:
        """Start a worker; its death will be told under this token. Returns the line to it.

        Raises:
            Gone: If the launcher is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, Path(os.devnull).open("wb") as nowhere:
                streams = [_descriptor(stream, nowhere.fileno()) for stream in (1, 2)]
                self._line.send(("start", token), Deadline(PATIENCE), theirs.fileno(), *streams)
        except BaseException:
            ours.close()
            raise
        return Mail(ours, self.dumps)

    def kill(self, token: int) -> None:
        """Kill a worker, if it lives."""
        with suppress(Gone, Late):
            self._line.send(("kill", token), Deadline(PATIENCE))

    def death(self, deadline: Deadline) -> tuple[int, int | str | None]:
        """Who died, and with which exit code: minus the signal, if it was one; a text, if it never lived.

        Raises:
            Late: If nobody has died in time.
            Gone: If the launcher itself is gone, and all workers with it.
        """
        (token, code), _ = self._line.receive(deadline)
        return token, code

    def close(self) -> None:
        """Kill the workers that are left, unless this is a fork of the process they belong to."""
        if os.getpid() != self._owner:
            self._line.close()
            return
        self._line.hang_up()
        then, self._then = self._then, lambda: None
        then()


def _descriptor(stream: int, instead: int) -> int:
    """The standard stream, if it is open."""
    try:
        os.fstat(stream)
    except OSError:
        return instead
    return stream


def open_channel(start_method: str, become_worker: Callable[[int, int], Any]) -> Channel:
    """A channel to a launcher whose workers start by this method.

    Args:
        start_method: "forkserver", "fork" or "spawn".
        become_worker: For "fork": what a new worker does.
    """
    if start_method == "fork":
        return _fork(become_worker)
    with _lock:
        key = (os.getpid(), start_method)
        launcher = _launchers.get(key)
        if launcher is None or not launcher.alive():
            launcher = _launchers[key] = _Executed(spawn=start_method == "spawn")
        return launcher.open()


def check_start_method(method: str | None) -> str:
    """The method, or the default.

    Raises:
        ArgumentError: If there is no such method.
    """
    if method is None:
        return METHODS[0]
    if method not in METHODS:
        raise ArgumentError(f"start_method: expected one of {', '.join(METHODS)}, got {method!r}")
    return method


def _fork(become_worker: Callable[[int, int], Any]) -> Channel:
    ours, theirs = Packets.pair()
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else what is in there would be written twice
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _launcher.main_of_fork(theirs, parent, become_worker)
        finally:
            os._exit(1)
    theirs.close()

    def reap() -> None:
        with suppress(ChildProcessError):  # where children reap themselves
            os.waitpid(pid, 0)

    return Channel(ours, dumps, reap)


class _Executed:
    """A launcher in a Python of its own, which serves every vec of this process."""

    def __init__(self, *, spawn: bool) -> None:
        ours, theirs = Packets.pair()
        self._owner = os.getpid()
        self._line = Packets(ours)
        call = f"main({theirs.fileno()}, {self._owner}, spawn={spawn})"
        # Ctrl-C reaches all processes of a terminal: the new one is deaf to it until it can ignore it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with theirs:
                self._process = subprocess.Popen(
                    _launcher.python_command("_launcher", call),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**ONE_THREAD, **os.environ},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        atexit.register(self.close)

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def open(self) -> Channel:
        """A channel to it."""
        ours, theirs = Packets.pair()
        with theirs:
            try:
                self._line.send("open", Deadline(None), theirs.fileno())
            except Gone:
                ours.close()
                raise WorkerError(
                    "the process that starts workers has ended as soon as it was made"
                ) from None
        return Channel(ours, dumps_by_value)

    def close(self) -> None:
        """End it and all workers that are left, unless this is a fork of the process they belong to."""
        if os.getpid() == self._owner:
            self._line.hang_up()
            self._process.wait()


# By the process they belong to: a fork of it must not use them, nor lose its references to them.
_launchers: dict[tuple[int, str], _Executed] = {}
_lock = threading.Lock()


def _forget_the_lock() -> None:
    global _lock
    _lock = threading.Lock()  # the other one may be held by a thread that has not followed into this process


os.register_at_fork(after_in_child=_forget_the_lock)
