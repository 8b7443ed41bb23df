"""Helpers of all commands: a status line, handling of Ctrl-C, and suppressed output of other code."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.progress_bar import ProgressBar

from shoal.errors import ArgumentError


class _Bar(BarColumn):
    """A bar that is hidden while there is no count."""

    def render(self, task: Task) -> ProgressBar:
        bar = super().render(task)
        bar.width = self.bar_width if task.fields["left"] else 0
        return bar


class Display:
    """A status line at the bottom of the terminal, removed at the end. Without a terminal it does nothing.

    It is drawn only when its text or count changes. A thread that draws would disturb measurements, and would
    exist when processes are forked.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Show the line. Enter this before `quiet`."""
        if sys.stdout.isatty():
            # A new descriptor, because `quiet` redirects that of stdout.
            file = self._open.enter_context(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
            console = Console(file=file, width=shutil.get_terminal_size().columns)
            self._progress = Progress(
                TextColumn("{task.description}"),
                _Bar(),
                TextColumn("{task.fields[left]}"),
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._open.enter_context(self._progress)
            self._task = self._progress.add_task("", total=1.0, left="")
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the line."""
        self._progress = None
        self._open.close()

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self._progress is not None:
            self._progress.update(self._task, description=text, refresh=True)

    def count(self, done: float, total: float, left: str) -> None:
        """Show how much is done, and a text about what is left."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, left=left, refresh=True)


class Interrupts:
    """Remembers Ctrl-C, because Python drops what a signal handler raises while a process is forked."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Self:
        """Install the handler, unless other code has installed its own."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._ring)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handler from before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ring(self, *_: Any) -> None:
        self.came = True
        if callable(signal.getsignal(signal.SIGALRM)):
            # Other code runs with a time limit. The process it waits for may have ended by the same Ctrl-C,
            # and the exception raised here may be lost in a fork. So shorten the time limit to one second.
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress all output inside this context: of imports, envs, native code and new processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with Path(os.devnull).open("w") as nowhere:
            for number in kept:
                os.dup2(nowhere.fileno(), number)
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield
    finally:
        ctypes.CDLL(None).fflush(None)  # output of native code may still be in its buffers
        for number, own in kept.items():
            os.dup2(own, number)
            os.close(own)


def read_env_kwargs(text: str) -> dict[str, Any]:
    """Read arguments for an env from a JSON object.

    Raises:
        ArgumentError: If the text is not a JSON object.
    """
    expected = """--env-kwargs: expected a JSON object such as '{"size": 9}', got"""
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{expected} {text!r}: {error}") from None
    if not isinstance(kwargs, dict):
        raise ArgumentError(f"{expected} {text!r}")
    return kwargs
