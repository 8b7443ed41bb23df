"""`shoal hockey train` and `shoal hockey eval`, as a user calls them. All of it runs in this process."""

import json
import re
import shutil

import pytest

from shoal import _core
from shoal.cli._invocation import invocation
from shoal.learn import DQN, DQNConfig
from tests.cli.running import in_process
from tests.hockey.training.small import config, contents, phase, without_plots, write

pytestmark = [
    pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core"),
    # One process of pytest's runs all of this, so that the run is trained once.
    pytest.mark.xdist_group("hockey training on the command line"),
]
QUICK = ["--num-envs", 2, "--eval-games", 4, "--device", "cpu"]


def shoal(capture, *args):
    with without_plots():
        return in_process(capture, "hockey", *args)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run and what was said, once the run is first asked for."""
    folder, said = tmp_path_factory.mktemp("trained"), []

    def train(capture):
        if not said:
            path = write(folder, config(phase(episodes=4), phase("play", 2, "NORMAL", "basic_weak")))
            said.append(shoal(capture, "train", path, "--run-dir", folder / "run", *QUICK))
        return folder / "run", said[0]

    return train


@pytest.fixture
def run(trained, capsys, tmp_path):
    return shutil.copytree(trained(capsys)[0], tmp_path / "run")


def test_a_run_is_trained_and_told(trained, capsys):
    run, done = trained(capsys)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(
        r"^6 games, [\d,]+ steps, \d+ gradient steps; mean reward of the last games -?\d+\.\d\d\n"
        r"last evaluation: \d won, \d drawn, \d lost\n"
        rf"run: {run}\n"
        rf"to evaluate it: {invocation()} hockey eval {run}\n$",
        done.stdout,
        re.MULTILINE,
    )
    assert {"checkpoint.safetensors", "hockey.json", "csvs", "models"} <= {
        path.name for path in run.iterdir()
    }
    saved = json.loads((run / "hockey.json").read_text())
    assert saved["eval_weak_opponent"] is False
    assert saved["eval_num_games"] == 4
    assert saved["run_name"].endswith("_vec2")


def test_win_rates_are_told(trained, capsys):
    run, _ = trained(capsys)
    done = shoal(capsys, "eval", run, "--games", 4)
    assert (done.returncode, done.stderr) == (0, "")
    line = r"win rate \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\), \d won, \d drawn, \d lost\n"
    assert re.fullmatch(rf"weak    {line}strong  {line}", done.stdout)


def test_win_rates_as_json(trained, capsys):
    run, _ = trained(capsys)
    model = next(path for path in run.glob("models/*.safetensors") if "_ep" not in path.name)
    found = [
        json.loads(shoal(capsys, "eval", path, "--games", 6, "--json", "--seed", seed).stdout)
        for path, seed in ((run, 0), (model, 0), (run, 1))
    ]
    assert found[0] == found[1] != found[2]
    assert list(found[0]) == ["weak", "strong"]
    for score in found[0].values():
        assert set(score) == {"games", "wins", "draws", "losses", "win_rate", "interval"}
        assert score["games"] == 6 == score["wins"] + score["draws"] + score["losses"]
        low, high = score["interval"]
        assert low <= score["win_rate"] <= high


def test_a_run_goes_on(run, capsys):
    before = contents(run)
    done = shoal(capsys, "train", "--resume", "--run-dir", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n6 games, " in done.stdout
    csvs = {name: content for name, content in before.items() if name.endswith(".csv")}
    assert {name: content for name, content in contents(run).items() if name.endswith(".csv")} == csvs


def test_a_run_that_is_stopped_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    from shoal.hockey.training.curriculum import Curriculum
    from shoal.learn.learner import Learner

    seen, is_told = [], Curriculum.__call__
    watch = Learner.watch

    def remember(learner, on_batch):
        seen.append(learner)
        watch(learner, on_batch)

    def stop_later(curriculum, batch):
        is_told(curriculum, batch)
        if curriculum.games == 4 and len(seen) == 1:
            seen[0].stop()  # as Ctrl-C does

    monkeypatch.setattr(Learner, "watch", remember)
    monkeypatch.setattr(Curriculum, "__call__", stop_later)
    path, run = write(tmp_path, config(phase(episodes=8))), tmp_path / "run"
    done = shoal(capsys, "train", path, "--run-dir", run, *QUICK, "--eval-every", 0)
    assert done.returncode == 130
    assert "\n4 games, " in done.stdout
    assert f"stopped early; to go on: {invocation()} hockey train --resume --run-dir {run}\n" in done.stdout
    assert "last evaluation" not in done.stdout
    done = shoal(capsys, "train", "--resume", "--run-dir", run)
    assert done.returncode == 0
    assert "\n8 games, " in done.stdout


def test_a_run_begins_with_the_policy_of_another(trained, tmp_path, capsys):
    start, _ = trained(capsys)
    path = write(tmp_path, config(phase(episodes=1)))
    done = shoal(capsys, "train", path, "--run-dir", tmp_path / "run", "--start-from", start, *QUICK)
    assert done.returncode == 0
    assert "\n1 games, " in done.stdout
    done = shoal(
        capsys, "train", path, "--run-dir", tmp_path / "other", "--start-from", tmp_path / "none", *QUICK
    )
    assert done.returncode == 2
    assert "none: expected the file of a policy or the folder of a run, but it does not exist" in done.stderr


def test_settings_of_the_run_reach_it(tmp_path, capsys, monkeypatch):
    found = {}

    def train_run(config, **options):
        found.update(config=config, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.hockey.training.train.train_run", train_run)
    done = shoal(
        capsys,
        "train",
        "some.json",
        "--seed",
        3,
        "--eval-every",
        77,
        "--eval-opponent",
        "weak",
        "--num-envs",
        5,
    )
    assert done.returncode == 130
    assert found["config"] == "some.json"
    told = {
        name: found[name] for name in ("seed", "eval_freq_steps", "eval_weak_opponent", "num_envs", "run_dir")
    }
    assert told == {
        "seed": 3,
        "eval_freq_steps": 77,
        "eval_weak_opponent": True,
        "num_envs": 5,
        "run_dir": None,
    }
    assert (found["device"], found["checkpoint_path"], found["eval_num_games"]) == (None, None, 200)


def test_mistakes_in_the_file_are_told_at_once(tmp_path, capsys):
    content = config(phase(episodes=0))
    content["agent"]["type"] = "TD3"
    done = shoal(capsys, "train", write(tmp_path, content), "--run-dir", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    for message in (
        "config.json: 2 problems in the configuration",
        "curriculum.phases[0].episodes: expected a whole number of 1 or more, got 0",
        "agent.type: expected DDDQN or SAC, got 'TD3'",
    ):
        assert message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "CONFIG: expected a configuration file; or --resume with --run-dir"),
        (["none.json"], "config: cannot read none.json: No such file or directory"),
        (["--resume"], "--resume: expected --run-dir with the folder of the run, and no other file"),
        (
            ["a.json", "--resume", "--run-dir", "x"],
            "--resume: expected --run-dir with the folder of the run, and no",
        ),
        (
            ["--resume", "--run-dir", "nowhere"],
            "expected the folder of a hockey run, but it has no hockey.json",
        ),
        (
            ["CONFIG", "--device", "gpu"],
            "device: expected 'cpu', 'cuda', 'cuda:N', a number N or None, got 'gpu'",
        ),
        (["CONFIG", "--eval-games", "0"], "expected a whole number of 1 or more, got 0"),
        (["CONFIG", "--num-envs", "0"], "num_envs: expected at least 1, got 0"),
    ],
    ids=" ".join,
)
def test_wrong_arguments(tmp_path, capsys, monkeypatch, args, message):
    path = str(write(tmp_path, config()))
    monkeypatch.chdir(tmp_path)
    done = shoal(capsys, "train", *[path if arg == "CONFIG" else arg for arg in args])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_damaged_runs_are_refused(run, capsys):
    (run / "checkpoint.safetensors").write_bytes(b"\0" * 100)
    before = contents(run)
    done = shoal(capsys, "train", "--resume", "--run-dir", run)
    assert done.returncode == 2
    assert "checkpoint.safetensors" in done.stderr
    assert "damaged" in done.stderr
    assert contents(run) == before
    (run / "policy.safetensors").write_bytes(b"")
    done = shoal(capsys, "eval", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "policy.safetensors" in done.stderr


def test_agents_that_cannot_be_evaluated(trained, tmp_path, capsys):
    done = shoal(capsys, "eval", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the folder of a run or the file of a policy, got" in " ".join(done.stderr.split())
    with DQN("shoal/CartPole-v1", DQNConfig(num_envs=1, hidden=(8,))) as dqn:
        dqn.save(tmp_path / "cartpole")
    done = shoal(capsys, "eval", tmp_path / "cartpole")
    assert done.returncode == 2
    assert "expected a run on shoal/HockeyOne-v0" in " ".join(done.stderr.split())
    done = shoal(capsys, "eval", trained(capsys)[0], "--games", 0)
    assert done.returncode == 2
    assert "games: expected at least 1, got 0" in done.stderr


def test_bots_are_not_evaluated(capsys):
    done = shoal(capsys, "eval", "weak")
    assert "expected none, weak, strong" not in " ".join(done.stderr.split())
