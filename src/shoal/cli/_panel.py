"""Panel: the progress of training in the terminal, as a frame that is redrawn in place or as single lines.

    learner -(Update)-> Panel -(history)-> frame or line -> console

The panel draws only inside the call that passes an update, so no thread takes time from the envs.
"""

from __future__ import annotations

import math
import os
import textwrap
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.cli._format import duration, number
from shoal.cli._warnings import LONG, RECENT, shares, warnings_for

if TYPE_CHECKING:
    from shoal.learn import Update

# The pause after each drawing, as a multiple of the time that it took. Drawing may take 0.3 % of the time:
# panel and logging together may take 1 %.
REST = 300
FRAME_SECONDS = 0.25  # the shortest time from one frame to the next

MOST_KEPT = 1000  # the number of updates that are kept; more would not fit into a chart
SMOOTH_SECONDS = 10.0  # the time over which speed is averaged

WIDTH = 100  # the largest width in characters; wider lines are harder to read
CHART_ROWS = (4, 8)  # the smallest and the largest height of the chart
CELL, GAP = 23, 2  # the width of a name with its value, and of the gap after it

NAMES = {
    "approx_kl": "kl",
    "clip_fraction": "clipped",
    "grad_norm": "gradient",
    "explained_variance": "expl. variance",
}
# Each hop has its own colour, and its own character for consoles without colours.
HOPS = (("█", "blue"), ("▓", "magenta"), ("▒", "cyan"), ("░", "white"), ("▚", "green"))


class Panel:
    """Shows the updates of a learner to the user.

    In a terminal, the panel is one frame that is redrawn; the last frame stays. Elsewhere it prints at most
    one line per second, and always a line for the first and the last update; and each kind of warning once,
    when it appears. It takes 0.3 % of the time.

    Args:
        title: The first line of the frame: the env, the learner and the folder of the run.
        console: The console to draw on; by default stdout.
        history: The earlier updates of a run that is resumed.
        every: The seconds from one line to the next, if there is no terminal.
        clock: A function that returns the time in seconds.

    Example:
        >>> from shoal.learn import PPO, PPOConfig
        >>> with (
        ...     PPO("shoal/CartPole-v1", PPOConfig(total_steps=4096)) as ppo,
        ...     Panel("CartPole, PPO") as panel,
        ... ):
        ...     result = ppo.train(panel)
        steps .../4,096  return ...  SPS ...  entropy 0...  kl 0...
    """

    def __init__(
        self,
        title: str,
        console: Console | None = None,
        *,
        history: Iterable[Update] = (),
        every: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._title = " ".join(title.split())
        self._console = console = Console() if console is None else console
        self._clock = clock
        self._draws = console.is_interactive and console.encoding.startswith("utf")
        self._pause = FRAME_SECONDS if self._draws else every
        self._history: list[Update] = []
        for update in history:
            self._keep(update)
        self._is_shown = True
        self._next = -math.inf
        self._live: Live | None = None
        self._usage: Usage | None = None
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        """Return the panel. It draws nothing before the first update."""
        self._usage = Usage(self._clock)
        return self

    def __exit__(self, *exception: object) -> None:
        """Draw the last update, if it is not shown yet, and leave it in the terminal."""
        try:
            if not self._is_shown:
                self._show()
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def __call__(self, update: Update) -> None:
        """Store an update, and show it if the pause after the last drawing is over."""
        self._keep(update)
        self._is_shown = False
        if self._clock() >= self._next:
            self._show()

    def _keep(self, update: Update) -> None:
        self._history.append(update)
        if len(self._history) > MOST_KEPT:
            # Keep the first update, whose entropy is the reference, and the latest; halve the number between.
            del self._history[1 : -5 * LONG : 2]

    def _show(self) -> None:
        begun = self._clock()
        if self._draws:
            self._draw()
        else:
            self._print()
        self._is_shown = True
        ended = self._clock()
        self._next = ended + max(self._pause, REST * (ended - begun))

    def _print(self) -> None:
        self._console.print(Text(summary(self._history)), soft_wrap=True)
        for kind, warning in warnings_for(self._history).items():
            if kind not in self._warned:
                self._warned.add(kind)
                self._console.print(Text(f"warning: {warning}"), soft_wrap=True)

    def _draw(self) -> None:
        # The frame leaves one line of the terminal free, where the cursor goes after the last frame.
        width, height = min(self._console.width, WIDTH), max(1, self._console.height - 1)
        usage = {} if self._usage is None else self._usage.cells()
        lines = frame(self._title, self._history, usage, width, height)
        text = Text("\n", no_wrap=True, overflow="ellipsis", end="").join(lines)
        if self._live is None:
            self._live = Live(text, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.update(text, refresh=True)


def summary(history: Sequence[Update]) -> str:
    """Return one line about the latest update, for logs."""
    update = history[-1]
    parts = [
        f"steps {update.steps:,}/{update.total_steps:,}",
        f"return {number(update.mean_return)}",
        *([] if math.isnan(update.evaluation) else [f"evaluation {number(update.evaluation)}"]),
        f"SPS {steps_per_second(history):,.0f}",
        *(
            f"{NAMES.get(name, name)} {number(update.losses[name])}"
            for name in ("entropy", "approx_kl")
            if name in update.losses
        ),
    ]
    return "  ".join(parts)


def steps_per_second(history: Sequence[Update]) -> float:
    """Return the steps per second, averaged over `SMOOTH_SECONDS` because a single update is noisy."""
    latest = history[-1]
    since = latest.seconds - SMOOTH_SECONDS
    begin = min(bisect_left(history, since, key=lambda update: update.seconds), len(history) - 2)
    if begin >= 0 and (seconds := latest.seconds - history[begin].seconds) > 0:
        return (latest.steps - history[begin].steps) / seconds
    return latest.steps_per_second


# -- the frame ---------------------------------------------------------------------------------------------


def frame(
    title: str, history: Sequence[Update], usage: Mapping[str, str], width: int, height: int
) -> list[Text]:
    """Return the lines of a frame.

    If they do not fit, the chart is left out first, then the lines above the warnings.
    """
    update = history[-1]
    stats = {
        "episodes": f"{update.episodes:,}",
        "return": number(update.mean_return),
        "length": number(update.mean_length),
        "updates": f"{update.updates:,}",
        **({} if math.isnan(update.evaluation) else {"evaluation": number(update.evaluation)}),
    }
    figures = {NAMES.get(name, name.replace("_", " ")): number(loss) for name, loss in update.losses.items()}
    figures["learning rate"] = f"{update.learning_rate:.1e}"
    head = [Text(title, "bold"), *progress(history, width)]
    warned = [
        Text(line, "yellow")
        for warning in warnings_for(history).values()
        for line in textwrap.wrap(f"! {warning}", max(20, width), subsequent_indent="  ")
    ]
    below = [
        [*_grid(stats, width), *_grid(figures, width)],
        [*time_split(history, width), *_grid(usage, width)],
        warned,
    ]
    least, most = CHART_ROWS
    room = height - len(head) - sum(map(len, below)) - 1  # the axis
    chart = learning_curve(history, width, min(room, most)) if room >= least else []
    groups = [group for group in (head, chart, *below) if group]
    if sum(map(len, groups)) + len(groups) - 1 <= height:
        return [line for group in groups for line in (*group, Text())][:-1]
    lines = [line for group in groups for line in group]
    shown = max(len(head), height - len(warned))
    return [*lines[: len(lines) - len(warned)][:shown], *warned][:height]


def progress(history: Sequence[Update], width: int) -> list[Text]:
    """Return the lines with the progress bar, the speed, the elapsed time and the time left."""
    update = history[-1]
    part = min(1.0, update.steps / max(1, update.total_steps))
    # Rounded down, so that only the end shows 100%.
    count = f"{update.steps:,} / {update.total_steps:,} steps  {math.floor(100 * part)}%"
    length = max(0, width - len(count) - 2)
    done = round(part * length)
    bar = Text.assemble(("━" * done, "green"), ("─" * (length - done), "dim"), "  " if length else "", count)
    speed = steps_per_second(history)
    left = max(0, update.total_steps - update.steps) / speed if speed > 0 else math.nan
    times = f"{speed:,.0f} steps/s   {duration(update.seconds)} elapsed   {duration(left)} left"
    return [bar, Text(times)]


def learning_curve(history: Sequence[Update], width: int, rows: int) -> list[Text]:
    """Return a chart of the mean return over steps, in Braille characters; no lines if there is no return.

    Each Braille character has 2 x 4 dots.
    """
    steps = np.array([update.steps for update in history], np.float64)
    returns = np.array([update.mean_return for update in history], np.float64)
    known = np.isfinite(returns)
    if not known.any():
        return []
    margin = 8  # enough for any number, so that the curve does not move when a label gets longer
    characters = max(1, width - margin - 2)
    dots = 2 * characters
    places = np.rint((steps - steps[0]) / max(1.0, steps[-1] - steps[0]) * (dots - 1)).astype(np.int64)[known]
    counts = np.bincount(places, minlength=dots)
    filled = np.flatnonzero(counts)
    means = np.bincount(places, returns[known], dots)[filled] / counts[filled]
    low, high = float(means.min()), float(means.max())
    columns = np.arange(filled[0], filled[-1] + 1)
    heights = np.interp(columns, filled, means)
    top = 4 * rows - 1
    if high > low:
        labels = {0: high, rows - 1: low}
        levels = np.rint((heights - low) / (high - low) * top).astype(np.int64).tolist()
    else:
        labels = {rows // 2: low}
        levels = [top - 4 * (rows // 2) - 1] * len(columns)
    lines = [
        Text.assemble(
            (f"{number(labels[row]) if row in labels else '':>{margin}} ", "dim"),
            ("┤" if row in labels else "│", "dim"),
            (line, "cyan"),
        )
        for row, line in enumerate(_braille(columns.tolist(), levels, characters, rows))
    ]
    begin, end = f"{history[0].steps:,}", f"{history[-1].steps:,} steps"
    rule = "─" * max(1, width - margin - len(begin) - len(end) - 5)
    return [*lines, Text(f"{'return':>{margin}} └ {begin} {rule} {end}", "dim")]


def _braille(columns: Sequence[int], levels: Sequence[int], characters: int, rows: int) -> list[str]:
    """Return rows of Braille characters with a dot at each level, counted from below, joined vertically."""
    bits = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
    cells = [[0] * characters for _ in range(rows)]
    before = levels[0]
    for column, level in zip(columns, levels, strict=True):
        for dot in range(min(before + 1, level), max(before - 1, level) + 1):
            cells[rows - 1 - dot // 4][column // 2] |= bits[column % 2][dot % 4]
        before = level
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]


def time_split(history: Sequence[Update], width: int) -> list[Text]:
    """Return a bar of the share of time of each hop, and its legend."""
    parts = shares(history[-RECENT:])
    bar, lines, so_far = Text(), [Text()], 0.0
    for index, (hop, share) in enumerate(parts.items()):
        glyph, style = HOPS[index % len(HOPS)]
        begin, so_far = round(so_far * width), so_far + share
        bar.append(glyph * (round(so_far * width) - begin), style)
        legend = Text.assemble((glyph, style), f" {hop} {share:.0%}  ")
        if lines[-1] and len(lines[-1]) + len(legend) - 2 > width:
            lines.append(Text())
        lines[-1].append_text(legend)
    return [bar, *lines] if parts else []


def _grid(cells: Mapping[str, str], width: int) -> list[Text]:
    """Return lines of names and values, in as many columns as fit."""
    across = max(1, (width + GAP) // (CELL + GAP))
    lines: list[Text] = []
    for index, (name, value) in enumerate(cells.items()):
        if index % across == 0:
            lines.append(Text())
        else:
            lines[-1].append(" " * GAP)
        lines[-1].append(name, "dim").append(" " + value.rjust(CELL - len(name) - 1))
    return lines


# -- the machine -------------------------------------------------------------------------------------------


class Usage:
    """Measures CPU time and memory of this process and its descendants; nothing on systems without /proc.

    Shared memory counts once, for this process. For its descendants, only their own memory counts.

    Args:
        clock: A function that returns the time in seconds.
    """

    SECONDS = 1.0  # the shortest time between two measurements, because CPU time has ticks of 10 ms

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._cells: dict[str, str] = {}
        self._when = clock()
        self._ticks = {pid: ticks for pid, (ticks, _) in _processes().items()}

    def cells(self) -> dict[str, str]:
        """Return the names and values to show."""
        now = self._clock()
        if (passed := now - self._when) >= self.SECONDS and (found := _processes()):
            # Counted for each process, because the ticks of a process that has ended must not be subtracted.
            taken = sum(max(0, ticks - self._ticks.get(pid, 0)) for pid, (ticks, _) in found.items())
            cpu = taken / os.sysconf("SC_CLK_TCK") / passed
            size = sum(pages for _, pages in found.values()) * os.sysconf("SC_PAGE_SIZE") / 1e6
            self._cells = {
                "CPU": f"{cpu:.0%}",
                "memory": f"{size:.0f} MB" if size < 1000 else f"{size / 1000:.1f} GB",
            }
            self._when, self._ticks = now, {pid: ticks for pid, (ticks, _) in found.items()}
        return self._cells


def _processes() -> dict[int, tuple[int, int]]:
    """Return the ticks and pages of this process and its descendants, by process id."""
    found: dict[int, tuple[int, int]] = {}
    ahead = [os.getpid()]
    while ahead:
        pid = ahead.pop()
        home = Path(f"/proc/{pid}")
        with suppress(OSError):  # the process has just ended, or there is no /proc
            # The fields begin after the name in brackets, which may contain spaces.
            fields = (home / "stat").read_text().rpartition(")")[2].split()
            resident, shared = map(int, (home / "statm").read_text().split()[1:3])
            found[pid] = int(fields[11]) + int(fields[12]), resident - (shared if found else 0)
            for task in (home / "task").iterdir():
                with suppress(OSError):
                    ahead += map(int, (task / "children").read_text().split())
    return found
