"""The progress of several runs in the terminal: a line for each seed that is redrawn, or single lines."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.cli._format import duration, number
from shoal.cli._panel import WIDTH
from shoal.cli.seeds.side_by_side import LOG, SeedRun, Status

FRAME_SECONDS = 1.0  # runs write their metrics once a second
LINE_SECONDS = 10.0

STYLES = {
    Status.WAITING: "dim",
    Status.RUNNING: "",
    Status.DONE: "green",
    Status.FAILED: "red",
    Status.STOPPED: "yellow",
}


class SeedView:
    """Shows the progress of several runs.

    In a terminal, it draws one line for each seed, once a second, and removes them at the end. Elsewhere it
    prints a line when a run starts or ends, and one about all runs at most every 10 seconds.

    Args:
        title: The first line.
        runs: The runs.
        console: The console to draw on; by default stdout.
        clock: A function that returns the time in seconds.
    """

    def __init__(
        self,
        title: str,
        runs: Sequence[SeedRun],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._runs, self._clock = title, runs, clock
        self._console = console = Console(highlight=False) if console is None else console
        self._draws = console.is_interactive and console.encoding.startswith("utf")
        self._live: Live | None = None
        self._next = -math.inf if self._draws else clock() + LINE_SECONDS
        self._stopping = False

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._draws:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        else:
            self._print(self._title)
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the lines that are redrawn."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()

    def stopping(self) -> None:
        """Say that the runs were asked to stop."""
        self._stopping = True
        self._next = -math.inf
        print("shoal: each run stops after its update; Ctrl-C again to stop at once", file=sys.stderr)

    def changed(self, run: SeedRun) -> None:
        """Say that a run has started or ended."""
        if self._draws:
            self._next = -math.inf
        else:
            started = run.status is Status.RUNNING
            what = f"started, log: {run.folder / LOG}" if started else f"{run.status.value}, {_figures(run)}"
            self._print(f"seed {run.seed}: {what}")

    def show(self) -> None:
        """Show how far the runs are, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        if self._live is not None:
            frame = Text("\n", no_wrap=True, overflow="ellipsis", end="").join(self._frame())
            self._live.update(frame, refresh=True)
        else:
            running = [run for run in self._runs if run.status is Status.RUNNING]
            self._print(";  ".join(f"seed {run.seed}: {_figures(run)}" for run in running))
        self._next = self._clock() + (FRAME_SECONDS if self._draws else LINE_SECONDS)

    def _frame(self) -> list[Text]:
        width = min(self._console.width, WIDTH)
        digits = max(len(str(run.seed)) for run in self._runs)
        lines = [self._line(run, width, digits) for run in self._runs]
        room = max(2, self._console.height - 2)  # the title and the line of the cursor
        if len(lines) > room:
            # More runs than lines: those that are running, and the number of the others.
            running = [
                line for run, line in zip(self._runs, lines, strict=True) if run.status is Status.RUNNING
            ][: room - 1]
            states = [run.status for run in self._runs]
            counts = [f"{states.count(each)} {each.value}" for each in Status if each in states]
            lines = [*running, Text(", ".join(counts), "dim")]
        return [Text(self._title, "bold"), *lines]

    def _line(self, run: SeedRun, width: int, digits: int) -> Text:
        now = run.progress()
        part = 0.0 if now is None else min(1.0, now.steps / max(1, now.total_steps))
        speed, returns, state = "", "", run.status.value
        if now is not None:
            speed, returns = f"{now.steps_per_second:,.0f} steps/s", f"return {number(now.mean_return)}"
        if run.status is Status.RUNNING:
            if self._stopping:
                state = "stopping"
            elif now is None or not run.has_begun:
                state = "starting"
            else:
                left = max(0, now.total_steps - now.steps) / max(now.steps_per_second, 1e-9)
                state = f"{duration(left)} left"
        rest = f"  {math.floor(100 * part):>3}%  {speed:>15}  {returns:>14}  "
        head = f"seed {run.seed:>{digits}}  "
        length = max(0, width - len(head) - len(rest) - 12)
        done = round(part * length)
        return Text.assemble(
            head, ("━" * done, "green"), ("─" * (length - done), "dim"), rest, (state, STYLES[run.status])
        )


def _figures(run: SeedRun) -> str:
    """Return how far a run is, in words."""
    if (now := run.progress()) is None:
        return "no update yet"
    speed = f", {now.steps_per_second:,.0f} steps/s" if run.status is Status.RUNNING else ""
    return f"steps {now.steps:,}/{now.total_steps:,}{speed}, return {number(now.mean_return)}"
