"""A PPO loop of one's own, of Shoal's parts: examples/ppo/own_loop.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core

LOOP = Path(__file__).parents[1] / "examples" / "ppo" / "own_loop.py"
SAYS = re.compile(r"mean return ([\d.]+) at first, ([\d.]+) at last, (\d+) steps/s\n")

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="its envs need the compiled core")


def train(steps):
    """What it prints: the first and the last mean return, and steps per second."""
    command = [sys.executable, str(LOOP), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    said = SAYS.fullmatch(done.stdout)
    assert said is not None, done.stdout
    return [float(number) for number in said.groups()]


def test_one_update_is_the_first_and_the_last():
    first, last, speed = train(1)
    assert 9 <= first < 40
    assert last == first
    assert speed > 0


@pytest.mark.slow
def test_the_return_rises():
    first, last, _ = train(40_000)
    assert first < 40
    assert last > 4 * first


def test_it_is_short():
    assert len(LOOP.read_text().splitlines()) < 100
