"""Videos: an MP4 that browsers play, and files that are replaced only when they are complete."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError, MissingExtra

Frame = NDArray[np.uint8]
"""A picture of shape (height, width, 3)."""

NEEDED = {".gif": (("PIL",), "cli"), ".mp4": (("imageio", "imageio_ffmpeg"), "video")}  # packages, extra
SMALLEST_SIDE = 64  # pixels of a frame in an MP4: some players do not show smaller videos


def check_path(path: Path, argument: str) -> None:
    """Check that a video can be written to a path.

    Args:
        path: The file to write.
        argument: The argument or option that names it, for messages.

    Raises:
        ArgumentError: If the path ends in neither .gif nor .mp4, or is not a file in a folder.
        MissingExtra: If a package for it is not installed.
    """
    if path.suffix not in NEEDED:
        raise ArgumentError(f"{argument}: expected a file.gif or a file.mp4, got {path}")
    if path.is_dir() or any(parent.exists() and not parent.is_dir() for parent in path.absolute().parents):
        raise ArgumentError(f"{argument}: expected a file in a folder, got {path}")
    packages, extra = NEEDED[path.suffix]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f'{argument}: {path} needs {package}: pip install "shoal[{extra}]"')


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to another file first, so that a failure leaves an older video as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class Mp4:
    """Writes frames as an MP4 that browsers play: H.264 with 4:2:0 chroma, the index at the beginning.

    Args:
        path: The file to write.
        rate: Frames per second.
    """

    def __init__(self, path: Path, rate: float) -> None:
        import imageio.v2 as imageio

        self._writer: Any = imageio.get_writer(
            path,
            fps=rate,
            codec="libx264",
            pixelformat="yuv420p",
            macro_block_size=1,  # otherwise imageio scales the frames; `append` makes the sides even
            output_params=["-movflags", "+faststart"],
        )

    def append(self, frame: Frame) -> None:
        """Encode a frame. Small ones are magnified, and 4:2:0 chroma needs even sides."""
        times = -(-SMALLEST_SIDE // min(frame.shape[:2]))
        large = frame.repeat(times, 0).repeat(times, 1)
        height, width = large.shape[:2]
        self._writer.append_data(np.pad(large, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))

    def close(self) -> None:
        """End the file."""
        self._writer.close()
