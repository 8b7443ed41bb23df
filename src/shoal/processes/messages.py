"""Messages between two processes: infos, errors, resets and calls. A plain step sends none.

Sending and receiving stop at a deadline, and raise if the other process has closed its end or has died.
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
POLL_INTERVAL = 0.1  # seconds
LONGEST_GAP = 2 * POLL_INTERVAL  # twice the interval, for a busy machine

Key = TypeVar("Key")


class ConnectionClosed(Exception):
    """The other process has closed its end of the connection, or has died."""


class DeadlinePassed(Exception):
    """The other process has not sent or read a message before the deadline."""


class HasDescriptor(Protocol):
    """An object with a file descriptor that `poll` can watch."""

    def fileno(self) -> int:
        """Return the file descriptor."""


def dumps_by_value(message: Any) -> bytes:
    """Pickle a message for a process with another ``__main__``: definitions of ``__main__`` go by value."""
    return cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # type: ignore[no-any-return]


def dumps(message: Any) -> bytes:
    """Pickle a message by reference, which is faster, or by value if that fails."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:  # the __reduce__ of an object may raise anything
        return dumps_by_value(message)


class Deadline:
    """The end of a wait, counted in time during which this process ran.

    While this process is stopped, by Ctrl-Z for example, the clock goes on. A wait checks its deadline every
    `POLL_INTERVAL` seconds. If two checks are further apart, only `LONGEST_GAP` of that time counts.

    Args:
        seconds: The time from now to the deadline; None for no deadline.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left, self._checked = seconds, time.monotonic()

    def left(self) -> float | None:
        """Return the seconds that are left: 0 if the deadline has passed, None if there is no deadline."""
        if self._left is not None:
            now = time.monotonic()
            self._left = max(0.0, self._left - min(now - self._checked, LONGEST_GAP))
            self._checked = now
        return self._left

    def milliseconds(self) -> float:
        """Return how long `poll` may wait before the next check of the deadline."""
        left = self.left()
        return 1000 * (POLL_INTERVAL if left is None else min(left, POLL_INTERVAL))


# Sockets that are not closed yet. If an unused vec is collected in a reference cycle, with an exception for
# example, Python could otherwise close its sockets before the vec has used them to end its workers.
_in_use: set[socket.socket] = set()


class SocketEnd:
    """One end of a pair of sockets between two processes.

    Args:
        end: A socket of a pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        _in_use.add(end)
        end.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor, for `poll`."""
        return self._socket.fileno()

    def disconnect(self) -> None:
        """Shut down both ends and close this one, even if forks of this process hold copies of it."""
        self.shut_down()
        self.close()

    def shut_down(self) -> None:
        """Shut down both ends. The descriptor stays open, because another thread may wait for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor of this end."""
        _in_use.discard(self._socket)
        with suppress(OSError):  # an env in this process may have closed its descriptor
            self._socket.close()

    def _send(self, part: memoryview | bytes, deadline: Deadline, descriptors: Sequence[int]) -> int:
        while True:
            self._await(select.POLLOUT, deadline)
            try:
                if descriptors:
                    return socket.send_fds(self._socket, [part], descriptors)
                return self._socket.send(part)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionClosed from error

    def _receive(
        self, size: int, deadline: Deadline, has_ended: Callable[[], bool], num_descriptors: int
    ) -> tuple[bytes, list[int]]:
        while True:
            self._await(select.POLLIN, deadline, has_ended)
            try:
                received, descriptors, *_ = socket.recv_fds(
                    self._socket, size, num_descriptors, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionClosed from error
            if not received:
                raise ConnectionClosed
            return received, descriptors

    def _await(self, event: int, deadline: Deadline, has_ended: Callable[[], bool] = lambda: False) -> None:
        if self._socket.fileno() < 0:
            raise ConnectionClosed
        poll = select.poll()  # not `select`, which cannot take descriptors beyond 1024
        poll.register(self._socket, event)
        ended = False
        while not poll.poll(0 if ended else deadline.milliseconds()):
            if ended:
                raise ConnectionClosed
            ended = has_ended()  # then poll once more: its last message may have come in the meantime
            if not ended and deadline.left() == 0.0:
                raise DeadlinePassed


class PacketSocket(SocketEnd):
    """A socket for small messages. Each arrives whole or not at all, even if a process is interrupted."""

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Return a new pair of sockets, one for each end."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Send a message with descriptors; raise the same errors as `Connection.post`."""
        self._send(pickle.dumps(message), deadline, descriptors)

    def receive(self, deadline: Deadline, num_descriptors: int = 0) -> tuple[Any, list[int]]:
        """Receive a message with its descriptors; raise the same errors as `Connection.receive`."""
        pickled, descriptors = self._receive(1 << 16, deadline, lambda: False, num_descriptors)
        return pickle.loads(pickled), descriptors


class Connection(SocketEnd):
    """A connection for messages of any size.

    Both processes know when a message is due, so no message stays unread. After an interrupted send or
    receive, the connection cannot be used any more.

    Args:
        end: A socket of a pair.
        dumps: The function that pickles messages.
    """

    def __init__(self, end: socket.socket, dumps: Callable[[Any], bytes] = dumps) -> None:
        super().__init__(end)
        self.dumps = dumps

    def send(self, message: Any, deadline: Deadline, *descriptors: int) -> None:
        """Pickle a message and send it with descriptors; raise the same errors as `post`."""
        self.post(self.dumps(message), deadline, *descriptors)

    def post(self, pickled: bytes, deadline: Deadline, *descriptors: int) -> None:
        """Send a pickled message with descriptors.

        Raises:
            ConnectionClosed: If the other process has closed its end, or has died.
            DeadlinePassed: If the other process does not read the message in time.
        """
        header = HEADER.pack(len(pickled))
        for whole in [header + pickled] if len(pickled) < 1 << 16 else [header, pickled]:
            part = memoryview(whole)
            while part:
                part = part[self._send(part, deadline, descriptors) :]
                descriptors = ()

    def receive(
        self, deadline: Deadline, has_ended: Callable[[], bool] = lambda: False, num_descriptors: int = 0
    ) -> tuple[bytes, list[int]]:
        """Receive the pickle of the next message, and the descriptors that came with it.

        Args:
            deadline: The end of the wait.
            has_ended: Returns whether the other process is known to have ended. It is called every now and
                then, because children of that process may hold the connection open.
            num_descriptors: The largest number of descriptors to receive.

        Raises:
            ConnectionClosed: If the other process has closed its end, or has died.
            DeadlinePassed: If the message does not come in time.
        """
        # Eight bytes that were sent together come together.
        header, descriptors = self._receive(HEADER.size, deadline, has_ended, num_descriptors)
        (size,) = HEADER.unpack(header)
        message = bytearray()
        while len(message) < size:
            message += self._receive(min(size - len(message), 1 << 20), deadline, has_ended, 0)[0]
        return bytes(message), descriptors


def first_readable(sockets: Mapping[Key, HasDescriptor], deadline: Deadline) -> Key:
    """Wait for the first socket that has a message or is closed, and return its key.

    Raises:
        DeadlinePassed: If there is none before the deadline.
    """
    poll = select.poll()
    keys = {each.fileno(): key for key, each in sockets.items()}
    for descriptor in keys:
        poll.register(descriptor, select.POLLIN)
    while not (ready := poll.poll(deadline.milliseconds())):
        if deadline.left() == 0.0:
            raise DeadlinePassed
    return keys[ready[0][0]]


def is_writable(end: HasDescriptor) -> bool:
    """Return whether a socket can be written to now, or is closed: to send to it does not wait."""
    poll = select.poll()
    if (descriptor := end.fileno()) < 0:
        return True
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def closed_sockets(sockets: Mapping[Key, HasDescriptor]) -> list[Key]:
    """Return the keys of the sockets that are closed at either end."""
    poll = select.poll()
    keys = {each.fileno(): key for key, each in sockets.items()}
    closed_here = [key for descriptor, key in keys.items() if descriptor < 0]
    for descriptor in keys:
        if descriptor >= 0:
            poll.register(descriptor, 0)
    return closed_here + [keys[descriptor] for descriptor, _ in poll.poll(0)]
