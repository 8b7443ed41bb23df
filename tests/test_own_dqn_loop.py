"""A DQN loop of one's own, of Shoal's parts: examples/dqn/own_loop.py."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from shoal import _core

LOOP = Path(__file__).parents[1] / "examples" / "dqn" / "own_loop.py"
SAYS = re.compile(r"mean return ([\d.]+) at first, ([\d.]+) at last, (\d+) steps/s\n")


@pytest.fixture
def train(monkeypatch, capsys):
    """Runs the script; returns what it prints: the first and the last mean return, and steps per second."""

    def run(steps):
        monkeypatch.setattr(sys, "argv", [str(LOOP), "--steps", str(steps)])
        runpy.run_path(str(LOOP), run_name="__main__")
        said = SAYS.fullmatch(capsys.readouterr().out)
        assert said is not None
        return [float(number) for number in said.groups()]

    threads = torch.get_num_threads()  # of which the script takes one
    yield run
    torch.set_num_threads(threads)


@pytest.mark.skipif(_core.NAME != "native", reason="its envs need the compiled core")
def test_the_return_rises(train):
    first, last, speed = train(10_000)
    assert 9 <= first < 40
    assert last > 2 * first
    assert speed > 0


def test_it_is_short():
    assert len(LOOP.read_text().splitlines()) < 100
