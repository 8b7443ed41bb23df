"""`shoal train ppo --seeds N`, as a user calls it.

Some tests train. Where it only matters how processes start and end, a script plays the part of a run.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from shoal import _core
from shoal.cli.seeds import side_by_side
from shoal.cli.seeds.side_by_side import SeedRun, Status, core_groups
from shoal.cli.seeds.summary import Outcome, mean_curve, spread
from shoal.cli.seeds.view import SeedView
from shoal.cores import affinity, usable_cores
from shoal.learn.runs.metrics import read_lines
from tests.cli.running import in_process
from tests.cli.updates import Clock

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")

SMALL = ["--num-envs", "8", "--horizon", "16", "--minibatch-size", "64", "--epochs", "2"]
# On one thread, so that results are the same in all processes of all machines.
QUICK = [*SMALL, "--torch-threads", "1"]
COMPILED = "shoal/CartPole-v1"


def training(folder, *args, steps=1000, env=COMPILED):
    """The arguments that train in that folder."""
    return ["train", "ppo", "--env", env, "--run-dir", folder, "--total-steps", steps, *QUICK, *args]


@pytest.fixture(autouse=True)
def _own_process_state(monkeypatch):
    """Forget the folders of env files after each test, and survive signals that the code fails to catch."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    handlers = {number: signal.getsignal(number) for number in numbers}
    cores = affinity()
    yield
    assert {number: signal.getsignal(number) for number in numbers} == handlers
    assert affinity() == cores
    for number, handler in before.items():
        signal.signal(number, handler)


def summary_of(folder):
    """The figures of all seeds, by seed, and those over seeds."""
    summary = json.loads((folder / "summary.json").read_text())
    return {each["seed"]: each for each in summary["seeds"]}, summary["over_seeds"]


def statuses(folder):
    return {seed: each["status"] for seed, each in summary_of(folder)[0].items()}


def last_figures(run):
    """What the last update of a run came to, but for times."""
    figures = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    del figures["seconds"], figures["steps_per_second"]
    return figures


# -- real runs ---------------------------------------------------------------------------------------------


# An env with a fault in the run of seed 2 only.
FAULTY = """
import gymnasium, os, signal, sys, time
from pathlib import Path


class Faulty(gymnasium.Wrapper):
    steps, faulty = 0, any(part.endswith("seed-2") for part in sys.argv)

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        self.steps += 1
        if self.faulty and self.steps == 200:
            self.fail()
        return super().step(action)


class Raises(Faulty):
    def fail(self):
        raise LookupError("no goal on the map")


class Interrupts(Faulty):
    def fail(self):
        flag = Path(__file__).with_name("interrupted")
        if not flag.exists():
            flag.touch()
            ours = signal.getsignal(signal.SIGTERM)
            os.kill(os.getppid(), signal.SIGINT)
            guard = time.monotonic() + 60
            while signal.getsignal(signal.SIGTERM) is ours:  # until the parent has passed the signal on
                assert time.monotonic() < guard
                time.sleep(0.001)
"""
ONE_ENV = ["--num-envs", "1", "--horizon", "64", "--backend", "serial"]


@pytest.fixture
def faulty(tmp_path):
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    return file


def test_seeds_are_trained_and_compared_and_one_fails(tmp_path, faulty, capsys):
    folder, alone, env = tmp_path / "runs", tmp_path / "alone", f"{faulty}:Raises"
    options = [*ONE_ENV, "--eval-every", "200", "--eval-episodes", "2"]
    done = in_process(capsys, *training(folder, "--seeds", "2", "--seed", "1", *options, steps=500, env=env))
    assert in_process(capsys, *training(alone, *options, steps=500, env=env)).returncode == 0
    assert last_figures(folder / "seed-1") == last_figures(alone)

    assert done.returncode == 1
    assert statuses(folder) == {1: "done", 2: "failed"}
    one, over_seeds = summary_of(folder)[0][1], summary_of(folder)[1]
    assert one["mean_return"] == last_figures(alone)["mean_return"] == over_seeds["mean_return"]["mean"]
    assert one["steps"] >= 500
    assert one["best_evaluation"] >= 8
    assert over_seeds["mean_return"]["seeds"] == 1
    assert (folder / "curve.png").stat().st_size > 5000
    assert "envs: Serial" in (folder / "seed-1" / "log.txt").read_text()

    assert re.search(r"^1 +done +5\d\d +\d", done.stdout, re.MULTILINE)
    assert re.search(r"^2 +failed +\d", done.stdout, re.MULTILINE)
    assert re.search(r"^mean +\d", done.stdout, re.MULTILINE)
    assert "over the 1 of 2 seeds that are done" in done.stdout
    assert f"learning curves: {folder / 'curve.png'}" in done.stdout
    assert f"seed 2 failed with exit code 1; the end of {folder}/seed-2/log.txt:" in done.stderr
    assert done.stderr.count("shoal: LookupError: no goal on the map, raised by step() of env 0") == 1
    assert f"to go on with the failed seeds: {shown(folder)} --env {env}\n" in done.stdout


def shown(folder):
    """The end of the command to go on with, as it is printed."""
    from shoal.cli._invocation import invocation

    return f"{invocation()} train ppo --run-dir {folder} --resume"


def test_ctrl_c_stops_all_and_resume_finishes_all(tmp_path, faulty, capsys):
    folder, env = tmp_path / "runs", f"{faulty}:Interrupts"
    args = training(folder, "--seeds", "2", "--seed", "2", *ONE_ENV, steps=500, env=env)
    stopped = in_process(capsys, *args)
    assert stopped.returncode == 130
    assert "shoal: each run stops after its update" in stopped.stderr
    assert f"stopped early; to go on: {shown(folder)} --env {env}\n" in stopped.stdout
    assert statuses(folder)[2] == "stopped"
    assert 0 < summary_of(folder)[0][2]["steps"] < 500

    unnamed = in_process(capsys, "train", "ppo", "--run-dir", folder, "--resume")
    assert unnamed.returncode == 2
    assert f"the env of these runs is code, {env}, which is run only if you name it" in unnamed.stderr

    done = in_process(capsys, "train", "ppo", "--run-dir", folder, "--resume", "--env", env)
    assert done.returncode == 0, done.stderr
    assert statuses(folder) == {2: "done", 3: "done"}
    assert all(each["steps"] >= 500 for each in summary_of(folder)[0].values())


# -- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env", COMPILED, "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["--env", COMPILED, "--seeds", "-1"], "--seeds: expected at least 1, got -1"),
        (["--seeds", "3"], "--env: expected the env to learn"),
        (["--env", "CartPol-v1", "--seeds", "3"], "no env is called 'CartPol-v1'"),
        (["--env", COMPILED, "--seeds", "3", "--total-steps", "1.5"], "expected a whole number"),
        (["--env", COMPILED, "--seeds", "3", "--env-kwargs", "[]"], "--env-kwargs: expected a JSON object"),
        (["--env", COMPILED, "--seeds", "3", "--horizon", "2"], "minibatch_size: expected at most 128"),
        (["--env", COMPILED, "--seeds", "2", "--seed", 2**62], "seed: expected at least 0"),
        (["--env", COMPILED, "--seeds", "2", "--fresh-episodes"], "--fresh-episodes: only with --resume"),
        (["--env", COMPILED, "--seeds", "2", "--encoder", "x"], "--encoder: expected path/to/file.py:Class"),
        (["--seeds", "2", "--resume"], "--resume: expected --run-dir"),
        (["--seeds", "2", "--resume", "--run-dir", "x"], "x: expected a folder that shoal train --seeds"),
    ],
)
def test_mistakes_are_told_before_anything_starts(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SeedRun, "start", lambda *_: pytest.fail("a run was started"))
    done = in_process(capsys, "train", "ppo", *args)
    assert done.returncode == 2
    assert (done.stderr + done.stdout).count(message) == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# -- runs that a script plays ------------------------------------------------------------------------------

ACTOR = """
import json, os, signal, sys
from pathlib import Path

signal.alarm(100)  # ends it if the test cannot
parent, args = int(sys.argv[1]), sys.argv[2:]
folder = Path(args[args.index("--run-dir") + 1])
seed = int(folder.name[5:])
print("args", json.dumps(args), flush=True)


def learn(steps):
    (folder / "config.json").write_text(json.dumps({"config": {"total_steps": 1000}}))
    line = {"steps": steps, "updates": 1, "seconds": 1.0, "steps_per_second": 100.0, "mean_return": seed}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + chr(10))
    (folder / "checkpoint.safetensors").touch()


def interrupt():
    # Ctrl-C, as the user would press it
    if os.getppid() == parent:
        os.kill(parent, signal.SIGINT)


"""


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Let a script play the part of all runs."""

    def use(script):
        file = tmp_path / "actor.py"
        file.write_text(ACTOR + script)
        # -S -E: without site-packages, so that it starts fast.
        monkeypatch.setattr(side_by_side, "COMMAND", (sys.executable, "-S", "-E", str(file)))

    return use


def args_of(run):
    """The arguments of the last process of a run."""
    lines = (run / "log.txt").read_text().splitlines()
    return json.loads([line for line in lines if line.startswith("args ")][-1].removeprefix("args "))


def test_what_fails_alike_is_told_once(act, tmp_path, capsys):
    act("print('shoal: device: expected a device that torch can use', file=sys.stderr); sys.exit(2)")
    done = in_process(capsys, *training(tmp_path / "runs", "--seeds", "4"))
    assert done.returncode == 2
    assert done.stderr.count("shoal: device: expected a device that torch can use\n") == 1
    assert "seed 1, 2, 3, 4 failed with exit code 2" in done.stderr


def test_a_damaged_run_does_not_keep_the_others_from_going_on(act, tmp_path, capsys):
    act("learn(500)")
    assert in_process(capsys, *training(tmp_path / "runs", "--seeds", "3")).returncode == 0
    act("if seed == 1: sys.exit(2)\nlearn(1000)")
    done = in_process(
        capsys, "train", "ppo", "--run-dir", tmp_path / "runs", "--resume", "--total-steps", 1000
    )
    assert done.returncode == 2
    assert statuses(tmp_path / "runs") == {1: "failed", 2: "done", 3: "done"}


def test_a_later_error_of_one_seed_is_no_mistake(act, tmp_path, capsys):
    act("learn(1000)\nsys.exit(2 if seed == 1 else 0)")
    done = in_process(capsys, *training(tmp_path / "runs", "--seeds", "3"))
    assert done.returncode == 2
    assert statuses(tmp_path / "runs") == {1: "failed", 2: "done", 3: "done"}


def test_a_killed_run_is_a_failed_run(act, tmp_path, capsys):
    act("learn(10)\nif seed == 2: os.kill(os.getpid(), signal.SIGKILL)")
    done = in_process(capsys, *training(tmp_path / "runs", "--seeds", "2"))
    assert done.returncode == 1
    assert statuses(tmp_path / "runs") == {1: "done", 2: "failed"}
    assert "seed 2 was ended by SIGKILL; the end of" in done.stderr


def test_failures_that_are_alike_are_shown_once(act, tmp_path, capsys):
    act("print('shoal: no goal'); sys.exit(1)")
    done = in_process(capsys, *training(tmp_path / "runs", "--seeds", "3"))
    assert done.returncode == 1
    assert "seed 1, 2, 3 failed with exit code 1" in done.stderr
    assert done.stderr.count("shoal: no goal") == 1


def test_the_second_ctrl_c_kills(act, tmp_path, capsys):
    act(
        """
signal.signal(signal.SIGTERM, lambda *_: interrupt())  # the second Ctrl-C
interrupt()
while True:
    signal.pause()
"""
    )
    done = in_process(capsys, *training(tmp_path / "runs", "--seeds", "1"))
    assert done.returncode == 130
    assert statuses(tmp_path / "runs") == {1: "stopped"}


def test_runs_that_waited_are_started_by_resume_with_all_options(act, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs"
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 1)
    act(
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
learn(500)
interrupt()
while True:
    signal.pause()
"""
    )
    stopped = in_process(capsys, *training(folder, "--seeds", "2", "--no-anneal"))
    assert stopped.returncode == 130
    assert statuses(folder) == {1: "stopped", 2: "waiting"}
    assert not (folder / "seed-2").exists()

    act("print('shoal: too few'); sys.exit(2)")
    resuming = ["train", "ppo", "--run-dir", folder, "--resume"]
    less = in_process(capsys, *resuming, "--total-steps", "9")
    assert less.returncode == 2
    assert less.stderr.count("shoal: too few\n") == 1
    assert "9" not in json.loads((folder / "seeds.json").read_text())["changes"]

    act("learn(1000)")
    done = in_process(capsys, *resuming, "--gamma=0.5")
    assert done.returncode == 0, done.stderr
    assert statuses(folder) == {1: "done", 2: "done"}
    first, second = (args_of(folder / f"seed-{seed}") for seed in (1, 2))
    assert first == ["train", "ppo", "--run-dir", f"{folder}/seed-1", "--resume", "--gamma=0.5"]
    assert second[:6] == ["train", "ppo", "--run-dir", f"{folder}/seed-2", "--seed", "2"]
    assert second[6:] == ["--env", COMPILED, "--total-steps", "1000", *QUICK, "--no-anneal", "--gamma=0.5"]


def test_what_cannot_change_is_refused_by_resume(act, tmp_path, capsys):
    folder = tmp_path / "runs"
    act("learn(1000)")
    assert in_process(capsys, *training(folder, "--seeds", "1")).returncode == 0
    for option, value in (("--hidden", "32"), ("--seeds", "3"), ("--seed", "3"), ("--env-kwargs", "{}")):
        refused = in_process(capsys, "train", "ppo", "--run-dir", folder, "--resume", option, value)
        assert refused.returncode == 2
        assert f"shoal: {option}: the runs have their own, and this cannot change" in refused.stderr
    again = in_process(capsys, *training(folder, "--seeds", "2"))
    assert again.returncode == 2
    assert "contains a run already: choose another folder, or resume" in again.stderr


def test_each_run_has_its_own_cores(act, tmp_path, capsys):
    groups = core_groups(3)
    assert len(groups) == min(3, usable_cores())
    assert sum(map(len, groups)) == len(set.union(*groups)) == usable_cores()
    act("print('cores', sorted(os.sched_getaffinity(0)))")
    assert in_process(capsys, *training(tmp_path / "runs", "--seeds", "3")).returncode == 0
    for seed in (1, 2, 3):
        text = (tmp_path / "runs" / f"seed-{seed}" / "log.txt").read_text()
        assert re.search(r"^cores \[(.*)\]$", text, re.MULTILINE)[1] in [
            ", ".join(map(str, sorted(group))) for group in groups
        ]


def test_no_run_is_orphaned_if_the_parent_is_killed(tmp_path):
    fifo, file = tmp_path / "fifo", tmp_path / "stays.py"
    os.mkfifo(fifo)
    # A module that stays, with the fifo open until its process ends.
    file.write_text(
        "import signal\n\n"
        f"fifo = open({str(fifo)!r}, 'w')\nfifo.write('x')\nfifo.flush()\n"
        "while True:\n    signal.pause()\n"
    )
    command = [*side_by_side.COMMAND, "PARENT", "bench", f"{file}:Env"]
    parent = (
        "import os, signal, subprocess\n"
        f"subprocess.Popen([str(os.getpid()) if part == 'PARENT' else part for part in {command!r}],\n"
        "    process_group=0)\n"
        "while True:\n    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as process, fifo.open() as end:
        assert end.read(1) == "x"
        process.kill()
        assert end.read() == ""  # the other end is closed


# -- figures -----------------------------------------------------------------------------------------------


def test_half_lines_of_metrics_are_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_lines(file, 100) == ([], 0)
    lines = [json.dumps({"steps": steps, "updates": steps}) for steps in range(100)]
    file.write_text("\n".join(lines) + '\n[1]\n{"dam\n{"steps": 100, "upd')
    found = [line["steps"] for line in read_lines(file, 100)[0]]
    assert found == [98, 99]


def test_spread_and_mean_curve_over_seeds():
    outcomes = [
        Outcome(seed, status, 10, value, None, 1.0, "")
        for seed, status, value in (
            (1, "done", 1.0),
            (2, "done", 4.0),
            (3, "failed", 99.0),
            (4, "done", None),
        )
    ]
    assert vars(spread(outcomes, "mean_return")) == {
        "seeds": 2,
        "mean": 2.5,
        "std": pytest.approx(2.1213203),
        "min": 1.0,
        "max": 4.0,
    }
    assert spread(outcomes[:1], "mean_return").std is None
    assert spread(outcomes, "best_evaluation") is None

    one, other = (np.array([0.0, 10.0]), np.array([0.0, 10.0])), (np.array([5.0, 20.0]), np.array([1.0, 1.0]))
    steps, mean = mean_curve([one, other])
    assert (steps[0], steps[-1]) == (5, 10)
    np.testing.assert_allclose(mean, (steps + 1) / 2)
    assert not len(mean_curve([])[0])


def some_runs(folder, count):
    runs = [SeedRun(seed, folder / f"seed-{seed}", []) for seed in range(count)]
    for run in runs[:2]:
        run.folder.mkdir()
        (run.folder / "config.json").write_text('{"config": {"total_steps": 1000}}')
        lines = [
            {
                "steps": steps,
                "updates": 1,
                "seconds": steps / 200,
                "steps_per_second": 7,
                "mean_return": 79.94,
            }
            for steps in (100, 250)
        ]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs[0].status, runs[1].status = Status.DONE, Status.RUNNING
    return runs


@pytest.mark.parametrize(("count", "height"), [(3, 20), (50, 10)])
def test_the_terminal_shows_a_line_for_each_seed(tmp_path, count, height):
    file, runs = io.StringIO(), some_runs(tmp_path, count)
    console = Console(
        file=file, force_terminal=True, force_interactive=True, color_system=None, width=90, height=height
    )
    console._environ = {}
    with SeedView("PPO on Maze", runs, console) as view:
        view.show()
        drawn = file.getvalue()
    assert re.search(r"seed +1 +━+─+ +25% +200 steps/s +return 79.9 +0:00:03 left", drawn)
    if count == 3:
        assert re.search(r"seed 0 +━+─+ +25% .* done", drawn)
        assert re.search(r"seed 2 +─+ +0% +waiting", drawn)
    else:
        assert "48 waiting, 1 running, 1 done" in drawn
        assert drawn.count("\n") < height


def test_lines_are_printed_every_ten_seconds_without_a_terminal(tmp_path):
    clock, file, runs = Clock(), io.StringIO(), some_runs(tmp_path, 3)
    with SeedView("PPO on Maze", runs, Console(file=file, force_terminal=False), clock) as view:
        view.changed(runs[1])
        for _ in range(25):
            view.show()
            clock.now += 1
        view.changed(runs[0])
    title, started, *progress, ended = file.getvalue().splitlines()
    assert (title, started) == ("PPO on Maze", f"seed 1: started, log: {tmp_path}/seed-1/log.txt")
    assert progress == ["seed 1: steps 250/1,000, 200 steps/s, return 79.9"] * 2
    assert ended == "seed 0: done, steps 250/1,000, return 79.9"
