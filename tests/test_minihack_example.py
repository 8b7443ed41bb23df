"""The PPO of examples/minihack: it fails as it says with Gymnasium's vector env, and trains with Shoal's."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "minihack"


def run(name, *arguments):
    command = [sys.executable, str(FOLDER / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_gymnasiums_vector_env_fails_as_the_example_says():
    done = run("ppo_gymnasium.py")
    said = re.search(r"^    (TypeError: .*)$", (FOLDER / "ppo_gymnasium.py").read_text(), re.MULTILINE)[1]
    assert done.returncode == 1
    assert done.stderr.strip().endswith(said)
    assert "obs = np.zeros(" in done.stderr


@pytest.mark.slow
def test_shoals_trains():
    done = run("ppo_shoal.py", "60000")
    assert done.returncode == 0, done.stderr
    lengths = [float(mean) for mean in re.findall(r"mean length ([\d.]+)", done.stdout)]
    assert len(lengths) == 60000 // (32 * 64)
    assert max(lengths) > 200  # it cannot find the stairs
    assert lengths[-1] < 60  # and then it can


def test_nothing_but_the_envs_and_the_network_differs():
    """Neither storage nor advantages nor losses know what an observation is."""
    texts = [
        (FOLDER / name).read_text().split("class Policy")[1] for name in ("ppo_gymnasium.py", "ppo_shoal.py")
    ]
    lines = [text.splitlines() for text in texts]
    changed = [line for line in difflib.unified_diff(*lines, n=0) if re.match(r"[-+](?![-+])", line)]
    outside = [line for line in changed if "envs = " in line]
    inside = [line for line in changed if line not in outside]
    assert len(outside) == 3
    network = lines[1].index("def main():")
    assert all(line[1:] in lines[0][:network] + lines[1][:network] for line in inside)
