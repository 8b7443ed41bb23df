"""A window with the frames of a game, by pygame. It is imported when a window is opened, and not before."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.hockey.table import FPS


def import_pygame() -> Any:
    """Import pygame.

    Raises:
        MissingExtra: If it is not installed.
    """
    try:
        return importlib.import_module("pygame")
    except ModuleNotFoundError as missing:
        raise MissingExtra(
            f'a window and its keyboard need pygame ({missing}). Install it: pip install "shoal[hockey]"'
        ) from missing


class Window:
    """A window of the size of a frame, which shows 50 frames a second.

    Args:
        frame: The first frame.

    Raises:
        MissingExtra: If pygame is not installed.
    """

    def __init__(self, frame: NDArray[np.uint8]) -> None:
        self._pygame = import_pygame()
        self._pygame.display.init()
        self._pygame.display.set_caption("Hockey")
        height, width, _ = frame.shape
        self._screen = self._pygame.display.set_mode((width, height))
        self._clock = self._pygame.time.Clock()
        self.show(frame)

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Show a frame. Wait first until the one before has been there for a 50th of a second."""
        self._pygame.surfarray.blit_array(self._screen, frame.swapaxes(0, 1))
        self._pygame.event.pump()
        self._clock.tick(FPS)
        self._pygame.display.flip()

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()
