"""The launcher: the process between a parent and its workers, which starts and buries them.

    parent --(start, kill)--> launcher --(fork, or fork and exec)--> worker
    parent <--(who died, how)-- launcher

Guarantees
  - It has one thread, so forking it is safe whatever threads the parent has.
  - It ends when the parent does, however that ends, and the kernel ends every worker when the launcher ends:
    a worker outlives its parent by no more than that takes.
  - It reaps every worker and says how it died; nobody becomes a zombie. A worker that cannot be started has
    died at once, and nobody else is the worse for it.
  - A channel belongs to one vec. When it is closed, the workers of that vec are killed.

The parent's end is in `_launching.py`.
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

from shoal.processes.messages import Deadline, Gone, Late, Packets

PATIENCE = 1.0  # seconds for a message of a few bytes to somebody who does not read

NewWorker = Callable[[int, int], Any]
"""What a new process does: given its line's descriptor and the launcher's pid, it does not return."""


@dataclass
class _Channel:
    line: Packets
    workers: dict[int, int] = field(default_factory=dict)  # by their token: pid
    buried: dict[int, int | str | None] = field(default_factory=dict)  # and the others: exit code


class Launcher:
    """Serves one parent until it hangs up or dies.

    Args:
        parent: Its pid.
        become_worker: Run in each new process.
    """

    def __init__(self, parent: int, become_worker: NewWorker) -> None:
        self._become_worker = become_worker
        self._handlers: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()
        self._channels: list[_Channel] = []
        self._listening = False
        watch = os.pidfd_open(parent)
        if os.getppid() != parent:
            os._exit(1)
        self._watch(watch, self._end)

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]

    def listen(self, line: socket.socket) -> None:
        """Take channels from the parent; end when it hangs up."""
        channels = Packets(line)

        def take() -> None:
            try:
                _, descriptors = channels.receive(Deadline(PATIENCE), num_descriptors=1)
            except (Gone, Late):
                self._end()
            if descriptors:  # else there was no room for it, and the parent finds the channel closed
                self.open(socket.socket(fileno=descriptors[0]))

        self._listening = True
        self._watch(channels.fileno(), take)

    def open(self, line: socket.socket) -> None:
        """Serve the vec at the other end of this line."""
        channel = _Channel(Packets(line))
        self._channels.append(channel)
        self._watch(channel.line.fileno(), lambda: self._serve(channel))

    def run(self) -> None:
        """For ever."""
        while True:
            for descriptor, _ in self._poll.poll():
                handler = self._handlers.get(descriptor)
                if handler is not None:  # one before it may have closed it
                    handler()

    def _serve(self, channel: _Channel) -> None:
        try:
            (verb, token), descriptors = channel.line.receive(Deadline(PATIENCE), num_descriptors=3)
        except (Gone, Late):
            self._close(channel)
            return
        if verb == "kill":
            if token in channel.workers:
                os.kill(channel.workers[token], signal.SIGKILL)  # not reaped yet, so the pid is still its own
            else:
                # Again: the parent was interrupted when it was told.
                self._tell(channel, token, channel.buried.get(token))
            return
        try:
            self._start(channel, token, descriptors)
        except OSError as error:  # no process, memory or descriptor to be had
            self._tell(channel, token, str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _end(self) -> NoReturn:
        """Leave nobody behind, not even a zombie."""
        pids = [pid for channel in self._channels for pid in channel.workers.values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _close(self, channel: _Channel) -> None:
        if not self._listening:
            self._end()
        self._forget(channel.line.fileno())
        channel.line.close()
        self._channels.remove(channel)
        for pid in channel.workers.values():
            os.kill(pid, signal.SIGKILL)

    def _start(self, channel: _Channel, token: int, descriptors: list[int]) -> None:
        if len(descriptors) != 3:
            raise OSError("too many open files")
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._leave_to_worker(descriptors[1:])
                self._become_worker(descriptors[0], launcher)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        channel.workers[token] = pid
        self._watch(watch, lambda: self._bury(channel, token, watch))

    def _leave_to_worker(self, streams: list[int]) -> None:
        """In a new process: let go of what is the launcher's."""
        for descriptor in self._handlers:
            os.close(descriptor)
        for number, descriptor in enumerate(streams, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _bury(self, channel: _Channel, token: int, watch: int) -> None:
        self._forget(watch)
        os.close(watch)
        code: int | None = None
        with suppress(ChildProcessError):  # somebody else has reaped it
            _, status = os.waitpid(channel.workers.pop(token), 0)
            code = os.waitstatus_to_exitcode(status)
        self._tell(channel, token, code)

    def _tell(self, channel: _Channel, token: int, code: int | str | None) -> None:
        channel.buried[token] = code
        if channel in self._channels:
            with suppress(Gone, Late):
                channel.line.send((token, code), Deadline(PATIENCE))


def _own_signals() -> None:
    """Ctrl-C is the parent's to handle, and children are ours to bury, whatever was inherited."""
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
    """The launcher's life, in a Python of its own."""
    _own_signals()
    from shoal.processes import worker  # what all workers need is imported once, before any is forked

    def exec_worker(line: int, launcher: int) -> None:
        os.set_inheritable(line, True)
        os.execv(sys.executable, python_command("worker", f"main({line}, {launcher})"))

    launcher = Launcher(parent, exec_worker if spawn else worker.main)
    launcher.listen(socket.socket(fileno=descriptor))
    # What is there now stays: workers share its pages as long as nobody writes to them.
    gc.collect()
    gc.freeze()
    launcher.run()


def python_command(module: str, call: str) -> list[str]:
    """A new Python with this one's flags and path that makes a call of a module beside this one."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = f"import sys; sys.path[:] = {sys.path!r}"
    return [sys.executable, *flags, "-c", f"{path}; from shoal.processes import {module}; {module}.{call}"]


def main_of_fork(line: socket.socket, parent: int, become_worker: NewWorker) -> None:
    """The launcher's life, as a fork of the parent that serves one vec."""
    _own_signals()
    launcher = Launcher(parent, become_worker)
    launcher.open(line)
    launcher.run()
