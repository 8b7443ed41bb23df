"""The replay of a run: files that are written once each, so that a checkpoint costs only what is new.

    replay-DIGEST.safetensors    places of the ring, from one serial number to another

The checkpoint lists the files with their digests. A new checkpoint adds a file with the places that are new.
Places whose outcome was not known when they were written are corrected by the next file. A small last file is
written again together with what is new, so that there are never many small ones. Files whose places the ring
has overwritten are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import RunError
from shoal.learn.replay import Replay
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file, require, write_named_tensor_file

PATTERN = "replay-*.safetensors"
NAME = re.compile(r"replay-[0-9a-f]+\.safetensors")
SMALL, LARGE = 1 << 24, 1 << 26  # bytes: a smaller file is written again; no file is larger


@dataclass(frozen=True)
class Part:
    """A file with places of the ring."""

    file: str
    """Name of the file."""
    sha256: str
    """Digest of the file."""
    first: int
    """First serial number."""
    last: int
    """Serial number after the last."""
    nbytes: int
    """Number of bytes."""
    opened: NDArray[np.int64]
    """Serial numbers of places, in this file or before, whose outcome was not known yet."""

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Part:
        """Make the part that a checkpoint describes."""
        if not NAME.fullmatch(require(saved["file"], str)):
            raise ValueError(f"{saved['file']!r} is not the name of a part of a replay")
        numbers = {name: require(saved[name], int) for name in ("first", "last", "nbytes")}
        opened = require(saved["opened"], np.ndarray)
        if opened.dtype != np.int64 or opened.ndim != 1:
            raise ValueError(f"expected serial numbers, got an array of {opened.dtype}")
        return cls(saved["file"], require(saved["sha256"], str), opened=opened, **numbers)


class ReplayFiles:
    """Writes the replay of a run.

    Args:
        folder: The run's folder.
        replay: The replay, if the run was resumed.
        saved: What the checkpoint says then: what `save` returned.
    """

    def __init__(
        self, folder: Path, replay: Replay | None = None, saved: dict[str, Any] | None = None
    ) -> None:
        self._folder, self._generation = folder, -1
        self._parts: list[Part] = []
        if replay is not None and saved is not None:
            self._parts = [Part.read(part) for part in saved["files"]]
            self._generation = replay.generation

    def save(self, replay: Replay) -> dict[str, Any]:
        """Write what is new; return what a checkpoint must hold to restore the replay."""
        if self._generation != replay.generation:
            self._parts, self._generation = [], replay.generation
        parts = [part for part in self._parts if part.last > replay.oldest]
        if parts and parts[-1].nbytes < SMALL:
            parts.pop()
        first = max(replay.oldest, parts[-1].last if parts else 0)
        changed = parts[-1].opened if parts else np.zeros(0, np.int64)
        places = max(1, LARGE // max(1, replay.nbytes // replay.capacity))
        # An outcome may be new where no place is: then a file has outcomes only.
        last = replay.total + (first == replay.total and len(changed) > 0)
        for begin in range(first, last, places):
            end = min(begin + places, replay.total)
            content = replay.part(begin, end, changed[changed < first])
            name, digest, nbytes = write_named_tensor_file(self._folder, "replay", content)
            parts.append(Part(name, digest, begin, end, nbytes, replay.opened))
            changed = np.zeros(0, np.int64)
        self._parts = parts
        return {"rest": replay.rest(), "files": [asdict(part) for part in parts]}

    def remove_others(self) -> None:
        """Remove the files that the last checkpoint does not list."""
        kept = {part.file for part in self._parts}
        for path in self._folder.glob(PATTERN):
            if path.name not in kept:
                path.unlink()


def read_replay(folder: Path, saved: dict[str, Any], checkpoint: Path, remedy: str) -> dict[str, Any]:
    """Return the state that `Replay.load_state_dict` takes; its parts are read one after another.

    Args:
        folder: The run's folder.
        saved: What the checkpoint says.
        checkpoint: The checkpoint, for messages.
        remedy: What can be done without the replay, for messages.
    """
    with interpreting(checkpoint, remedy):
        parts = [Part.read(part) for part in saved["files"]]
        return {**saved["rest"], "parts": _read_parts(folder, parts, remedy)}


def _read_parts(folder: Path, parts: list[Part], remedy: str) -> Iterator[dict[str, Any]]:
    for part in parts:
        path = folder / part.file
        if not path.exists():
            raise RunError(f"{path}: expected a part of the replay, but it is missing. {remedy}")
        content = read_tensor_file(path, remedy, part.sha256)
        with interpreting(path, remedy):
            if (content["first"], content["last"]) != (part.first, part.last):
                raise ValueError(f"expected places from {part.first} to {part.last}")
        yield content
