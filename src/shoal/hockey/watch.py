"""Play games between two players, and write them as a GIF or MP4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.hockey.drawing import COLORS, draw_observation
from shoal.hockey.envs import Hockey
from shoal.hockey.players import Player
from shoal.hockey.settings import settings
from shoal.hockey.table import FPS
from shoal.vector.native import Native
from shoal.video import Mp4, check_path, replacing

HELD = 25  # times that the last frame of a game is repeated, so that one sees how it ended


@dataclass(frozen=True)
class Game:
    """A game that was played."""

    observations: NDArray[np.float32]
    """The observations of player one, the first from the reset."""
    winner: int
    """1 if player one has won, -1 if player two has won, 0 for a draw."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.observations) - 1


def play_games(
    one: Player,
    two: Player,
    games: int = 1,
    *,
    seed: int = 0,
    mode: Any = "NORMAL",
    on_game: Callable[[Game], None] | None = None,
) -> list[Game]:
    """Play games between two players.

    Args:
        one: The player on the left.
        two: The player on the right.
        games: Number of games.
        seed: Seed of the games.
        mode: A `Mode`, its name or number.
        on_game: Function to call after each game.

    Raises:
        ArgumentError: If there is no such mode, the number of games is less than 1, or the seed negative.

    Example:
        >>> from shoal.hockey.players import make_player
        >>> from shoal.hockey.watch import play_games
        >>> (game,) = play_games(make_player("none"), make_player("none"), mode="TRAIN_SHOOTING")
        >>> game.steps, game.winner
        (81, 0)
    """
    if games < 1:
        raise ArgumentError(f"games: expected at least 1, got {games}")
    if seed < 0:
        raise ArgumentError(f"seed: expected 0 or more, got {seed}")
    chosen = settings(mode=mode, opponent="agent")
    played: list[Game] = []
    with Native(
        Hockey, 1, env_kwargs=chosen, num_workers=1, autoreset_mode=AutoresetMode.DISABLED, seed=seed
    ) as vec:
        for _ in range(games):
            obs, _ = vec.reset()
            seen, over = [obs[0].copy()], False
            one.begin()
            two.begin()
            while not over:
                obs, _, terminations, truncations, _ = vec.step(np.stack([one.act(obs[0]), two.act(obs[1])]))
                seen.append(obs[0].copy())
                over = bool((terminations | truncations)[0])
            played.append(Game(np.array(seen), int(vec.get_attr("winner")[0])))
            if on_game is not None:
                on_game(played[-1])
    return played


def count_frames(games: Iterable[Game]) -> int:
    """Return the number of frames that `frames_of` draws."""
    return sum(len(game.observations) + HELD for game in games)


def frames_of(games: Iterable[Game]) -> Iterator[NDArray[np.uint8]]:
    """Draw games frame by frame. The last frame of each game is repeated for half a second."""
    for game in games:
        yield from map(draw_observation, game.observations)
        yield from [draw_observation(game.observations[-1])] * HELD


def write_video(path: Path, frames: Iterable[NDArray[np.uint8]]) -> None:
    """Write frames of games as a GIF that loops, or as an MP4, by the ending of the path.

    Args:
        path: The file to write.
        frames: Frames in the colours of `shoal.hockey.drawing`. They are drawn while they are written, so
            that long videos fit into memory.

    Raises:
        ArgumentError: If the path ends in neither .gif nor .mp4.
        MissingExtra: If a package for it is not installed.
    """
    check_path(path, "out")
    with replacing(path) as unfinished:
        if path.suffix == ".gif":
            _write_gif(unfinished, frames)
        else:
            with closing(Mp4(unfinished, FPS)) as video:
                for frame in frames:
                    video.append(frame)


def _write_gif(path: Path, frames: Iterable[NDArray[np.uint8]]) -> None:
    from PIL import Image

    # Pillow takes 15 ms to find the colours of a frame. They are known, and no two have the same blue.
    index = np.zeros(256, np.uint8)
    index[[blue for _, _, blue in COLORS]] = np.arange(len(COLORS))
    palette = [part for color in COLORS for part in color]

    def image(frame: NDArray[np.uint8]) -> Image.Image:
        made = Image.fromarray(index[frame[:, :, 2]])
        made.putpalette(palette)
        return made

    images = map(image, frames)
    first = next(images)
    first.save(path, save_all=True, append_images=images, duration=1000 // FPS, loop=0)
