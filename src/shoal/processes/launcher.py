"""The launcher: the process between a parent and its workers. It starts, kills and reaps workers.

    parent --(start, kill)--> launcher --(fork, or fork and exec)--> worker
    parent <--(token and exit code of a worker that ended)-- launcher

Guarantees
  - It has one thread. So it can fork safely, even if the parent has several threads.
  - It ends when the parent ends, in any way. The kernel kills every worker when the launcher ends. So workers
    do not outlive their parent.
  - It reaps every worker and reports its exit code, so no worker becomes a zombie. If a worker cannot be
    started, that is reported as its end, and other workers are not affected.
  - A channel belongs to one vec. When it is closed, the launcher kills the workers of that vec.

The parent's side is `launcher_client.py`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from shoal.processes.messages import ConnectionClosed, Deadline, DeadlinePassed, PacketSocket

SMALL_MESSAGE_TIMEOUT = 1.0  # seconds to send or receive a message of a few bytes

NewWorker = Callable[[int, int], Any]
"""The function that a new process runs, with the descriptor of its connection and the pid of the launcher. It
does not return."""


@dataclass
class _Channel:
    socket: PacketSocket
    pids: dict[int, int] = field(default_factory=dict)  # by token: workers that have not been reaped
    exit_codes: dict[int, int | str | None] = field(default_factory=dict)  # by token: workers that have ended


class Launcher:
    """Serve one parent until it closes its channels or dies.

    Args:
        parent: The pid of the parent.
        become_worker: The function that each new process runs.
    """

    def __init__(self, parent: int, become_worker: NewWorker) -> None:
        self._become_worker = become_worker
        self._handlers: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()
        self._channels: list[_Channel] = []
        self._listening = False
        pidfd = os.pidfd_open(parent)
        if os.getppid() != parent:
            os._exit(1)
        self._watch(pidfd, self._end)

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]

    def listen(self, end: socket.socket) -> None:
        """Accept channels that the parent sends over this socket; end when the parent closes it."""
        requests = PacketSocket(end)

        def accept() -> None:
            try:
                _, descriptors = requests.receive(Deadline(SMALL_MESSAGE_TIMEOUT), num_descriptors=1)
            except (ConnectionClosed, DeadlinePassed):
                self._end()
            if descriptors:  # otherwise no descriptor was free, and the parent finds the channel closed
                self.open(socket.socket(fileno=descriptors[0]))

        self._listening = True
        self._watch(requests.fileno(), accept)

    def open(self, end: socket.socket) -> None:
        """Serve the vec at the other end of this socket."""
        channel = _Channel(PacketSocket(end))
        self._channels.append(channel)
        self._watch(channel.socket.fileno(), lambda: self._serve(channel))

    def run(self) -> None:
        """Handle events until this process ends."""
        while True:
            for descriptor, _ in self._poll.poll():
                handler = self._handlers.get(descriptor)
                if handler is not None:  # an earlier handler may have closed this descriptor
                    handler()

    def _serve(self, channel: _Channel) -> None:
        try:
            deadline = Deadline(SMALL_MESSAGE_TIMEOUT)
            (verb, token), descriptors = channel.socket.receive(deadline, num_descriptors=3)
        except (ConnectionClosed, DeadlinePassed):
            self._close(channel)
            return
        if verb == "kill":
            if token in channel.pids:
                os.kill(channel.pids[token], signal.SIGKILL)  # not reaped yet, so the pid is still its own
            else:
                # Report again: the parent was interrupted when it read the first report.
                self._report(channel, token, channel.exit_codes.get(token))
            return
        try:
            self._start(channel, token, descriptors)
        except OSError as error:  # no process, memory or descriptor is available
            self._report(channel, token, str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _end(self) -> NoReturn:
        """Kill and reap all workers, and exit."""
        pids = [pid for channel in self._channels for pid in channel.pids.values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _close(self, channel: _Channel) -> None:
        if not self._listening:
            self._end()
        self._unwatch(channel.socket.fileno())
        channel.socket.close()
        self._channels.remove(channel)
        for pid in channel.pids.values():
            os.kill(pid, signal.SIGKILL)

    def _start(self, channel: _Channel, token: int, descriptors: list[int]) -> None:
        if len(descriptors) != 3:
            raise OSError("too many open files")
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._prepare_worker(descriptors[1:])
                self._become_worker(descriptors[0], launcher)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        channel.pids[token] = pid
        self._watch(pidfd, lambda: self._reap(channel, token, pidfd))

    def _prepare_worker(self, streams: list[int]) -> None:
        """Close the descriptors of the launcher in a new process, and set its stdout and stderr."""
        for descriptor in self._handlers:
            os.close(descriptor)
        for number, descriptor in enumerate(streams, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _reap(self, channel: _Channel, token: int, pidfd: int) -> None:
        self._unwatch(pidfd)
        os.close(pidfd)
        code: int | None = None
        with suppress(ChildProcessError):  # other code in this process has reaped it
            _, status = os.waitpid(channel.pids.pop(token), 0)
            code = os.waitstatus_to_exitcode(status)
        self._report(channel, token, code)

    def _report(self, channel: _Channel, token: int, code: int | str | None) -> None:
        """Report the end of a worker to the parent."""
        channel.exit_codes[token] = code
        if channel in self._channels:
            with suppress(ConnectionClosed, DeadlinePassed):
                channel.socket.send((token, code), Deadline(SMALL_MESSAGE_TIMEOUT))


def _reset_signals() -> None:
    """Ignore Ctrl-C, which the parent handles, and restore the default action of other signals.

    SIGCHLD must have its default action, because the launcher reaps its children.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (
        signal.SIGCHLD,
        signal.SIGTERM,
        signal.SIGALRM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main(descriptor: int, parent: int, *, spawn: bool) -> None:
    """Run the launcher in its own Python process.

    Args:
        descriptor: The descriptor of the socket over which the parent sends channels.
        parent: The pid of the parent.
        spawn: Whether each worker is a new Python process, and not a fork of the launcher.
    """
    _reset_signals()
    from shoal.processes import worker  # import the modules of all workers once, before any is forked

    def exec_worker(connection: int, launcher: int) -> None:
        os.set_inheritable(connection, True)
        os.execv(sys.executable, python_command("worker", f"main({connection}, {launcher})"))

    launcher = Launcher(parent, exec_worker if spawn else worker.main)
    launcher.listen(socket.socket(fileno=descriptor))
    # Exclude existing objects from garbage collection: workers share their pages until one is written.
    gc.collect()
    gc.freeze()
    launcher.run()


def python_command(module: str, call: str) -> list[str]:
    """Return the command of a new Python, with the flags and path of this one, that runs a call of a module.

    Args:
        module: A module of `shoal.processes`.
        call: A call of a function of the module, as Python source.
    """
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = f"import sys; sys.path[:] = {sys.path!r}"
    return [sys.executable, *flags, "-c", f"{path}; from shoal.processes import {module}; {module}.{call}"]


def main_of_fork(end: socket.socket, parent: int, become_worker: NewWorker) -> None:
    """Run the launcher in a fork of the parent, for the vec at the other end of this socket."""
    _reset_signals()
    launcher = Launcher(parent, become_worker)
    launcher.open(end)
    launcher.run()
