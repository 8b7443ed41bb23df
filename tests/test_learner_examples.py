"""The learners of others train on a Shoal vec: examples/torchrl and tianshou."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LEARNERS = ["torchrl", "tianshou"]
SAYS = re.compile(r"mean return ([\d.]+) at first, ([\d.]+) at last, (\d+) steps/s\n")


def train(learner, steps):
    """What it prints: the first and the last mean return, and steps per second."""
    command = [sys.executable, str(EXAMPLES / learner / "ppo_cartpole.py"), "--steps", str(steps)]
    # Tianshou compiles its own functions, which takes longer than a short run without that.
    environment = {**os.environ, "NUMBA_DISABLE_JIT": str(int(steps < 10_000))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    said = SAYS.fullmatch(done.stdout)
    assert said is not None, done.stdout
    return [float(number) for number in said.groups()]


@pytest.mark.parametrize("learner", LEARNERS)
def test_an_example_runs(learner):
    first, last, speed = train(learner, 4096)
    assert 9 <= first < 100  # in two updates there is little to learn
    assert 9 <= last < 100
    assert speed > 0


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_return_rises(learner):
    first, last, _ = train(learner, 30_000)
    assert first < 40
    assert last > 2 * first
