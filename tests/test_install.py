"""`tools/install.py`, which `make` runs pip with: what a terminal and a log get to see."""

import os
import pty
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tools" / "install.py"

# What pip says, and where it waits for us: for a line on its standard input.
PIP = """
import sys
print("Collecting numpy>=1.26 (from shoal)")
print("Processing /somewhere/scikit_learn-1.5.0-py3-none-any.whl (from shoal)")
print("Collecting torch>=2.4 (from shoal)")
print("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (190.4 MB)", flush=True)
sys.stdin.readline()
print("  Preparing editable metadata (pyproject.toml): started", flush=True)
sys.stdin.readline()
print("Installing collected packages: numpy, torch, shoal")
print("ERROR: no space left", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def command(status):
    return [sys.executable, SCRIPT, "2/2 packages", sys.executable, "-c", PIP, str(status)]


def run(status):
    return subprocess.run(
        command(status), input="\n\n", capture_output=True, text=True, timeout=60, check=False
    )


def test_a_log_says_what_was_done():
    done = run(0)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("2/2 packages: ")
    assert last.startswith("2/2 packages: done in ")
    assert "\r" not in done.stdout
    assert "\033" not in done.stdout


def test_a_failure_shows_all_that_pip_said():
    done = run(3)
    assert done.returncode == 3
    assert "2/2 packages: failed after " in done.stdout
    assert done.stderr.startswith("Collecting numpy>=1.26 (from shoal)\n")
    assert done.stderr.endswith("ERROR: no space left\n")


def test_a_pip_that_is_killed_is_told_from_one_that_fails():
    killed = [sys.executable, SCRIPT, "1/2", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert subprocess.run(killed, capture_output=True, timeout=60, check=False).returncode == 128 + 9


def test_a_terminal_has_one_line_that_changes():
    ours, theirs = pty.openpty()
    shown = b""
    wide = {**os.environ, "COLUMNS": "100"}
    with subprocess.Popen(
        command(0), stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=wide
    ) as process:
        os.close(theirs)
        for wanted in (b"3 packages found, downloading torch (190.4 MB), ", b"compiling the core, "):
            while wanted not in shown:
                shown += os.read(ours, 4096)
            process.stdin.write(b"\n")
            process.stdin.flush()
        while b"\n" not in shown:  # of the last line, which stays
            shown += os.read(ours, 4096)
        assert process.wait(60) == 0
    os.close(ours)
    *lines, last = shown.split(b"\r\033[K")
    assert len(lines) >= 3
    assert last.startswith(b"2/2 packages: done in ")
