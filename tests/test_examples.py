import subprocess
import sys
from pathlib import Path

import pytest

from shoal import _core

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*args):
    command = [sys.executable, str(EXAMPLES / "side_by_side.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.skipif(_core.NAME != "native", reason="the demo needs the compiled core")
def test_side_by_side_prints_all_rates():
    done = run("--num-envs", "2", "--seconds", "0.4", "--env", "FrozenLake-v1")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("gymnasium Sync", "gymnasium Async", "shoal.Serial", "shoal.Multiprocessing"):
        assert name in done.stdout


def test_side_by_side_says_what_is_wrong():
    done = run("--env", "CartPole-v99")
    assert done.returncode == 2
    assert "error: --env" in done.stderr
