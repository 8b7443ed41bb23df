"""Files of a run: written durably, and checked when they are read.

A file is written under another name, synced to the disk and renamed. So a kill, a power cut or a full disk
leaves either the old file or the new one, and both are whole. The folder is synced too, because a rename is
an entry of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import OutOfResources, RunError

PART = ".part"  # the suffix of a file that is being written
DIGEST_LENGTH = 64  # of SHA-256, in hexadecimal digits
NO_DIGEST = b"0" * DIGEST_LENGTH

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is too large",
}


def write_file(path: Path, content: bytes) -> None:
    """Replace a file durably.

    Raises:
        OutOfResources: If the disk is full. The file is as it was before.
    """
    part = path.with_name(path.name + PART)
    with file_errors_in_words(path):
        try:
            # Not through a link that a stranger may have put there.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


@contextmanager
def file_errors_in_words(path: Path) -> Iterator[None]:
    """Turn errors of the system inside the block into errors that name the file.

    Raises:
        OutOfResources: If there is no room for the file.
        RunError: If the file cannot be read or written for another reason.
    """
    try:
        yield
    except (OutOfResources, RunError):
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise RunError(f"{path}: cannot be read or written: {error.strerror or error}") from error
        raise OutOfResources(
            f"cannot write {path}: {FULL[error.errno]}. Free some space and resume the run: what it saved "
            "before is whole"
        ) from error


def remove_parts(folder: Path) -> None:
    """Remove what a killed process had begun to write. Only the owner of the run's lock may call this."""
    for part in folder.glob(f"*{PART}"):
        with file_errors_in_words(part):
            part.unlink(missing_ok=True)


def read_file(path: Path, remedy: str) -> bytes:
    """Read a file of a run.

    Args:
        path: The file.
        remedy: What can be done without it, for the message.

    Raises:
        RunError: If the file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path}: expected a file, got a folder or a device. {remedy}")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}. {remedy}") from error


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def stamp(content: bytes) -> tuple[bytes, str]:
    """Put the digest of the whole content into the place that `NO_DIGEST` holds for it; return both.

    Args:
        content: JSON, or a file with a header in JSON, in which ``"sha256"`` is `NO_DIGEST`.
    """
    place = content.index(b'"sha256":"' + NO_DIGEST) + len(b'"sha256":"')
    digest = digest_of(content)
    return content[:place] + digest.encode() + content[place + DIGEST_LENGTH :], digest


def is_whole(content: bytes, digest: str) -> bool:
    """Return whether stamped content is as it was written.

    Args:
        content: The content.
        digest: The digest that the content names.
    """
    if len(digest) != DIGEST_LENGTH or content.count(digest.encode()) != 1:
        return False
    return digest_of(content.replace(digest.encode(), NO_DIGEST)) == digest
