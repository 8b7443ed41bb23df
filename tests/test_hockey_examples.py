"""The scripts of examples/hockey run as they are, with few games."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core

HERE = Path(__file__).parents[1] / "examples" / "hockey"
pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")


def run(script, *options, folder):
    return subprocess.run(
        [sys.executable, HERE / script, *options], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_quick_test_says_that_it_works(tmp_path):
    done = run("test_vectorized_integration.py", "--episodes", "4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "it works: " in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_whole_run_reads_another_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = run("train_single_run.py", "--config", "config.json", "--num-envs", "2", folder=tmp_path)
    assert done.returncode != 0
    assert re.search(r"config\.json: \d problems in the configuration:\n- curriculum: missing", done.stderr)
