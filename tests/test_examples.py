"""What the README shows first: `make run`."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core

ROOT = Path(__file__).parents[1]


def command_of(*variables):
    """What `make run` would run, but for the interpreter."""
    make = ["make", "--no-print-directory", "-n", "-o", ".venv/.ready-cli", "run", *variables]
    # Without the arguments of a make that runs these tests.
    inherited = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS")}
    done = subprocess.run(
        make, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=100, check=True
    )
    python, *rest = shlex.split(done.stdout)
    assert python == ".venv/bin/python"
    return rest


@pytest.mark.parametrize(("variables", "args"), [([], []), (["ARGS=--seed 3"], ["--seed", "3"])])
def test_make_run_is_the_demo(variables, args):
    assert command_of(*variables) == ["-m", "shoal", "demo", *args]


def test_the_benchmark_prints_all_rates():
    command = [sys.executable, *shlex.split("-m shoal bench FrozenLake-v1 --num-envs 2 --seconds 0.4")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names = ["bare loop", "shoal.Serial", "gymnasium Sync", "gymnasium Async"]
    if _core.NAME == "native":
        names.append("shoal.Multiprocessing")
    for name in names:
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(name)]
        assert float(line.removeprefix(name).split()[0].replace(",", "")) > 0
