"""Run pip, and say in one line what it is doing and for how long.

    python tools/install.py "1/2 build tools" python -m pip install ...

In a terminal that line is written anew every second; a log gets it every 15 seconds. If the command fails,
all that it has said is printed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

SECONDS_IN_A_TERMINAL, SECONDS_IN_A_LOG = 1, 15

FOUND = re.compile(r"\s*(?:Collecting|Processing) (?:\S*/)?([\w.]+(?:-[A-Za-z][\w.]*)*)")
DOWNLOADING = re.compile(r"\s*Downloading ([\w.]+?)-\d\S* \(([^)]*)\)")
# The core is compiled while pip asks what Shoal needs: its build backend has to build to know.
COMPILING = re.compile(r"\s*(Preparing editable metadata|Building editable) .*started")
BUILDING = re.compile(r"\s*Building \w+ for ([\w.-]+) .*started")
INSTALLING = re.compile(r"Installing collected packages: (.*)")


class Pip:
    """What a running pip has said, and what that means.

    Args:
        command: The command.
    """

    def __init__(self, command: list[str]) -> None:
        self.said: list[str] = []
        self.doing = "looking for what is needed"
        self._found: set[str] = set()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end."""
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            self._note(line)

    def _note(self, line: str) -> None:
        if match := FOUND.match(line):
            self._found.add(match[1])
            self.doing = f"{len(self._found)} packages found, now {match[1]}"
        elif match := DOWNLOADING.match(line):
            self.doing = f"{len(self._found)} packages found, downloading {match[1]} ({match[2]})"
        elif COMPILING.match(line):
            self.doing = "compiling the core"
        elif match := BUILDING.match(line):
            self.doing = f"building {match[1]}"
        elif match := INSTALLING.match(line):
            self.doing = f"installing {match[1].count(',') + 1} packages"


class Line:
    """One line on the screen, or some in a log.

    Args:
        title: What it begins with.
    """

    def __init__(self, title: str) -> None:
        self._title, self._start = title, time.monotonic()
        self._in_terminal = sys.stdout.isatty()
        self.seconds = SECONDS_IN_A_TERMINAL if self._in_terminal else SECONDS_IN_A_LOG

    def show(self, doing: str, *, last: bool = False) -> None:
        """Say what is going on; the last line stays."""
        passed = f"{time.monotonic() - self._start:.0f} s"
        text = f"{self._title}: {doing} {passed}" if last else f"{self._title}: {doing}, {passed}"
        if self._in_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)


def main(title: str, command: list[str]) -> int:
    """Run the command; returns its exit code, or 128 and the signal that ended it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    line, pip = Line(title), Pip(command)
    try:
        line.show(pip.doing)
        while not pip.ends_within(line.seconds):
            line.show(pip.doing)
        status = pip.process.wait()
    except KeyboardInterrupt:
        line.show("interrupted after", last=True)
        return 128 + signal.SIGINT
    finally:
        if pip.process.poll() is None:
            pip.process.terminate()
            pip.process.wait()
    line.show("failed after" if status else "done in", last=True)
    if status:
        sys.stderr.writelines(pip.said)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
