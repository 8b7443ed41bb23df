"""The lock of a run's folder: at most one process writes to it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from shoal.errors import RunError
from shoal.learn.runs.files import file_errors_in_words

NAME = "run.lock"


class Lock:
    """A lock that is held until `release`, or until the process ends in any way.

    Args:
        folder: The folder of the run.

    Raises:
        RunError: If another run has the lock. The message names its process.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        with file_errors_in_words(path):
            # Not through a link: the file that it points to would be cut.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = ""
            with suppress(OSError):
                owner = os.read(self._descriptor, 200).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise RunError(
                f"{folder}: another run is writing to this folder: {owner or 'an unknown process'}. Wait "
                "until it ends, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # some network file systems have no locks
                os.close(self._descriptor)
                raise
        with suppress(OSError):  # on a full disk, the name is missing from the message of others
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the folder. Calling it again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
