"""The parent's side of the launcher: start and kill workers, and read the reports of their ends."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, WorkerError
from shoal.limits import obtaining
from shoal.processes import launcher as launcher_process
from shoal.processes.launcher import SMALL_MESSAGE_TIMEOUT
from shoal.processes.messages import (
    Connection,
    ConnectionClosed,
    Deadline,
    DeadlinePassed,
    PacketSocket,
    dumps,
    dumps_by_value,
)
from shoal.processes.parent_settings import ONE_THREAD

METHODS = ("forkserver", "fork", "spawn")

REMEDY = "Use fewer workers, or shoal.Serial"


class Channel:
    """The connection of one vec to the launcher.

    Args:
        end: A socket of a packet pair; the launcher has the other one.
        dumps: The function that pickles messages to the workers.
        signal_launcher: Sends a signal to the launcher, if it lives.
        then: Called after the channel has been closed.
    """

    def __init__(
        self,
        end: socket.socket,
        dumps: Callable[[Any], bytes],
        signal_launcher: Callable[[int], None],
        then: Callable[[], Any] = lambda: None,
    ) -> None:
        self._socket, self.dumps = PacketSocket(end), dumps
        self._signal_launcher, self._then = signal_launcher, then
        self._owner = os.getpid()

    def fileno(self) -> int:
        """Return the descriptor. It becomes readable when the end of a worker is reported."""
        return self._socket.fileno()

    def start(self, token: int) -> Connection:
        """Start a worker and return the connection to it. Its end will be reported under this token.

        Raises:
            ConnectionClosed: If the launcher has ended.
            DeadlinePassed: If the launcher does not answer.
            OutOfResources: If no descriptor is left.
        """
        with obtaining("a connection to a worker", REMEDY):
            ours, theirs = socket.socketpair()
            try:
                with theirs, Path(os.devnull).open("wb") as null:
                    streams = [_stream_or(number, null.fileno()) for number in (1, 2)]
                    self.wake()
                    deadline = Deadline(SMALL_MESSAGE_TIMEOUT)
                    self._socket.send(("start", token), deadline, theirs.fileno(), *streams)
            except BaseException:
                ours.close()
                raise
        return Connection(ours, self.dumps)

    def kill(self, token: int) -> None:
        """Kill a worker, if it lives."""
        self.wake()
        with suppress(ConnectionClosed, DeadlinePassed):
            self._socket.send(("kill", token), Deadline(SMALL_MESSAGE_TIMEOUT))

    def wake(self) -> None:
        """Continue the launcher, if it was stopped."""
        self._signal_launcher(signal.SIGCONT)

    def next_end(self, deadline: Deadline) -> tuple[int, int | str | None]:
        """Wait for the next report of the end of a worker; return the worker's token and exit code.

        The exit code is negative if a signal killed the worker, and a text if it could not be started.

        Raises:
            DeadlinePassed: If no worker ends before the deadline.
            ConnectionClosed: If the launcher has ended; all workers have ended with it.
        """
        (token, code), _ = self._socket.receive(deadline)
        return token, code

    def close(self) -> None:
        """Close the channel, which kills the workers of the vec. In a fork, close the fork's copy only."""
        if os.getpid() != self._owner:
            self._socket.close()
            return
        self._socket.disconnect()
        then, self._then = self._then, lambda: None
        then()


def _stream_or(number: int, fallback: int) -> int:
    """Return the descriptor of a standard stream, or `fallback` if the stream is closed."""
    try:
        os.fstat(number)
    except OSError:
        return fallback
    return number


def open_channel(start_method: str, become_worker: Callable[[int, int], Any]) -> Channel:
    """Open a channel to a launcher whose workers start by this method.

    Args:
        start_method: "forkserver", "fork" or "spawn".
        become_worker: The function that a new worker runs; only "fork" uses it.
    """
    if start_method == "fork":
        return _fork(become_worker)
    with _lock:
        key = (os.getpid(), start_method)
        launcher = _launchers.get(key)
        if launcher is None or not launcher.alive():
            if launcher is not None:
                launcher.close()  # it has died; only its socket is left
            launcher = _launchers[key] = _ExecutedLauncher(spawn=start_method == "spawn")
        return launcher.open()


def check_start_method(method: str | None) -> str:
    """Return the start method; None stands for the default.

    Raises:
        ArgumentError: If there is no such method.
    """
    if method is None:
        return METHODS[0]
    if method not in METHODS:
        raise ArgumentError(f"start_method: expected one of {', '.join(METHODS)}, got {method!r}")
    return method


def _fork(become_worker: Callable[[int, int], Any]) -> Channel:
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise both processes would write the buffered text
    with obtaining("the process that starts workers", REMEDY), ExitStack() as undo:
        ours, theirs = PacketSocket.pair()
        undo.callback(ours.close)
        undo.callback(theirs.close)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                launcher_process.main_of_fork(theirs, parent, become_worker)
            finally:
                os._exit(1)
        undo.pop_all()
    theirs.close()
    launcher = _ForkedLauncher(pid)
    return Channel(ours, dumps, launcher.send_signal, lambda: _await_end(launcher))


class _ForkedLauncher:
    """A launcher that is a fork of this process and serves one vec."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, False

    def alive(self) -> bool:
        """Return whether the launcher is running; reap it if it has ended."""
        if not self._ended:
            try:
                self._ended = os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
            except ChildProcessError:  # the system reaps children by itself if SIGCHLD is ignored
                self._ended = True
        return not self._ended

    def send_signal(self, number: int) -> None:
        """Send a signal to the launcher, unless it has ended."""
        if self.alive():
            os.kill(self._pid, number)


class _ExecutedLauncher:
    """A launcher in its own Python, which serves all vecs of this process."""

    def __init__(self, *, spawn: bool) -> None:
        self._owner = os.getpid()
        with obtaining("the process that starts workers", REMEDY), ExitStack() as undo:
            ours, theirs = PacketSocket.pair()
            undo.callback(ours.close)
            call = f"main({theirs.fileno()}, {self._owner}, spawn={spawn})"
            # Ctrl-C reaches all processes of a terminal. The new one starts with SIGINT blocked, until it can
            # ignore it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        launcher_process.python_command("launcher", call),
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env={**ONE_THREAD, **os.environ},
                    )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            undo.pop_all()
        self._socket = PacketSocket(ours)
        atexit.register(self.close)

    def alive(self) -> bool:
        """Return whether the launcher is running."""
        return self._process.poll() is None

    def open(self) -> Channel:
        """Open a channel to the launcher."""
        with obtaining("a connection to the process that starts workers", REMEDY):
            ours, theirs = PacketSocket.pair()
        with theirs:
            try:
                self.send_signal(signal.SIGCONT)  # it may have been stopped
                self._raise_file_limit()
                self._socket.send("open", Deadline(SMALL_MESSAGE_TIMEOUT), theirs.fileno())
            except (ConnectionClosed, DeadlinePassed):
                ours.close()
                raise WorkerError("the process that starts workers has ended, or does not answer") from None
        return Channel(ours, dumps_by_value, self.send_signal)

    def _raise_file_limit(self) -> None:
        """Raise the launcher's limit of open files to that of this process, which may have been raised."""
        import resource  # not every system has it

        with suppress(OSError):  # the launcher has just ended
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft > resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)[0]:
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def send_signal(self, number: int) -> None:
        """Send a signal to the launcher, unless it has ended."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End the launcher, which kills all its workers. In a fork of the owner, do nothing."""
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            self._socket.disconnect()
            _await_end(self)


def _await_end(launcher: _ExecutedLauncher | _ForkedLauncher) -> None:
    """Wait a short time for a launcher whose socket has been closed; kill it if it does not end."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        launcher.send_signal(number)
        deadline, pause = Deadline(SMALL_MESSAGE_TIMEOUT), 1e-4
        while launcher.alive() and deadline.left():
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


# By the pid of their owner: a fork of it must not use them, and must not drop its references to them.
_launchers: dict[tuple[int, str], _ExecutedLauncher] = {}
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock at the time of the fork
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
