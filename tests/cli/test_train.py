"""`shoal train` and `shoal eval`, as a user calls them.

Training, a stop by Ctrl-C and a replay are each a process of their own. The rest runs in this process.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from shoal import _core
from tests.cli.running import in_process, shoal

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")

SMALL = ["--num-envs", "8", "--horizon", "16", "--minibatch-size", "64", "--epochs", "2"]
# On one thread, so that results are the same in all processes of all machines.
QUICK = [*SMALL, "--torch-threads", "1"]
COMPILED = "shoal/CartPole-v1"


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch):
    """Forget the folders of env files after each test."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


def training(folder, *args, steps=2000, env=COMPILED):
    """The arguments that train a run in that folder."""
    return ["train", "ppo", "--env", env, "--run-dir", folder, "--total-steps", steps, *QUICK, *args]


# One process of pytest's runs the tests of this run, so that it is trained once.
of_one_run = pytest.mark.xdist_group("a trained run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 2000 steps, by a process of its own: its folder, and the finished process."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, shoal(*training(folder, "--seed", "3"))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of that run, which a test may change."""
    return shutil.copytree(trained[0], tmp_path / "run")


@of_one_run
def test_a_run_is_trained_and_written(trained):
    run, done = trained
    assert (done.returncode, done.stderr) == (0, "")
    assert f"preset: {COMPILED}" in done.stdout
    assert f"run: {run}" in done.stdout
    assert f"learning curve: {run / 'curve.png'}" in done.stdout
    assert (run / "curve.png").stat().st_size > 5000
    assert json.loads((run / "config.json").read_text())["config"]["seed"] == 3
    assert len((run / "metrics.jsonl").read_text().splitlines()) > 10


@of_one_run
def test_a_run_is_played_and_recorded(trained, tmp_path):
    replay = tmp_path / "replay.gif"
    played = shoal("eval", trained[0], "--episodes", "7", "--json", "--replay", replay)
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout)
    assert set(found) == {"mean_return", "std_return", "episodes"}
    assert found["episodes"] == 7
    assert found["mean_return"] >= 8
    assert replay.read_bytes().startswith(b"GIF89a")


@of_one_run
def test_a_run_is_not_overwritten(trained, capsys):
    again = in_process(capsys, *training(trained[0]))
    assert again.returncode == 2
    assert "contains a run already: choose another folder, or resume it (--resume" in again.stderr


@of_one_run
def test_a_run_that_is_done_needs_more_steps(run, capsys):
    finished = in_process(capsys, "train", "ppo", "--run-dir", run, "--resume")
    assert finished.returncode == 0
    assert "steps are done; to go on: more --total-steps" in finished.stdout
    less = in_process(capsys, "train", "ppo", "--run-dir", run, "--resume", "--total-steps", "9")
    assert less.returncode == 2
    assert "total_steps: expected at least the" in less.stderr


def last_figures(run):
    """What the last update of a run came to, but for times."""
    figures = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    del figures["seconds"], figures["steps_per_second"]
    return figures


def check_it_goes_on_bit_for_bit(run, capsys, *, env=COMPILED):
    """Resume a run that was stopped, and compare it with one that was not.

    It was trained without --anneal, with which the learning rate would depend on how many steps it had to go.
    """
    stopped_at = last_figures(run)["steps"]
    done = in_process(capsys, "train", "ppo", "--run-dir", run, "--resume", "--total-steps", stopped_at + 500)
    assert (done.returncode, done.stderr) == (0, "")
    whole = run.with_name("whole")
    args = training(whole, "--no-anneal", steps=stopped_at + 500, env=env)
    assert in_process(capsys, *args).returncode == 0
    assert last_figures(run)["steps"] > stopped_at
    assert last_figures(run) == last_figures(whole)


def test_ctrl_c_saves_and_resume_goes_on_bit_for_bit(tmp_path, capsys):
    run = tmp_path / "run"
    args = training(run, "--no-anneal", steps="1e9")  # more than it can do before the signal comes
    with subprocess.Popen(
        [sys.executable, "-m", "shoal", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert any(line.startswith("steps ") for line in process.stdout)  # it has begun
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert re.search(f"to go on where it was: .*shoal train ppo --run-dir {run} --resume\n", out)
    check_it_goes_on_bit_for_bit(run, capsys)


STOPPED = """
import gymnasium, os, signal


class Stopped(gymnasium.Wrapper):
    steps = 0

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        Stopped.steps += 1
        if Stopped.steps == 1000:
            signal.raise_signal(signal.SIGTERM)
        return super().step(action)
"""


def test_sigterm_saves_and_resume_goes_on_bit_for_bit(tmp_path, capsys):
    run, file = tmp_path / "run", tmp_path / "stopped.py"
    file.write_text(STOPPED)
    env = f"{file}:Stopped"
    done = in_process(capsys, *training(run, "--no-anneal", steps="1e9", env=env), "--backend", "serial")
    assert done.returncode == 130
    assert re.search(f"to go on where it was: .*shoal train ppo --run-dir {run} --resume\n", done.stdout)
    assert 900 < last_figures(run)["steps"] < 1200
    check_it_goes_on_bit_for_bit(run, capsys, env=env)


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
            ["train", "ppo", "--env", "CartPole-v1", "--env-kwargs", '{"gravity": 1}', "--backend", "serial"],
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
        (
            ["train", "ppo", "--env", "CartPole-v1", "--device", "cuda:99", "--backend", "serial"],
            "device: expected a device that torch",
        ),
    ],
)
def test_mistakes(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = in_process(capsys, *args)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_env_in_a_file_is_found_from_any_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n\n\nclass Mine(gymnasium.Wrapper):\n"
        "    def __init__(self):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    done = in_process(capsys, *training("run", steps=500, env="mine.py:Mine"))
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path / "elsewhere")
    # A process of its own, which has not seen the file yet: it plays, and then cannot record.
    replay = shoal("eval", "../run", "--episodes", "2", "--replay", "x.gif")
    assert "2 episodes of" in replay.stdout
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
def test_an_env_that_raises_is_shown_alone(tmp_path, capsys, name, last, num_envs):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    options = ["--num-envs", num_envs, "--minibatch-size", "16"]
    done = in_process(capsys, *training(tmp_path / "run", env=f"{file}:{name}"), *options)
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.fullmatch(f"shoal: {last}", lines[-1])
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 1
    assert str(file) in files[0]
