"""kill -9 at random moments, then resume: the result is that of the uninterrupted run, bit for bit."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.learn import load
from tests.conftest import wait_until
from tests.learn.runs.folders import train_run

SCRIPT = """
import sys, time
from pathlib import Path
from shoal.learn import PPO, PPOConfig, Run, RunOptions, resume
from tests.learn.runs.folders import config

folder, env = Path(sys.argv[1]), sys.argv[2]
if (folder / "checkpoint.safetensors").exists():
    run = resume(folder)
else:
    run = Run(folder, PPO(env, config(total_steps=30_000)), env, options=RunOptions(checkpoint_seconds=0))
with run:
    print("begun", flush=True)
    run.learner.train(run)
    run.learner.close()
print("done", flush=True)
"""


def wait_for(process, path, size):
    """Wait until a process has written a file of more than this size, or has ended."""
    assert wait_until(lambda: path.stat().st_size > size or process.poll() is not None, 60)


@pytest.mark.parametrize(
    ("env", "kills"),
    [
        ("shoal/CartPole-v1", 1),
        pytest.param("shoal/CartPole-v1", 30, marks=pytest.mark.slow),
        pytest.param("CartPole-v1", 30, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(1200)
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path, env, kills):
    chance, folder, killed = random.Random(1), tmp_path / "run", 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), env],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        with process:
            assert process.stdout.readline() == "begun\n"
            if killed < kills:
                # After some more updates, at any moment of one: each writes a checkpoint.
                written = folder / "metrics.jsonl"
                wait_for(process, written, written.stat().st_size + chance.randrange(2000))
                for _ in range(chance.randrange(200_000)):
                    pass
                process.kill()
                killed += process.wait() == -9
            else:
                assert process.stdout.readline() == "done\n"
        if process.returncode == 0:
            break
        assert process.returncode == -9
    whole = train_run(tmp_path / "whole", env, updates=10**9, total_steps=30_000)
    expected = whole.policy.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load(folder).state_dict().items())
    assert not list(folder.glob("*.part"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == whole.updates == len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
