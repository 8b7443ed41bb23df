"""What the commands share: a line that says what is going on, Ctrl-C, and silence for everybody else."""

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
    """No bar where nothing is counted."""

    def render(self, task: Task) -> ProgressBar:
        bar = super().render(task)
        bar.width = self.bar_width if task.fields["left"] else 0
        return bar


class Display:
    """A line at the bottom of the terminal, gone at the end. Nothing, if stdout is no terminal.

    It is drawn only when it is told something: a thread that draws would run while others are measured, and
    be there when processes are forked.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin, before `quiet` does."""
        if sys.stdout.isatty():
            # A descriptor of its own: stdout's is silenced meanwhile.
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
        """Take the line away."""
        self._progress = None
        self._open.close()

    def say(self, text: str) -> None:
        """What is being done."""
        if self._progress is not None:
            self._progress.update(self._task, description=text, refresh=True)

    def count(self, done: float, total: float, left: str) -> None:
        """How much of it has been done, and what is left."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, left=left, refresh=True)


class Interrupts:
    """A Ctrl-C that cannot get lost: what its handler raises while a process is forked, Python drops."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Self:
        """Take over, unless somebody has decided otherwise."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._ring)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ring(self, *_: Any) -> None:
        self.came = True
        if callable(signal.getsignal(signal.SIGALRM)):
            # Somebody has a time limit. What it waits for may have heard Ctrl-C too and be gone, and what is
            # raised here be lost in a fork: it is not to wait for long.
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise it, if it has come."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def quiet() -> Iterator[None]:
    """Let nobody print: imports, envs, native code, and processes that begin meanwhile."""
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
        ctypes.CDLL(None).fflush(None)  # what native code has printed is still in its buffers
        for number, own in kept.items():
            os.dup2(own, number)
            os.close(own)


def read_env_kwargs(text: str) -> dict[str, Any]:
    """Arguments for an env, written as a JSON object.

    Raises:
        ArgumentError: If it is none.
    """
    expected = """--env-kwargs: expected a JSON object such as '{"size": 9}', got"""
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{expected} {text!r}: {error}") from None
    if not isinstance(kwargs, dict):
        raise ArgumentError(f"{expected} {text!r}")
    return kwargs
