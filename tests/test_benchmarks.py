"""The benchmark harness: who is counted, what is compared, and that nothing of it stays behind."""

import importlib
import io
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from rich.console import Console

import shoal
from shoal.cli._loops import Slice

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ("--here", "--rounds", "2", "--slices", "2", "--slice-ms", "5")
MEASURED = ("bare", "bare x2", "shoal.Serial", "gymnasium Sync")
FAILING = "EnvPool sync@cartpole"  # not installed for the tests


def command(*arguments):
    return [sys.executable, str(BENCHMARKS / "run.py"), *arguments]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def module(monkeypatch):
    """Imports a file of the harness, whose scripts see their own folder only."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


# One process of pytest's runs the tests of this result, so that it is measured once.
of_one_result = pytest.mark.xdist_group("a benchmark's result")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmarks") / "result.json"
    names = ",".join((*MEASURED, FAILING))
    done = run("--env", "null", "--num-envs", "3", "--contestants", names, *SMALL, "--json", str(path))
    return done, path


class Counted(gymnasium.Env):
    """Ends after `length` steps, by both flags at once if it is even, and counts all steps of all envs."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Counted.steps += 1
        self.age += 1
        over = self.age == self.length
        return np.zeros(1, np.float32), 0.0, over, over and self.length % 2 == 0, {}


@pytest.mark.parametrize("kind", [shoal.Serial, gymnasium.vector.SyncVectorEnv])
def test_rows_that_were_resets_are_no_steps(module, kind):
    loops = module("loops")
    vec = kind([lambda length=length: Counted(length) for length in (1, 2, 3, 50)])
    try:
        vec.reset(seed=0)
        loop = loops.Vector(vec.step, rows=4, counts_resets=True)
        Counted.steps = 0
        # Episodes end within a chunk, and with it.
        counted = sum(loop.run([np.zeros(4, np.int64)] * length) for length in (1, 1, 7, 3, 60))
        assert counted == Counted.steps
        assert counted < 72 * 4
    finally:
        vec.close()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_bare_steps_are_counted(module, num_envs):
    envs = [Counted(3) for _ in range(num_envs)]
    for env in envs:
        env.reset()
    loop = module("loops").Bare([env.step for env in envs], [env.reset for env in envs])
    Counted.steps = 0
    assert sum(loop.run([0] * length) for length in (1, 1, 8)) == Counted.steps == 10
    # Envs are stepped in turn, from one chunk to the next too.
    assert [env.age for env in envs] == [1, 0, 0][:num_envs]


def test_all_contestants_get_the_same_actions(module):
    loops, contestant = module("loops"), module("contestant")
    vector = loops.Vector(lambda actions: None, rows=4, counts_resets=False)
    ours, theirs = (contestant.draw_actions(vector, 3) for _ in range(2))
    assert np.array_equal(ours, theirs)
    assert {batch.dtype for batch in ours} == {np.dtype(np.int64)}
    bare = loops.Bare([lambda action: None], [lambda: None])
    assert {type(action) for action in contestant.draw_actions(bare, 3)} == {np.int64}


def test_loops_need_no_shoal():
    script = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import loops; print('shoal' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


@of_one_result
def test_every_contestant_runs_once_in_every_cycle(measured):
    done, path = measured
    (case,) = json.loads(path.read_text())["cases"]
    turns = [(piece["contestant"], piece["round"], piece["cycle"]) for piece in case["slices"]]
    wanted = [(name, round_, cycle) for name in MEASURED for round_ in (0, 1) for cycle in (0, 1)]
    assert sorted(turns) == sorted(wanted), done.stdout
    for piece in case["slices"]:
        assert piece["seconds"] > 0
        assert piece["steps"] > 0
        if "bare" not in piece["contestant"]:
            assert piece["steps"] % 3 == 0
        if piece["contestant"] != "bare x2":  # whose processes have a clock each
            assert piece["rate"] == pytest.approx(piece["steps"] / piece["seconds"])


@of_one_result
def test_ratios_are_between_slices_of_one_cycle(measured):
    (case,) = json.loads(measured[1].read_text())["cases"]
    rates = {(piece["contestant"], piece["round"], piece["cycle"]): piece["rate"] for piece in case["slices"]}
    turns = [(round_, cycle) for round_ in (0, 1) for cycle in (0, 1)]
    for reference in ("bare", "bare x2", "gymnasium Sync"):
        ratios = [rates["shoal.Serial", *turn] / rates[reference, *turn] for turn in turns]
        found = case["figures"]["shoal.Serial"]["ratios"][reference]
        assert found["median"] == pytest.approx(statistics.median(ratios))
        assert min(ratios) <= found["low"] <= found["median"] <= found["high"] <= max(ratios)
        assert found["pairs"] == 4


@of_one_result
def test_a_failing_contestant_is_reported_and_the_rest_goes_on(measured):
    done, path = measured
    assert done.returncode == 1, done.stderr
    (case,) = json.loads(path.read_text())["cases"]
    assert list(case["errors"]) == [FAILING]
    assert "No module named 'envpool'" in case["errors"][FAILING]
    assert "No module named 'envpool'" in done.stdout
    assert list(case["figures"]) == list(MEASURED)


@of_one_result
def test_a_result_says_where_it_comes_from(measured):
    content = json.loads(measured[1].read_text())
    assert content["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert {"cpu", "memory_gb", "system"} <= set(content["machine"])
    assert {"commit", "dirty", "created"} <= set(content)
    assert content["settings"] == {"rounds": 2, "cycles": 2, "slice_seconds": 0.005}
    versions = content["cases"][0]["facts"]["shoal.Serial"]["versions"]
    assert versions["gymnasium"] == gymnasium.__version__
    assert versions["numpy"] == np.__version__
    assert str(BENCHMARKS.parent) not in measured[1].read_text()


def table_of(path, *options):
    table = [sys.executable, str(BENCHMARKS / "table.py"), str(path), *options]
    return subprocess.run(table, capture_output=True, text=True, timeout=60, check=True).stdout


@of_one_result
def test_the_tables_show_every_contestant(measured):
    done, path = measured
    page = table_of(path)
    for name in (*MEASURED, FAILING):
        assert f"| {name} |" in page
        assert name in done.stdout


@of_one_result
def test_a_summary_has_a_line_for_every_contestant(measured):
    page = table_of(measured[1], "--summary")
    assert all(f"| {name} |" in page for name in MEASURED)


def test_success_is_exit_code_0(tmp_path):
    result = tmp_path / "result.json"
    done = run("--contestants", "bare", *SMALL, "--rounds", "1", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    assert result.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "cartpol"], "no env 'cartpol': did you mean 'cartpole'?"),
        (["--contestants", "shoal.Seriel"], "no contestant 'shoal.Seriel': did you mean 'shoal.Serial'"),
        (["--contestants", "bare@nul"], "no env 'nul': did you mean 'null'"),
        (["--slice-ms", "200"], "--slice-ms: at most 100"),
        (["--num-envs", "0"], "expected a positive number, got 0"),
        (["quick", "--num-envs", "7"], "the set 'quick' does not measure that"),
    ],
)
def test_wrong_arguments_are_named(module, capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        module("run").parse(arguments)
    assert message in capsys.readouterr().err


def test_the_full_set_runs_everything(module):
    registry, envs, selection = module("registry"), module("envs"), module("selection")
    cases = selection.select("full")
    assert {case.env for case in cases} == set(envs.ENVS) - set(selection.HERE_ONLY)
    assert {entry.contestant for case in cases for entry in case.entries} == set(registry.CONTESTANTS)


def test_costs_are_differences_within_a_cycle(module):
    interleave = module("interleave")
    measured = interleave.Measured(interleave.Case("null", 64, ()), cycles=2)
    measured.outcome.turns = [
        {"shoal.Serial": Slice.of((plain, 1.0)), "shoal.Serial copy": Slice.of((copying, 1.0))}
        for plain, copying in ((1e6, 0.8e6), (2e6, 4e6 / 3))
    ]
    (cost,) = module("figures").costs(measured)
    assert cost["name"] == "copy=True"
    assert cost["ns_per_step"]["median"] == pytest.approx(250)
    assert cost["us_per_vector_step"]["median"] == pytest.approx(16)


def executable(folder, text):
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "timeout", "message"),
    [
        ("echo something went wrong; exit 3", 60, "died while starting: something went wrong"),
        ("exec sleep 1000", 0.01, "no answer within 0.01 s while starting"),
    ],
)
def test_a_contestant_that_dies_or_hangs_is_given_up(module, monkeypatch, tmp_path, body, timeout, message):
    process, guard = module("process"), module("guard").Guard()
    monkeypatch.setattr(process, "START_TIMEOUT", timeout)
    interpreter = executable(tmp_path, f"#!/bin/sh\n{body}\n")
    try:
        with pytest.raises(process.ContestantFailed, match=message):
            process.Runner(interpreter, {}, 1, guard)
    finally:
        guard.close()


def test_a_contestant_that_dies_in_a_slice_is_closed_and_skipped(module, tmp_path):
    interleave, guard = module("interleave"), module("guard").Guard()
    answer = "c = json.loads(sys.argv[2]); os.write(c['answers'], b'{}\\n'); os.read(c['requests'], 1)"
    script = f"#!{sys.executable}\nimport json, os, sys; {answer}; sys.exit('no more')\n"
    interpreter = executable(tmp_path, script)
    case = interleave.Case("null", 1, (interleave.Entry("bare", "null", "bare"),))
    progress = module("progress").Progress(Console(file=io.StringIO()), turns=6)
    try:
        settings = interleave.Settings(rounds=2, cycles=2, slice_seconds=0.01)
        measured = interleave.measure(case, settings, lambda venv: (interpreter, []), guard, progress)
    finally:
        guard.close()
    assert measured.outcome.failures == {"bare": "died while running a slice: no more"}
    assert progress.turn == progress.turns


def marked(marker):
    """The processes that have inherited a variable."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and marker in (directory / "environ").read_bytes():
                found.append(int(directory.name))
        except OSError:  # ended meanwhile, or not ours
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_stopped(tmp_path, number):
    marker = uuid.uuid4().hex
    arguments = ["--here", "--num-envs", "2", "--contestants", "bare,gymnasium Async", "--slices", "100000"]
    harness = subprocess.Popen(
        command(*arguments, "--json", str(tmp_path / "result.json")),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SHOAL_BENCHMARK_TEST": marker},
    )
    with harness:
        for line in harness.stdout:
            if "measuring" in line:
                break
        # The harness, its guard, the bare loop, and Async with two workers.
        assert len(marked(marker.encode())) >= 6
        harness.send_signal(number)
        harness.wait(60)
    if number == signal.SIGKILL:  # then it is the guard that ends them
        for pid in marked(marker.encode()):
            wait_for_end(pid)
    else:
        assert harness.returncode == 128 + signal.SIGINT
    assert marked(marker.encode()) == []
    assert not (tmp_path / "result.json").exists()


def wait_for_end(pid):
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], 60)
        assert ended, f"process {pid} is still there"
    finally:
        os.close(descriptor)
