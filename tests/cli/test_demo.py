"""`shoal demo`: a benchmark, a run that is solved, its curve and its replay."""

import re

import pytest
from PIL import Image

from shoal import _core
from tests.cli.running import in_process, shoal

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")


def check_demo(done, folder):
    assert done.returncode == 0, done.stderr
    assert re.search(r"^shoal\.\w+ +[\d,]+  ", done.stdout, re.MULTILINE)  # the benchmark has figures
    assert "\nSolved in" in done.stdout
    assert f"shoal eval {folder}" in done.stdout
    assert (folder / "curve.png").stat().st_size > 5000
    assert (folder / "replay.gif").read_bytes().startswith(b"GIF89a")


def test_the_demo_ends_when_it_is_solved(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shoal.cli.demo.SOLVED", 40.0)  # soon reached
    monkeypatch.setattr("shoal.cli._replay.MOST_GIF_FRAMES", 20)  # to write hundreds takes seconds
    folder = tmp_path / "run"
    done = in_process(capsys, "demo", "--run-dir", folder, "--seconds", "0.1")
    check_demo(done, folder)
    with Image.open(folder / "replay.gif") as replay:
        assert replay.n_frames <= 20
    assert len((folder / "metrics.jsonl").read_text().splitlines()) < 50  # of about 150 for all its steps


@pytest.mark.slow
def test_the_demo_solves_cartpole(tmp_path):
    folder = tmp_path / "run"
    check_demo(shoal("demo", "--run-dir", folder, "--seconds", "0.5"), folder)
