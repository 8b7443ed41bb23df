"""`shoal hockey watch` and `shoal hockey play`: look at games, and play in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tyro.conf import Positional, arg

from shoal.cli._terminal import Display
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from shoal.hockey.watch import Game

_Frame = TypeVar("_Frame")
FRAMES_BETWEEN = 25  # two changes of the status line


@dataclass(frozen=True)
class Watch:
    """Let two players play, and write the games as a GIF or MP4.

    A player is none, weak, strong, or the folder of a run on shoal/HockeyOne-v0.

    Example: shoal hockey watch strong weak --out game.gif
    """

    left: Annotated[str, Positional, arg(metavar="A")]
    """The player on the left."""
    right: Annotated[str, Positional, arg(metavar="B")]
    """The player on the right."""
    games: int = 1
    """The number of games."""
    out: Annotated[str, arg(metavar="FILE")] = "game.gif"
    """The file to write: .gif or .mp4."""
    seed: int = 0
    """The seed of games and bots."""
    mode: str = "NORMAL"
    """The kind of game: NORMAL, TRAIN_SHOOTING or TRAIN_DEFENSE."""

    def run(self) -> int:
        """Play, write the video, print the results and return the exit code."""
        from shoal.hockey.players import make_player
        from shoal.hockey.watch import count_frames, frames_of, play_games, write_video
        from shoal.video import check_path

        path = Path(self.out)
        check_path(path, "out")  # before minutes of play
        if self.seed < 0:
            raise ArgumentError(f"seed: expected 0 or more, got {self.seed}")
        left, right = make_player(self.left, 2 * self.seed), make_player(self.right, 2 * self.seed + 1)
        with Display() as display:
            display.say("compiling the game, which takes half a minute the first time")
            played: list[Game] = []

            def tell(game: Game) -> None:
                played.append(game)
                display.say("playing")
                display.count(len(played), self.games, f"game {len(played)} of {self.games}")

            play_games(left, right, self.games, seed=self.seed, mode=self.mode, on_game=tell)
            display.say(f"writing {path}")
            write_video(path, _counted(frames_of(played), count_frames(played), display))
        _say(played, f"{left.name} (left)", f"{right.name} (right)")
        print(f"video: {path}")
        return 0


def _counted(frames: Iterator[_Frame], total: int, display: Display) -> Iterator[_Frame]:
    """Pass frames on, and show how many have been written."""
    for number, frame in enumerate(frames, 1):
        if number % FRAMES_BETWEEN == 0:
            display.count(number, total, f"frame {number} of {total}")
        yield frame


def _say(games: list[Game], left: str, right: str) -> None:
    results = {1: f"{left} wins", -1: f"{right} wins", 0: "draw"}
    for number, game in enumerate(games, 1):
        print(f"game {number}: {results[game.winner]} after {game.steps} steps")
    if len(games) > 1:
        wins, losses = (sum(game.winner == winner for game in games) for winner in (1, -1))
        print(f"{left} {wins}, {right} {losses}, draws {len(games) - wins - losses}")


@dataclass(frozen=True)
class Play:
    """Play against a bot, the policy of a run, or a second person, in a browser on this machine.

    Example: shoal hockey play --against strong
    """

    against: Annotated[str, arg(metavar="OPPONENT")] = "weak"
    """The first opponent: none, weak, strong, person, or the folder of a run on shoal/HockeyOne-v0."""
    port: int = 0
    """The port of the page; 0 for any free one."""

    def run(self) -> int:
        """Serve the page until Ctrl-C, and return the exit code."""
        from shoal.hockey.play import Server
        from shoal.hockey.play.match import Match, opponents_with

        opponents, first = opponents_with(self.against)
        server = Server(opponents, first, self.port)
        with Display() as display:
            display.say("compiling the game, which takes half a minute the first time")
            with Match(opponents, first) as match:
                match.obey({"paused": False})
                match.step()  # what fails in the first step must not wait for the first page
        print(f"play at {server.url}\nCtrl-C ends the game", flush=True)
        with suppress(KeyboardInterrupt):
            server.run()
        return 0
