"""Ends the contestants should the harness be killed without a chance to do it itself.

A process of its own session that is told of process groups as they come and go, on its standard input. That
input ends when the harness does, however it ends; what is left then is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


class Guard:
    """The harness's side."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


def main() -> None:
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
