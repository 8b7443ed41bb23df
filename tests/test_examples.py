import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*args):
    command = [sys.executable, str(EXAMPLES / "side_by_side.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_side_by_side_prints_both_rates():
    done = run("--num-envs", "2", "--seconds", "0.4", "--env", "FrozenLake-v1")
    assert done.returncode == 0, done.stderr
    assert "shoal.Serial" in done.stdout
    assert "gymnasium SyncVectorEnv" in done.stdout
    assert "shoal / gymnasium:" in done.stdout


def test_side_by_side_says_what_is_wrong():
    done = run("--env", "CartPole-v99")
    assert done.returncode == 2
    assert "error: --env" in done.stderr
