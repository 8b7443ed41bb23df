"""`shoal train dqn` and `shoal train sac`, as a user calls them. All of it runs in this process."""

import json
import re
import shutil
import sys
from dataclasses import fields

import pytest
import torch

from shoal import _core
from shoal.cli._invocation import invocation
from shoal.cli.seeds import side_by_side
from shoal.cli.seeds.side_by_side import SeedRun
from shoal.learn import DQNConfig, PPOConfig, SACConfig, load
from tests.cli.running import in_process
from tests.cli.test_seeds import ACTOR, args_of

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")

# On one thread, so that results are the same in all processes of all machines.
QUICK = ["--num-envs", "4", "--hidden", "16", "--batch-size", "32", "--warmup-steps", "100"]
QUICK += ["--updates-per-step", "1/8", "--torch-threads", "1"]
ENVS = {"dqn": "shoal/CartPole-v1", "sac": "shoal/Pendulum-v1"}
CONFIGS = {"ppo": PPOConfig, "dqn": DQNConfig, "sac": SACConfig}


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch):
    """Forget the folders of env files after each test."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


def training(learner, folder, *args, steps=300, env=None):
    """The arguments that train a run in that folder."""
    env = env or ENVS[learner]
    return ["train", learner, "--env", env, "--run-dir", folder, "--total-steps", steps, *QUICK, *args]


def resuming(learner, folder, *args):
    return ["train", learner, "--run-dir", folder, "--resume", *args]


def contents(folder):
    """All files of a folder, with the times at which they were written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# One process of pytest's runs the tests of these runs, so that each is trained once.
of_trained_runs = pytest.mark.xdist_group("trained runs with a replay")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of runs by learner, which are trained when they are first asked for."""
    folder, made = tmp_path_factory.mktemp("trained"), {}

    def train(learner, capture):
        if learner not in made:
            made[learner] = in_process(capture, *training(learner, folder / learner))
        return folder / learner, made[learner]

    return train


@of_trained_runs
@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_run_is_trained_and_written(trained, capsys, learner):
    run, done = trained(learner, capsys)
    assert (done.returncode, done.stderr) == (0, "")
    held = {"dqn": "learning_rate 0.001, n_step 5", "sac": "num_envs 4"}[learner]  # what no option changes
    assert f"preset: {ENVS[learner]}: {held}" in done.stdout
    assert re.search(
        r"\nenvs: Native\(.*\nreplay: 608 transitions, 0\.0 MB when full, 0 so far\n", done.stdout
    )
    assert f"to evaluate it: {invocation()} eval {run}\n" in done.stdout
    described = json.loads((run / "config.json").read_text())
    assert (described["algorithm"], described["config"]["updates_per_step"]) == (learner, 0.125)
    (line,) = metrics(run)  # 300 steps are fewer than one report
    assert 300 <= line["steps"] <= 303
    assert line["updates"] == (300 - 100) // 8
    assert line["q_values"] != 0
    assert ("temperature" in line) == (learner == "sac")
    assert len(list(run.glob("replay-*.safetensors"))) == 1
    assert not list(run.glob("*.part"))


@of_trained_runs
@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_run_is_played(trained, capsys, learner):
    run, _ = trained(learner, capsys)
    for args in ([], ["--sample"]):
        played = in_process(capsys, "eval", run, "--episodes", "3", "--json", *args)
        assert (played.returncode, played.stderr) == (0, "")
        found = json.loads(played.stdout)
        assert found["episodes"] == 3
        assert found["mean_return"] >= 8 if learner == "dqn" else -2000 < found["mean_return"] < 0


@pytest.mark.parametrize(
    ("learner", "options"),
    # Without what depends on the number of steps to go.
    [("dqn", ["--epsilon-decay", "0.9", "--n-step", "2"]), ("sac", ["--noise", "pink", "--mode", "overlap"])],
)
def test_a_run_goes_on_to_more_steps_bit_for_bit(tmp_path, capsys, learner, options):
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert in_process(capsys, *training(learner, run, *options)).returncode == 0
    done = in_process(capsys, *resuming(learner, run, "--total-steps", "500"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "changed: total_steps from 300 to 500\nthe envs go on from envs-" in done.stdout
    assert re.search(r"^going on at 30\d steps\nenvs: .*\nreplay: .*, [23]\d\d so far$", done.stdout, re.M)
    assert in_process(capsys, *training(learner, whole, *options, steps=500)).returncode == 0
    assert metrics(run)[-1]["updates"] == metrics(whole)[-1]["updates"] > metrics(run)[0]["updates"]
    first, second = (load(folder).state_dict() for folder in (run, whole))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())

    finished = in_process(capsys, *resuming(learner, run))
    assert finished.returncode == 0
    assert "steps are done; to go on: more --total-steps" in finished.stdout


STOPPED = """
import gymnasium, signal


class Stopped(gymnasium.Wrapper):
    steps = 0

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        Stopped.steps += 1
        if Stopped.steps == 170:
            signal.raise_signal(signal.SIGTERM)
        return super().step(action)
"""


def test_sigterm_ends_it_after_the_step_and_saves(tmp_path, capsys):
    run, file = tmp_path / "run", tmp_path / "stopped.py"
    file.write_text(STOPPED)
    env = f"{file}:Stopped"
    done = in_process(capsys, *training("dqn", run, "--backend", "serial", steps="1e6", env=env))
    assert done.returncode == 130
    assert f"stopped early; to go on: {invocation()} train dqn --run-dir {run} --resume --env {env}\n" in (
        done.stdout
    )
    assert 160 < metrics(run)[-1]["steps"] <= 172  # not at the next report
    again = in_process(capsys, *resuming("dqn", run, "--env", env, "--total-steps", "200"))
    assert again.returncode == 0, again.stderr
    assert "the envs go on from envs-" in again.stdout


@of_trained_runs
@pytest.mark.parametrize(("learner", "wrong"), [("dqn", "sac"), ("sac", "dqn"), ("dqn", "ppo")])
def test_a_run_of_another_learner_is_refused_before_anything_changes(trained, capsys, learner, wrong):
    run, _ = trained(learner, capsys)
    before = contents(run)
    for options in ([], ["--total-steps", "900"], ["--learning-rate", "1e-5", "--fresh-episodes"]):
        refused = in_process(capsys, *resuming(wrong, run, *options))
        assert (refused.returncode, refused.stdout) == (2, "")
        right = f"{invocation()} train {learner} --run-dir {run} --resume"
        assert refused.stderr == f"shoal: {run}: this is a run of {learner.upper()}: {right}\n"
    assert contents(run) == before


@of_trained_runs
def test_only_some_settings_change_on_resume(trained, tmp_path, capsys):
    run = shutil.copytree(trained("dqn", capsys)[0], tmp_path / "run")
    for option, value in (("--replay-size", "5000"), ("--prioritized", None), ("--warmup-steps", "7")):
        given = [option] if value is None else [option, value]
        fixed = in_process(capsys, *resuming("dqn", run, "--total-steps", "350", *given))
        assert fixed.returncode == 2
        name = option[2:].replace("-", "_")
        assert re.search(f"{name}: the run was begun with .*, and this cannot change; what", fixed.stderr)
    done = in_process(capsys, *resuming("dqn", run, "--total-steps", "350", "--updates-per-step", "1/2"))
    assert done.returncode == 0, done.stderr
    assert "changed: updates_per_step from 0.125 to 0.5\n" in done.stdout
    before, after = metrics(run)
    assert after["updates"] - before["updates"] == (after["steps"] - before["steps"]) // 2


# -- several seeds -----------------------------------------------------------------------------------------


@pytest.fixture
def _actor(tmp_path, monkeypatch):
    """Let a script play the part of all runs."""
    file = tmp_path / "actor.py"
    file.write_text(ACTOR + "learn(300)")
    monkeypatch.setattr(side_by_side, "COMMAND", (sys.executable, "-S", "-E", str(file)))


@pytest.mark.usefixtures("_actor")
def test_seeds_are_trained_and_compared(tmp_path, capsys):
    folder = tmp_path / "runs"
    done = in_process(capsys, *training("dqn", folder, "--seeds", "2"))
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["algorithm"], summary["env"]) == ("dqn", ENVS["dqn"])
    assert [(each["seed"], each["status"], each["steps"]) for each in summary["seeds"]] == [
        (1, "done", 300),
        (2, "done", 300),
    ]
    assert f"preset: {ENVS['dqn']}\nDQN on {ENVS['dqn']}, 2 seeds, " in done.stdout
    for seed in (1, 2):
        args = args_of(folder / f"seed-{seed}")
        start = ["train", "dqn", "--run-dir", f"{folder}/seed-{seed}", "--seed", f"{seed}", "--env"]
        assert args == [*start, ENVS["dqn"], "--total-steps", "300", *QUICK]

    before = contents(folder)
    refused = in_process(capsys, *resuming("sac", folder, "--total-steps", "900"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"shoal: {folder}: these runs were begun by shoal train dqn, and this cannot change\n"
    )
    assert contents(folder) == before
    done = in_process(capsys, *resuming("dqn", folder, "--total-steps", "900", "--n-step", "2"))
    assert done.returncode == 0, done.stderr
    assert args_of(folder / "seed-2") == [
        *resuming("dqn", f"{folder}/seed-2"),
        *("--total-steps", "900", "--n-step", "2"),
    ]


# -- mistakes and help -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "options", "message"),
    [
        ("dqn", ["--tau", "1"], "shoal: --tau: did you mean --target-rate?"),
        ("sac", ["--learning-starts=5"], "shoal: --learning-starts: did you mean --warmup-steps?"),
        ("dqn", ["--learning_starts", "5"], "shoal: --learning_starts: did you mean --warmup-steps?"),
        ("dqn", ["--buffer-size", "5"], "shoal: --buffer-size: did you mean --replay-size?"),
        ("dqn", ["--exploration-fraction", "1"], "--exploration-fraction: did you mean --exploration?"),
        ("dqn", ["--alpha", "1"], "shoal: --alpha: did you mean --priority-exponent?"),
        ("sac", ["--alpha", "1"], "shoal: --alpha: did you mean --temperature?"),
        ("dqn", ["--horizon", "5"], "Unrecognized options: --horizon"),
        ("dqn", ["--noise", "pink"], "Unrecognized options: --noise"),
        ("sac", ["--noise", "blue"], "Expected one of ('white', 'pink', 'red')"),
        ("dqn", ["--updates-per-step", "1/0"], "expected a number, such as 0.125 or 1/8"),
        ("dqn", ["--updates-per-step", "-1"], "updates_per_step: expected at least 0, got -1.0"),
        ("dqn", ["--replay-size", "31"], "replay_size: expected at least 32 (a batch of 32, and 4 rows"),
        ("sac", ["--replay-size", "39", "--n-step", "9"], "expected at least 40 (a batch of 32, and 4 rows"),
        ("dqn", ["--frame-stack", "4"], "frame_stack: expected the length of the first or last axis"),
        (
            "dqn",
            ["--env", ENVS["sac"]],
            "shoal: DQN chooses among alternatives: expected a Discrete, MultiDiscrete or MultiBinary action "
            "space, got Box(-2.0, 2.0, (1,), float32). For continuous actions: SAC or PPO",
        ),
        (
            "sac",
            ["--env", ENVS["dqn"]],
            "shoal: SAC needs continuous actions: expected a Box of floats, got Discrete(2). For discrete "
            "choices: DQN; for both kinds at once: PPO",
        ),
    ],
)
def test_mistakes(learner, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = in_process(capsys, "train", learner, "--env", ENVS[learner], *QUICK, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_replay_that_is_too_small_for_all_seeds_is_refused_once(tmp_path, monkeypatch, capsys, learner):
    monkeypatch.setattr(SeedRun, "start", lambda *_: pytest.fail("a run was started"))
    done = in_process(capsys, *training(learner, tmp_path / "runs", "--seeds", "2", "--replay-size", "31"))
    assert done.returncode == 2
    assert done.stderr.count("replay_size: expected at least 32") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("learner", CONFIGS)
def test_help_lists_all_settings_of_the_learner(capsys, learner):
    shown = in_process(capsys, "train", learner, "--help")
    assert shown.returncode == 0
    listed = set(re.findall(r"^\W{0,2}(--[a-z][a-z-]*)", shown.stdout, re.M))
    names = {each: {f"--{one.name.replace('_', '-')}" for one in fields(CONFIGS[each])} for each in CONFIGS}
    assert names[learner] <= listed
    others = set.union(*names.values()) - names[learner]
    assert others
    assert not others & listed


def test_help_names_all_learners(capsys):
    shown = in_process(capsys, "train", "--help")
    assert shown.returncode == 0
    assert "Learners: ppo, dqn, sac." in shown.stdout
