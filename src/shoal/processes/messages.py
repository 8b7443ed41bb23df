"""Messages between the parent and a worker: everything that is not rows, and never on the path of a step.

Sending and receiving wait no longer than they are told, and find out if the other side has gone.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import cloudpickle

HEADER = struct.Struct("=Q")
LOOK_AROUND = 0.1  # seconds
LONGEST_GAP = 2 * LOOK_AROUND  # as much again, for a busy machine

Key = TypeVar("Key")


class Gone(Exception):
    """The other side has closed its end, or died."""


class Late(Exception):
    """The other side has not answered in time."""


class HasDescriptor(Protocol):
    """What `first_to_speak` can wait for."""

    def fileno(self) -> int:
        """The descriptor."""


def dumps_by_value(message: Any) -> bytes:
    """A pickle for a process whose ``__main__`` is another: what is defined there goes by value."""
    return cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # type: ignore[no-any-return]


def dumps(message: Any) -> bytes:
    """A pickle for a process that knows what this one knows; else by value. Faster, in the usual case."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever an object's own way of pickling itself raises
        return dumps_by_value(message)


class Deadline:
    """The end of a wait, in time that this process has lived.

    While this process is stopped, by Ctrl-Z say, time passes for others only. A wait looks at its deadline
    every `LOOK_AROUND` seconds: if two looks lie further apart, only `LONGEST_GAP` of that time counts.

    Args:
        seconds: From now; None for never.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left, self._looked = seconds, time.monotonic()

    def left(self) -> float | None:
        """Seconds, 0 if it has passed; None for ever."""
        if self._left is not None:
            now = time.monotonic()
            self._left = max(0.0, self._left - min(now - self._looked, LONGEST_GAP))
            self._looked = now
        return self._left

    def milliseconds(self) -> float:
        """How long to wait before the next look, for `poll`."""
        left = self.left()
        return 1000 * (LOOK_AROUND if left is None else min(left, LOOK_AROUND))


# Held here until they are closed. If a forgotten vec is collected in a cycle, say with the exception that it
# raised, Python would else be free to close them before it, which has still to end its workers by them.
_in_use: set[socket.socket] = set()


class Line:
    """One end of a line between two processes.

    Args:
        line: A socket of a pair.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        _in_use.add(line)
        line.setblocking(False)

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._line.fileno()

    def hang_up(self) -> None:
        """End the line for both sides, though forks of this process may hold a copy of this end."""
        self.shut_down()
        self.close()

    def shut_down(self) -> None:
        """End the line for both sides. The descriptor stays: another thread may still wait for it."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of this end."""
        _in_use.discard(self._line)
        with suppress(OSError):  # an env in this process may have closed its descriptor
            self._line.close()

    def _send(self, part: memoryview | bytes, deadline: Deadline, descriptors: Sequence[int]) -> int:
        while True:
            self._await(select.POLLOUT, deadline)
            try:
                if descriptors:
                    return socket.send_fds(self._line, [part], descriptors)
                return self._line.send(part)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone from error

    def _receive(
        self, size: int, deadline: Deadline, dead: Callable[[], bool], num_descriptors: int
    ) -> tuple[bytes, list[int]]:
        while True:
            self._await(select.POLLIN, deadline, dead)
            try:
                received, descriptors, *_ = socket.recv_fds(
                    self._line, size, num_descriptors, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone from error
            if not received:
                raise Gone
            return received, descriptors

    def _await(self, event: int, deadline: Deadline, dead: Callable[[], bool] = lambda: False) -> None:
        if self._line.fileno() < 0:
            raise Gone
        poll = select.poll()  # not `select`, which cannot take descriptors beyond 1024
        poll.register(self._line, event)
        gone = False
        while not poll.poll(0 if gone else deadline.milliseconds()):
            if gone:
                raise Gone
            gone = dead()  # then one more look: its last words may have come meanwhile
            if not gone and deadline.left() == 0.0:
                raise Late


class Packets(Line):
    """A line for small messages, each of which arrives whole or not at all, whoever is interrupted."""

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Sockets for the two ends."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send a message, and descriptors with it; errors as for `Connection`."""
        self._send(pickle.dumps(message), deadline, descriptors)

    def receive(self, deadline: Deadline, num_descriptors: int = 0) -> tuple[Any, list[int]]:
        """The next message, and the descriptors that came with it; errors as for `Connection`."""
        pickled, descriptors = self._receive(1 << 16, deadline, lambda: False, num_descriptors)
        return pickle.loads(pickled), descriptors


class Connection(Line):
    """A line for messages of any size. Each side knows when one is due: none waits in the line unread.

    A send or receive that is interrupted leaves the line useless.

    Args:
        line: A socket of a pair.
        dumps: How to pickle.
    """

    def __init__(self, line: socket.socket, dumps: Callable[[Any], bytes] = dumps) -> None:
        super().__init__(line)
        self.dumps = dumps

    def send(self, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send a message, and descriptors with it."""
        self.post(self.dumps(message), deadline, *descriptors)

    def post(self, pickled: bytes, deadline: Deadline, *descriptors: int) -> None:
        """Send a message that is pickled already.

        Raises:
            Gone: If the other side is gone.
            Late: If it does not read.
        """
        header = HEADER.pack(len(pickled))
        for whole in [header + pickled] if len(pickled) < 1 << 16 else [header, pickled]:
            part = memoryview(whole)
            while part:
                part = part[self._send(part, deadline, descriptors) :]
                descriptors = ()

    def receive(
        self, deadline: Deadline, dead: Callable[[], bool] = lambda: False, num_descriptors: int = 0
    ) -> tuple[bytes, list[int]]:
        """The pickle of the next message, and the descriptors that came with it.

        Args:
            deadline: How long to wait.
            dead: Asked now and then whether the other side is known to be dead: its own children may hold
                the line open.
            num_descriptors: How many may come.

        Raises:
            Gone: If the other side is gone.
            Late: If it does not answer.
        """
        # Eight bytes that were sent together come together.
        header, descriptors = self._receive(HEADER.size, deadline, dead, num_descriptors)
        (size,) = HEADER.unpack(header)
        message = bytearray()
        while len(message) < size:
            message += self._receive(min(size - len(message), 1 << 20), deadline, dead, 0)[0]
        return bytes(message), descriptors


def first_to_speak(lines: Mapping[Key, HasDescriptor], deadline: Deadline) -> Key:
    """Whose line has a message, or has gone, first.

    Raises:
        Late: If nobody's has in time.
    """
    poll = select.poll()
    keys = {line.fileno(): key for key, line in lines.items()}
    for descriptor in keys:
        poll.register(descriptor, select.POLLIN)
    while not (ready := poll.poll(deadline.milliseconds())):
        if deadline.left() == 0.0:
            raise Late
    return keys[ready[0][0]]


def closed_lines(lines: Mapping[Key, HasDescriptor]) -> list[Key]:
    """Return the keys of the lines that are closed at either end."""
    poll = select.poll()
    keys = {line.fileno(): key for key, line in lines.items()}
    closed_here = [key for descriptor, key in keys.items() if descriptor < 0]
    for descriptor in keys:
        if descriptor >= 0:
            poll.register(descriptor, 0)
    return closed_here + [keys[descriptor] for descriptor, _ in poll.poll(0)]
