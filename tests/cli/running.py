"""The command line: in this process, or as a process of its own."""

import os
import subprocess
import sys
from types import SimpleNamespace

from shoal.cli import main


def shoal(*args, **options):
    """Run it to its end; returns the finished process."""
    command = [sys.executable, "-m", "shoal", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def in_process(capture, *args):
    """Run it here, which saves importing torch again; returns the same as `shoal`.

    Args:
        capture: pytest's `capsys`.
        args: What follows `shoal`.
    """
    capture.readouterr()  # what was printed before
    try:
        code = main(list(map(str, args)))
    except SystemExit as left:  # as the parser of arguments does
        code = left.code
    out, err = capture.readouterr()
    return SimpleNamespace(returncode=code, stdout=out, stderr=err)


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
