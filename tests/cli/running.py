"""The command line, as a process of its own."""

import os
import subprocess
import sys


def shoal(*args, **options):
    """Run it to its end; returns the finished process."""
    command = [sys.executable, "-m", "shoal", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def python(code, *args):
    """Run some lines, for what cannot be had from outside."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def in_a_terminal(*args):
    """What it writes into a terminal, and its exit code."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "shoal", *map(str, args)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            try:
                while piece := terminal.read(65536):
                    written += piece
            except OSError:  # how a terminal ends
                pass
    return written.decode(), process.returncode
