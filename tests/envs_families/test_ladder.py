"""The four scripts of examples/atari."""

import difflib
import re
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import shoal
from shoal import _core

LADDER = Path(__file__).parents[2] / "examples" / "atari"
SCRIPTS = sorted(LADDER.glob("?_*.py"))


def code_of(script):
    """Its lines after the docstring."""
    return script.read_text().split('"""\n', 1)[1].splitlines()


def test_there_are_four_rungs_and_the_readme_has_them_all():
    assert [script.name[0] for script in SCRIPTS] == ["1", "2", "3", "4"]
    page = (LADDER / "README.md").read_text()
    assert all(f"({script.name})" in page for script in SCRIPTS)


@pytest.mark.parametrize(("lower", "upper"), [*pairwise(SCRIPTS)], ids=lambda script: script.stem)
def test_a_rung_is_a_handful_of_lines_above_the_one_before(lower, upper):
    changes = list(difflib.ndiff(code_of(lower), code_of(upper)))
    new = [line for line in changes if line.startswith("+ ")]
    assert 1 <= len(new) <= 6


class Clock:
    """Each call is a second after the one before."""

    def __init__(self):
        self.now = 0

    def perf_counter(self):
        self.now += 1
        return self.now


def make_fewer(env, num_envs, batch_size=None, **options):
    """Make four games where a script wants more, and batches of half of them where it wants halves."""
    return shoal.make(env, 4, batch_size=batch_size and 2, **options)


@pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")
@pytest.mark.parametrize(("script", "batch"), [(SCRIPTS[1], 4), (SCRIPTS[3], 2)], ids=["2_shoal", "4_async"])
def test_a_rung_counts_the_steps_of_its_envs(script, batch, capsys, monkeypatch):
    """Those of Shoal, that wait for all games and for half of them."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # as it is for all tests
    main = runpy.run_path(str(script))["main"]
    monkeypatch.setitem(main.__globals__, "time", Clock())
    monkeypatch.setitem(main.__globals__, "shoal", SimpleNamespace(make=make_fewer))
    main(3)
    assert capsys.readouterr().out == f"{2 * batch / 4:,.0f} steps per second\n"


# Slow: four processes, each with up to 64 games.
@pytest.mark.slow
@pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_rung_prints_its_rate(script):
    command = [sys.executable, str(script), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    rate = re.fullmatch(r"([\d,]+) steps per second\n", done.stdout)
    assert rate is not None
    assert int(rate[1].replace(",", "")) > 0
