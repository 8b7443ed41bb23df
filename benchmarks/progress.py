"""Show how far a run is: a bar on a terminal, two lines for each round elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Show what is done next; called once before each start and each slice."""

    def __init__(self, console: Console, turns: int) -> None:
        self.console, self.turns, self.turn = console, turns, 0
        self.said = ""
        # Drawn between slices only: a thread that draws would slow down the contestant that is measured.
        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=console, auto_refresh=False, transient=True)
        self.task = self.bar.add_task("", total=turns)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def __call__(self, case: object, round_: int, cycle: int | None, doing: str) -> None:
        """Show what comes next; `cycle` is None while a round starts its processes."""
        where = f"{case}, round {round_ + 1}"
        if self.console.is_terminal:
            cycle_ = "" if cycle is None else f", cycle {cycle + 1}"
            description = f"{where}{cycle_}: {doing}"
            self.bar.update(self.task, completed=self.turn, description=description, refresh=True)
        else:
            line = f"{where}: {'starting' if cycle is None else 'measuring'}"
            if line != self.said:
                self.console.print(f"{100 * self.turn // self.turns:3d} % {line}", highlight=False)
                self.said = line
        self.turn += 1
