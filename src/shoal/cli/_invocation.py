"""The command that calls `shoal`, for commands that Shoal suggests to the user."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def invocation() -> str:
    """Return the command that calls Shoal: `shoal`, or `python -m shoal` if that is not on PATH."""
    beside = Path(sys.executable).parent / "shoal"
    found = shutil.which("shoal")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "shoal"
    python = Path(sys.executable)
    below = python.is_relative_to(Path.cwd())
    return f"{shlex.quote(str(python.relative_to(Path.cwd()) if below else python))} -m shoal"
