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
from shoal.cli._invocation import invocation
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
    assert "preset: " not in done.stdout  # the options change all of it
    assert f"run: {run}" in done.stdout
    assert f"learning curve: {run / 'curve.png'}" in done.stdout
    assert (run / "curve.png").stat().st_size > 5000
    assert json.loads((run / "config.json").read_text())["config"]["seed"] == 3
    assert not [path.name for path in run.iterdir() if path.suffix in (".pt", ".part")]
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
    args = ["--run-dir", run, "--resume", "--total-steps", stopped_at + 500]
    args += ["--env", env] if ".py:" in env else []  # code is run only if it is named
    done = in_process(capsys, "train", "ppo", *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        f"changed: total_steps from {10**9} to {stopped_at + 500}\nthe envs go on from envs-" in done.stdout
    )
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
    assert re.search(f"to go on: .*shoal train ppo --run-dir {run} --resume\n", out)
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
    command = f"shoal train ppo --run-dir {run} --resume --env {env}"
    assert re.search(f"to go on: .*{command}\n", done.stdout)
    assert 900 < last_figures(run)["steps"] < 1200
    check_it_goes_on_bit_for_bit(run, capsys, env=env)


@of_one_run
def test_only_some_settings_change_on_resume(run, capsys):
    args = ["train", "ppo", "--run-dir", run, "--resume", "--total-steps", "2500"]
    fixed = in_process(capsys, *args, "--seed", "4")
    assert fixed.returncode == 2
    assert "seed: the run was begun with 3, and this cannot change; what can change: anneal, " in fixed.stderr
    done = in_process(capsys, *args, "--learning-rate", "1e-4", "--seed", "3", "--fresh-episodes")
    assert done.returncode == 0, done.stderr
    assert re.search(r"changed: learning_rate from \S+ to 0\.0001\n", done.stdout)
    assert re.search(r"going on at 2,\d\d\d steps\n", done.stdout)
    assert "the envs are not restored: new episodes begin\n" in done.stdout
    assert json.loads((run / "config.json").read_text())["config"]["learning_rate"] == 1e-4


ENCODER = """
import torch


class Wide(torch.nn.Module):
    def __init__(self, space):
        super().__init__()
        self.out_features = 7
        self.layer = torch.nn.Linear(space.shape[0], 7)

    def forward(self, obs):
        return self.layer(obs).relu()
"""


def test_an_encoder_of_the_users_own(tmp_path, capsys):
    file, run = tmp_path / "wide.py", tmp_path / "run"
    file.write_text(ENCODER)
    named = ["--encoder", f"{file}:Wide"]
    done = in_process(capsys, *training(run, *named, steps=500))
    assert done.returncode == 0, done.stderr
    assert f"to evaluate it: {invocation()} eval {run} --encoder {file}:Wide\n" in done.stdout
    again = ["train", "ppo", "--run-dir", run, "--resume", "--total-steps", "900"]
    for args in (["eval", run, "--episodes", "2"], again):
        unnamed = in_process(capsys, *args)
        assert unnamed.returncode == 2
        assert f"{file}:Wide" in unnamed.stderr
        assert in_process(capsys, *args, *named).returncode == 0


def test_an_evaluation_has_a_curve_and_a_best_policy(tmp_path, capsys):
    run = tmp_path / "run"
    done = in_process(capsys, *training(run, "--eval-every", "1e3", "--eval-episodes", "3"))
    assert done.returncode == 0, done.stderr
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    best = max(line["mean_return"] for line in evaluations)
    assert f"best evaluation: mean return {best:.5g}\n" in done.stdout
    assert in_process(capsys, "eval", run, "--best", "--episodes", "2").returncode == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "dqm"], "expected one of the learners ppo, dqn, sac, got dqm"),
        (["train"], "expected one of the learners ppo, dqn, sac, got none"),
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
        (["train", "ppo", "--resume", "--run-dir", "x", "--env-kwargs", "{}"], "--env-kwargs: the run has"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--fresh-episodes"],
            "--fresh-episodes: only with",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--encoder", "mine"],
            "--encoder: expected path/to/fi",
        ),
        (["train", "ppo", "--env", "CartPole-v1", "--encoder", "no.py:X"], "--encoder: there is no file"),
        (["train", "ppo", "--resume", "--run-dir", "x"], "x: expected the folder of a run"),
        (["eval", "nowhere"], "nowhere: expected the folder of a run, but it does not exist"),
        (["eval", "nowhere", "--replay", "x.avi"], "--replay: expected a file.gif or a file.mp4, got x.avi"),
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


@pytest.mark.parametrize(
    "args", [[], ["--total-steps", "5"], ["--resume"], ["--env="]], ids=lambda args: " ".join(args)
)
def test_a_run_without_an_env_is_refused_in_one_line(args, capsys):
    done = in_process(capsys, "train", "ppo", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"shoal: --(env|resume): expected .*\n", done.stderr)


def test_whole_numbers_may_have_an_exponent(tmp_path, capsys):
    options = {"--total-steps": "2e2", "--num-envs": "1e1", "--minibatch-size": "5E1", "--horizon": "1.0e1"}
    given = [part for option in options.items() for part in option]
    args = ["--env", "CartPole-v1", "--backend", "serial", "--run-dir", tmp_path / "run", *given]
    done = in_process(capsys, "train", "ppo", *args)
    assert (done.returncode, done.stderr) == (0, "")
    config = json.loads((tmp_path / "run/config.json").read_text())["config"]
    figures = [config[name] for name in ("total_steps", "num_envs", "minibatch_size", "horizon")]
    assert figures == [200, 10, 50, 10]
    assert all(type(figure) is int for figure in figures)


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
    # A process of its own, which has not seen the file yet.
    played = shoal("eval", "../run", "--env", "../mine.py:Mine", "--episodes", "2")
    assert (played.returncode, played.stderr) == (0, "")
    assert "2 episodes of" in played.stdout
