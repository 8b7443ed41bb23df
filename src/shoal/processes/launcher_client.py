"""The parent's end of the launcher: how a pool gets its processes, and hears of their deaths."""

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
from shoal.processes.launcher import PATIENCE
from shoal.processes.messages import Connection, Deadline, Gone, Late, Packets, dumps, dumps_by_value

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


NO_MORE = "Use fewer workers, or shoal.Serial"


class Channel:
    """One vec's line to the launcher.

    Args:
        line: The line.
        dumps: How to pickle what is sent to its workers.
        signal_launcher: Sends a signal to the launcher, if it lives.
        then: Called when it has been closed.
    """

    def __init__(
        self,
        line: socket.socket,
        dumps: Callable[[Any], bytes],
        signal_launcher: Callable[[int], None],
        then: Callable[[], Any] = lambda: None,
    ) -> None:
        self._line, self.dumps = Packets(line), dumps
        self._signal_launcher, self._then = signal_launcher, then
        self._owner = os.getpid()

    def fileno(self) -> int:
        """The descriptor; it can be read when somebody has died."""
        return self._line.fileno()

    def start(self, token: int) -> Connection:
        """Start a worker; its death will be told under this token. Returns the line to it.

        Raises:
            Gone: If the launcher is gone.
            OutOfResources: If there is no descriptor left.
        """
        with obtaining("a line to a worker", NO_MORE):
            ours, theirs = socket.socketpair()
            try:
                with theirs, Path(os.devnull).open("wb") as nowhere:
                    streams = [_descriptor(stream, nowhere.fileno()) for stream in (1, 2)]
                    self.wake()
                    self._line.send(("start", token), Deadline(PATIENCE), theirs.fileno(), *streams)
            except BaseException:
                ours.close()
                raise
        return Connection(ours, self.dumps)

    def kill(self, token: int) -> None:
        """Kill a worker, if it lives."""
        self.wake()
        with suppress(Gone, Late):
            self._line.send(("kill", token), Deadline(PATIENCE))

    def wake(self) -> None:
        """Have the launcher go on, if it was stopped: it is needed now."""
        self._signal_launcher(signal.SIGCONT)

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
            if launcher is not None:
                launcher.close()  # it has died; its line is left
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
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else what is in there would be written twice
    with obtaining("the process that starts workers", NO_MORE), ExitStack() as undo:
        ours, theirs = Packets.pair()
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
    launcher = _Forked(pid)
    return Channel(ours, dumps, launcher.send_signal, lambda: _await_end(launcher))


class _Forked:
    """A launcher that is a fork of this process, and serves one vec."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, False

    def alive(self) -> bool:
        """Whether it has not ended; if it has, it is reaped."""
        if not self._ended:
            try:
                self._ended = os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
            except ChildProcessError:  # where children reap themselves
                self._ended = True
        return not self._ended

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.alive():
            os.kill(self._pid, number)


class _Executed:
    """A launcher in a Python of its own, which serves every vec of this process."""

    def __init__(self, *, spawn: bool) -> None:
        self._owner = os.getpid()
        with obtaining("the process that starts workers", NO_MORE), ExitStack() as undo:
            ours, theirs = Packets.pair()
            undo.callback(ours.close)
            call = f"main({theirs.fileno()}, {self._owner}, spawn={spawn})"
            # Ctrl-C reaches all processes of a terminal: the new one is deaf to it until it can ignore it.
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
        self._line = Packets(ours)
        atexit.register(self.close)

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def open(self) -> Channel:
        """A channel to it."""
        with obtaining("a line to the process that starts workers", NO_MORE):
            ours, theirs = Packets.pair()
        with theirs:
            try:
                self.send_signal(signal.SIGCONT)  # it may have been stopped
                self._allow_as_many_files()
                self._line.send("open", Deadline(PATIENCE), theirs.fileno())
            except (Gone, Late):
                ours.close()
                raise WorkerError("the process that starts workers has ended, or does not answer") from None
        return Channel(ours, dumps_by_value, self.send_signal)

    def _allow_as_many_files(self) -> None:
        """Raise its limit of open files to that of this process, which may have been raised since."""
        import resource  # which there is not everywhere

        with suppress(OSError):  # it has just ended
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft > resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)[0]:
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End it and all workers that are left, unless this is a fork of the process they belong to."""
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            self._line.hang_up()
            _await_end(self)


def _await_end(launcher: _Executed | _Forked) -> None:
    """Wait for a launcher that has been told to end. If it does not it is killed; never wait for long."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        launcher.send_signal(number)
        deadline, pause = Deadline(PATIENCE), 1e-4
        while launcher.alive() and deadline.left():
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


# By the process they belong to: a fork of it must not use them, nor lose its references to them.
_launchers: dict[tuple[int, str], _Executed] = {}
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may hold it at that moment
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
