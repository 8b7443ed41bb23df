"""Scripts that tests run in a process of their own."""

import subprocess
import sys
import textwrap

GUARD = 100  # seconds: against hanging only

METHODS = ("forkserver", "fork", "spawn")


def run_script(code, *arguments, folder=None):
    """Run code in a new process and wait for its end.

    Args:
        code: The script.
        *arguments: Of the script.
        folder: Write the script to a file there and run it there, with warnings as errors.
    """
    return subprocess.run(
        [*_command(code, folder), *arguments],
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
        cwd=folder,
    )


def said_by(code, *arguments, folder=None):
    """What a script that ends well has printed."""
    done = run_script(code, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_script(code, folder):
    """Start code in a new process and session, so that its whole group can be signalled."""
    return subprocess.Popen(
        _command(code, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


def _command(code, folder):
    code = textwrap.dedent(code)
    if folder is None:
        return [sys.executable, "-c", code]
    path = folder / "script.py"
    path.write_text(code)
    return [sys.executable, "-W", "error", str(path)]
