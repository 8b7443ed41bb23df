"""`shoal bench`: measure how fast an env steps, alone and in vector envs."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.text import Text
from tyro.conf import Positional, arg

from shoal import _core
from shoal.cli import _turns
from shoal.cli._contestants import BARE, DIRECT, NATIVE, PROCESSES, SYNC, Task, set_task
from shoal.cli._loops import Timed
from shoal.cli._terminal import Display, Interrupts, quiet, read_env_kwargs
from shoal.cli._turns import SLICE_SECONDS, Outcome, end, quartiles, time_limit, turns_for
from shoal.cores import usable_cores
from shoal.errors import ArgumentError
from shoal.stepping.block import agents_of

# The contestants that others are compared with, and the heads of these columns.
REFERENCES = {BARE: "of bare", SYNC: "of Sync", DIRECT: "of direct"}

COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Gymnasium's warnings are yellow
LOGGED = "ERROR: "  # Gymnasium also warns of an error before it raises it
MOST_NOTES = 3


@dataclass(frozen=True)
class Bench:
    """Measure how fast an env steps: in a bare loop, in Shoal's vector envs and in Gymnasium's.

    For a compiled env shoal.Native is among them, and those that make an object for each env take part up to
    128 envs.

    All take turns in slices of 80 ms with the same random actions, because a machine changes its speed from
    one second to the next. What the env prints meanwhile is not shown.

    Example: shoal bench FrozenLake-v1 --num-envs 16 --env-kwargs '{"map_name": "8x8"}'
    """

    env: Annotated[str, Positional, arg(metavar="ENV")]
    """A Gymnasium id, a name that `shoal envs` lists, or path/to/file.py:Class."""

    num_envs: int = 64
    """Envs in each vector env."""

    num_workers: Annotated[
        int | None, arg(metavar="INT", help_behavior_hint="(default: one for each core)")
    ] = None
    """Worker processes of shoal.Multiprocessing; threads of shoal.Native."""

    backend: Literal["all", "auto"] = "all"
    """Which of Shoal's backends take part: all, or auto: the one that shoal.make chooses here."""

    seconds: float = 10.0
    """For all measurements together."""

    env_kwargs: Annotated[str, arg(metavar="JSON", help_behavior_hint="(default: none)")] = "{}"
    """Arguments for the env, as a JSON object."""

    def run(self) -> int:
        """Measure and print; return the exit code, 1 if no contestant could run the env."""
        kwargs = self._checked()
        with Display() as display, quiet(), Interrupts() as interrupts:
            task, outcome, notes = self._measure(kwargs, display, interrupts)
        console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        wide = console.width if sys.stdout.isatty() else 100
        for line in table(task, outcome, wide):
            console.print(line)
        for note in notes[:MOST_NOTES]:
            print(f"note: {note}", file=sys.stderr)
        if any(map(outcome.rates, task.contestants())):
            return 0
        if outcome.env_failure:
            print(f"\n{outcome.env_failure}", file=sys.stderr)
        return 1

    def _checked(self) -> dict[str, Any]:
        """Check the options; return the arguments for the env.

        Raises:
            ArgumentError: If an option is invalid.
        """
        if self.num_envs < 1:
            raise ArgumentError(f"--num-envs: expected at least 1, got {self.num_envs}")
        if self.num_workers is not None and not 1 <= self.num_workers <= self.num_envs:
            raise ArgumentError(
                f"--num-workers: expected 1 to {self.num_envs}, no more than envs, got {self.num_workers}"
            )
        if not 0 < self.seconds < math.inf:
            raise ArgumentError(f"--seconds: expected a positive number, got {self.seconds}")
        return read_env_kwargs(self.env_kwargs)

    def _measure(
        self, kwargs: dict[str, Any], display: Display, interrupts: Interrupts
    ) -> tuple[Task, Outcome, list[str]]:
        """Make all contestants and let them take turns; also return the texts of warnings."""
        display.say(f"looking for {self.env}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of packages that are imported
            task = set_task(self.env, self.num_envs, self.num_workers, kwargs, self.backend)
        outcome = Outcome()
        contestants: dict[str, Timed] = {}
        try:
            with warnings.catch_warnings(record=True) as warned:
                patience = _make(task, outcome, contestants, display, interrupts)
                outcome.remarks = [made.loop.note for made in contestants.values() if made.loop.note]
                display.say(f"{self.num_envs} x {self.env}")
                begun = perf_counter()

                def show(_: str = "") -> None:
                    interrupts.check()
                    elapsed = min(perf_counter() - begun, self.seconds)
                    display.count(elapsed, self.seconds, f"{math.ceil(self.seconds - elapsed)} s left")

                for _ in turns_for(self.seconds):
                    if not outcome.take_turn(contestants, patience=patience, show=show):
                        break
                show()
        finally:
            display.say("closing")
            last_patience = _turns.LAST_PATIENCE_SECONDS if interrupts.came else _turns.PATIENCE_SECONDS
            for each in (*contestants.values(), task.first):
                end(each.close, last_patience)
        notes = dict.fromkeys(_plain(str(warning.message)) for warning in warned)
        return task, outcome, [note for note in notes if not note.startswith(LOGGED)]


def _make(
    task: Task, outcome: Outcome, contestants: dict[str, Timed], display: Display, interrupts: Interrupts
) -> float | None:
    """Make the contestants and warm them up; return how many seconds a slice may take at most."""
    patience: float | None = None
    functions = task.contestants()
    first, *others = functions
    # Reversed, so that processes are forked before vecs exist whose resources they would inherit.
    for name in (first, *reversed(others)):
        display.say(f"making {task.num_envs} x {task.name} for {name}" if name != first else f"trying {name}")
        step_seconds = 0.0
        try:
            with time_limit(patience):
                contestants[name] = functions[name](task)
                step_seconds = contestants[name].warm_up()
        except Exception as error:
            outcome.fail(name, error)
            if name in contestants:
                end(contestants.pop(name).close)
        interrupts.check()
        if name == first:
            # The bare loop steps one env, the others step all of them.
            vector_step_seconds = step_seconds * (task.num_envs if name == BARE else 1)
            patience = _turns.PATIENCE_SECONDS + 10 * (task.num_envs * task.seconds + vector_step_seconds)
    return patience


def _plain(message: str) -> str:
    return " ".join(COLOUR.sub("", message).split())


def table(task: Task, outcome: Outcome, width: int) -> list[Text]:
    """Return the lines to print. A contestant that failed has the reason in place of its figures."""
    names = list(task.contestants())
    ran = [name for name in names if outcome.rates(name)]
    # If no reference can run this env, compare with the first contestant that can.
    references = [name for name in ran if name in REFERENCES] or ran[:1]
    heads = ["", "steps/s"]
    for reference in references:
        heads += [REFERENCES.get(reference, f"of {reference.rpartition('.')[2]}"), "quartiles"]
    rows = {name: _cells(outcome, name, references) for name in ran}
    columns = zip(heads, *rows.values(), strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    widths[0] = max(map(len, names))
    lines = [Text(_title(task, outcome, ran), style="bold"), Text()]
    if ran:
        lines.append(Text(_line(heads, widths), style="dim"))
    for name in names:
        if name in rows:
            lines.append(Text(_line([name, *rows[name][1:]], widths)))
        else:
            reason = f"{name.ljust(widths[0])}  {outcome.failures[name]}"
            lines.append(Text(_cut(reason, width), style="yellow"))
    if ran:
        lines += [Text(), *(Text(line, style="dim") for line in _explained(task, outcome, ran))]
    return lines


def _title(task: Task, outcome: Outcome, ran: Sequence[str]) -> str:
    cores = usable_cores()
    parts = [f"{task.num_envs} x {task.name}", _counted(cores, "core")]
    if PROCESSES in ran:
        parts.append(_counted(task.num_workers or min(cores, task.num_envs), "worker"))
    if NATIVE in ran:
        parts.append(_counted(task.num_workers or cores, "thread"))
    if _core.NAME != "native":
        parts.append("no compiled core")
    if ran:
        parts.append(f"{_counted(len(outcome.turns), 'turn')} of {1000 * SLICE_SECONDS:.0f} ms")
    return ", ".join(parts)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _cells(outcome: Outcome, name: str, references: Sequence[str]) -> list[str]:
    cells = [name, f"{quartiles(outcome.rates(name))[1]:,.0f}"]
    for reference in references:
        low, median, high = quartiles(outcome.ratios(name, reference))
        cells += [_times(median), "" if name == reference else f"{_times(low)}-{_times(high)}"]
    return cells


def _times(ratio: float) -> str:
    """Format a ratio with two or three digits."""
    if ratio >= 10:
        return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"
    return f"{ratio:.2g}" if ratio < 0.1 else f"{ratio:.2f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join cells; the first is aligned to the left, the others to the right."""
    first, *others = cells
    padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=False))]
    return "  ".join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _explained(task: Task, outcome: Outcome, ran: Sequence[str]) -> list[str]:
    lines = ["Medians over all turns; a ratio is taken within each turn.", *outcome.remarks]
    if BARE in ran:
        lines.append("bare: one env in a Python loop, all that one process can do.")
    if not task.source.steps_many and agents_of(task.first) > 1:
        lines.append("Counted are the steps of agents.")
    if DIRECT in ran:
        lines.append("direct: the vector env of its package, without Shoal around it.")
    return lines
