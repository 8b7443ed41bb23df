"""Damaged files are noticed and named; metrics never block a resume."""

import copy
import json
import random

import pytest
import torch

from shoal.errors import RunError
from shoal.learn import load, resume
from shoal.learn.runs.tensor_file import read_tensor_file, write_tensor_file

# One process of pytest's runs the tests of this run, so that it is trained once.
pytestmark = pytest.mark.xdist_group("a run to damage")


def load_best(folder):
    return load(folder, best=True)


def resume_and_close(folder):
    resume(folder).close()


READERS = [
    ("policy.safetensors", load, "resuming it writes this file again"),
    ("best.safetensors", load_best, r"The last policy of the run is in policy\.safetensors"),
    ("checkpoint.safetensors", resume_and_close, "the policy can still be used"),
    ("envs-*.pickle", resume_and_close, "To resume with new episodes instead: --fresh-episodes"),
]


def damages(content):
    """Content that is empty, cut off, or has one bit flipped."""
    chance = random.Random(0)
    yield b""
    for length in (1, 8, 100, len(content) // 2, len(content) - 1):
        yield content[:length]
    places = [0, 7, 8, 9, len(content) - 1, *(chance.randrange(len(content)) for _ in range(60))]
    places += [chance.randrange(min(3000, len(content))) for _ in range(60)]  # the header
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


@pytest.mark.parametrize(("pattern", "read", "remedy"), READERS)
def test_a_damaged_file_is_refused(run, pattern, read, remedy):
    (path,) = run.glob(pattern)
    content = path.read_bytes()
    for damaged in damages(content):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=f"{path}: (expected|cannot) .*{remedy}"):
            read(run)
    path.unlink()
    with pytest.raises(RunError, match=path.name.replace(".", r"\.")):
        read(run)
    path.write_bytes(content)
    read(run)


def test_a_run_goes_on_without_its_snapshot(run):
    (path,) = run.glob("envs-*.pickle")
    path.write_bytes(b"damaged")
    with resume(run, fresh_episodes=True) as again:
        assert not again.restored.exact
        assert again.learner.train(again).steps >= 1500
    assert len(list(run.glob("envs-*.pickle"))) == 1


def test_a_run_that_was_closed_writes_its_policy_again(run):
    (run / "policy.safetensors").write_bytes(b"damaged")
    with resume(run) as again:
        again.learner.train(again)
        weights = again.learner.policy.state_dict()
    loaded = load(run).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_damaged_lines_are_dropped(run, name):
    path = run / name
    whole = path.read_bytes().splitlines(keepends=True)
    bad = [
        b"{nonsense\n",
        b"\xff\xfe\x00\n",
        b"[1, 2]\n",
        b'{"updates": "x"}\n',
        b"[" * 5000 + b"\n",
        b'{"ste',
    ]
    bad.insert(0, b'{"steps": 1, "updates": 1' + b"0" * 400 + b"}\n")
    path.write_bytes(b"".join([*whole[:1], *bad[:3], *whole[1:], *bad[3:]]))
    with resume(run) as again:
        assert again.damaged_lines == 7
        assert [update.updates for update in again.history()] == [1, 2, 3, 4, 5]
    assert path.read_bytes().splitlines(keepends=True) == whole


def test_figures_that_are_missing_are_left_out_of_the_history(run):
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[1]["seconds"]
    lines[2]["entropy"] = "large"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with resume(run) as again:
        assert [update.updates for update in again.history()] == [1, 4, 5]


@pytest.mark.parametrize(
    "content",
    [
        *(None, 3, [], {}, {"origin": 1}),
        {"origin": {}, "own_encoder": False, "observation_space": {"kind": "box"}},
        {"origin": {"env": "x"}, "own_encoder": False, "observation_space": {"kind": "nothing"}},
        {"origin": {"no": 1}},
        {"algorithm": "ppo"},
        {"algorithm": "other"},
        {"algorithm": "ppo", "config": {"hidden": "x"}},
    ],
)
def test_a_foreign_file_is_refused(run, content):
    # Its checksum is right, so only its content tells.
    for name, read in (("policy.safetensors", load), ("checkpoint.safetensors", resume_and_close)):
        write_tensor_file(run / name, content)
        with pytest.raises(RunError, match=f"{name}: expected what this version of Shoal writes"):
            read(run)


def test_a_folder_in_the_place_of_a_file(run):
    for name in ("policy.safetensors", "metrics.jsonl", "config.json", "run.lock"):
        path = run / name
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        with pytest.raises(RunError, match=f"{path}: "):
            (load if name == "policy.safetensors" else resume)(run)
        path.rmdir()
        path.write_bytes(content)
    resume_and_close(run)


def test_a_state_that_does_not_fit_is_refused(run):
    path = run / "checkpoint.safetensors"
    saved = read_tensor_file(path, "")
    states = [
        ("optimizer", lambda state: state["state"][0].update(exp_avg=torch.zeros(1))),
        ("collector", lambda state: state.update(steps="12")),
        ("collector", lambda state: state["episodes"].update(count="many")),
        ("counts", None),
        ("threads", None),
        ("collector", lambda state: state["rollouts"].append({"close": 3})),
    ]
    for name, damage in states:
        state = copy.deepcopy(saved["state"])
        if damage is None:
            state[name] = ("a", "b", "c")
        else:
            damage(state[name])
        write_tensor_file(path, {**saved, "state": state})
        with pytest.raises(RunError, match=f"{path}: expected what this version of Shoal writes"):
            resume(run)
    for name, value in (("env", 5), ("env_kwargs", [1]), ("changes", 5), ("encoder", None)):
        write_tensor_file(path, {**saved, "about": {**saved["about"], name: value}})
        with pytest.raises(RunError, match=f"{path}: expected what this version of Shoal writes"):
            resume(run)
