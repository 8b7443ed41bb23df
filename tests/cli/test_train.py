"""`shoal train` and `shoal eval`, as a user calls them."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")

QUICK = ["--num-envs", "8", "--horizon", "16", "--minibatch-size", "64", "--epochs", "2"]
COMPILED = "shoal/CartPole-v1"


def shoal(*args):
    command = [sys.executable, "-m", "shoal", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def train(folder, *args, steps=2000, env=COMPILED):
    return shoal("train", "ppo", "--env", env, "--run-dir", folder, "--total-steps", steps, *QUICK, *args)


def test_a_run_from_training_to_its_replay(tmp_path):
    run = tmp_path / "run"
    done = train(run, "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert f"preset: {COMPILED}" in done.stdout
    assert f"run: {run}" in done.stdout
    assert f"learning curve: {run / 'curve.png'}" in done.stdout
    assert (run / "curve.png").stat().st_size > 5000
    assert json.loads((run / "config.json").read_text())["config"]["seed"] == 3
    assert len((run / "metrics.jsonl").read_text().splitlines()) > 10
    played = shoal("eval", run, "--episodes", "7", "--json", "--replay", tmp_path / "replay.gif")
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout)
    assert set(found) == {"mean_return", "std_return", "episodes"}
    assert found["episodes"] == 7
    assert found["mean_return"] >= 8
    assert (tmp_path / "replay.gif").read_bytes().startswith(b"GIF89a")
    again = train(run)
    assert again.returncode == 2
    assert "holds a run already: choose another folder, or go on with it (--resume" in again.stderr
    finished = shoal("train", "ppo", "--run-dir", run, "--resume")
    assert "steps are done; to go on: more --total-steps" in finished.stdout
    less = shoal("train", "ppo", "--run-dir", run, "--resume", "--total-steps", "9")
    assert less.returncode == 2
    assert "total_steps: expected at least the" in less.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_resume_goes_on_bit_for_bit(tmp_path, number):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(whole, steps=60_000).returncode == 0
    command = [sys.executable, "-m", "shoal", "train", "ppo", "--env", COMPILED, "--run-dir", str(run)]
    process = subprocess.Popen(
        [*command, "--total-steps", "60000", *QUICK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert any(line.startswith("steps ") for line in process.stdout)  # it has begun
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert f"to go on where it was: shoal train ppo --run-dir {run} --resume" in out
    done = shoal("train", "ppo", "--run-dir", run, "--resume")
    assert done.returncode == 0, done.stderr
    last = [json.loads((each / "metrics.jsonl").read_text().splitlines()[-1]) for each in (whole, run)]
    for figures in last:
        del figures["seconds"], figures["steps_per_second"]
    assert last[0] == last[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "dqm"], "expected a learner: ppo, got 'dqm'"),
        (["train"], "--env: expected the env to learn"),
        (["train", "ppo"], "--env: expected the env to learn"),
        (["train", "ppo", "--total-steps", "5"], "--env: expected the env to learn"),
        (["train", "ppo", "--env", "CartPole-v1", "--total-steps", "1.5"], "expected a whole number"),
        (["train", "ppo", "--env", "CartPole-v1", "--totl-steps", "5"], "--total-steps"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--env-kwargs", "[]"],
            "--env-kwargs: expected a JSON object",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--env-kwargs", '{"gravity": 1}'],
            "shoal: --env-kwargs: CartPoleEnv.__init__() got an unexpected keyword argument 'gravity'",
        ),
        (["train", "ppo", "--env", "CartPol-v1"], "CartPole-v1"),
        (["train", "ppo", "--resume"], "--resume: expected --run-dir"),
        (
            ["train", "ppo", "--resume", "--run-dir", "x", "--seed", "3"],
            "--seed: the settings of the run hold",
        ),
        (["train", "ppo", "--resume", "--run-dir", "x"], "x: expected the folder of a run"),
        (["eval", "nowhere"], "nowhere: expected the folder of a run, but it does not exist"),
        (["eval", "nowhere", "--replay", "x.mp4"], "--replay: expected a file.gif, got x.mp4"),
        (["train", "ppo", "CartPole-v1"], "did you mean --env CartPole-v1?"),
        (["train", "ppo", "--env", "CartPole-v1", "--device", "cuda:99"], "device: expected one that torch"),
    ],
)
def test_mistakes(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = shoal(*args)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_env_in_a_file_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n\n\nclass Mine(gymnasium.Wrapper):\n"
        "    def __init__(self):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    done = shoal("train", "ppo", "--env", "mine.py:Mine", "--run-dir", "run", "--total-steps", "500", *QUICK)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shoal("eval", "../run", "--episodes", "2").returncode == 0
    replay = shoal("eval", "../run", "--episodes", "2", "--replay", "x.gif")
    assert replay.returncode == 2
    assert "a replay needs an env that takes render_mode='rgb_array'" in replay.stderr


BROKEN = """
import gymnasium, numpy as np


class Broken(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise LookupError("no goal on the map")


class Unmade(Broken):
    def __init__(self):
        raise LookupError("no map")
"""


@pytest.mark.parametrize("num_envs", [1, 4], ids=["in this process", "in workers"])
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("Broken", r"LookupError: no goal on the map, raised by step\(\) of env \d"),
        ("Unmade", r"LookupError: no map, raised while creating env \d"),
    ],
)
def test_an_env_that_raises_is_shown_alone(tmp_path, name, last, num_envs):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    options = ["--num-envs", num_envs, "--minibatch-size", "16"]
    done = train(tmp_path / "run", *options, env=f"{file}:{name}", steps="1e3")
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.fullmatch(f"shoal: {last}", lines[-1])
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 1
    assert str(file) in files[0]


def test_the_demo(tmp_path):
    done = shoal("demo", "--run-dir", tmp_path / "run", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    assert "Solved in" in done.stdout
    assert (tmp_path / "run" / "curve.png").stat().st_size > 5000
    assert (tmp_path / "run" / "replay.gif").exists()
