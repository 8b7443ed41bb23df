"""Print the error of an env: its own traceback, without the frames of Shoal."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

import shoal
from shoal.errors import EnvError, ShoalError
from shoal.processes.remote_errors import WorkerTraceback
from shoal.stepping.env_faults import summary_of

OURS = str(Path(shoal.__file__).parent)
# A frame of Shoal in the text of a traceback: its line, and the lines below with a larger indent.
FRAME = re.compile(rf'^  File "{re.escape(OURS)}/(?!envs/).*\n(?:    .*\n)*', re.MULTILINE)


def is_of_an_env(error: BaseException) -> bool:
    """Return whether an env or its creator raised this error."""
    if isinstance(error, ShoalError) and not isinstance(error, EnvError):
        return False
    return bool(_where(error)) or isinstance(error.__cause__, WorkerTraceback)


def print_failure(error: BaseException) -> None:
    """Print the env's traceback, and a summary in one line."""
    cause = error.__cause__
    text = FRAME.sub("", cause.args[0]) if isinstance(cause, WorkerTraceback) else _traceback(error)
    where = f", {_where(error)}" if _where(error) else ""
    print(f"{text}\nshoal: {' '.join(summary_of(error).split())}{where}", file=sys.stderr)


def _where(error: BaseException) -> str:
    """Return the note of an error that names the env; "" if there is none."""
    notes = [str(note) for note in getattr(error, "__notes__", None) or []]
    return next((note for note in notes if note.startswith(("raised by ", "raised while creating env"))), "")


def _traceback(error: BaseException) -> str:
    whole = traceback.TracebackException.from_exception(error)
    own = [place for place, frame in enumerate(whole.stack) if frame.filename.startswith(OURS)]
    if own and own[-1] + 1 < len(whole.stack):
        del whole.stack[: own[-1] + 1]
    return "".join(whole.format())
