"""The folder of a stranger can be looked at without running code from it."""

import json
import pickle
from pathlib import Path

import gymnasium
import pytest
import torch

from shoal.errors import ArgumentError, RunError
from shoal.learn import load, resume
from shoal.learn.runs.files import digest_of
from shoal.learn.runs.policy_file import load_saved, save_policy
from shoal.learn.runs.tensor_file import read_tensor_file, write_tensor_file
from tests.cli.running import in_process
from tests.learn.runs.folders import ENV

pytestmark = pytest.mark.xdist_group("a run of a stranger")


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def sign(tmp_path):
    """A file that exists afterwards if code of the run was run."""
    return tmp_path / "code was run"


def test_a_pickle_is_no_policy_and_no_checkpoint(run, sign, capsys):
    for name in ("policy.safetensors", "checkpoint.safetensors"):
        torch.save({"weights": Touch(sign)}, run / name)
    with pytest.raises(RunError, match=r"policy\.safetensors: expected a file that Shoal wrote"):
        load(run)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: expected a file that Shoal wrote"):
        resume(run)
    for args in (["eval", run], ["train", "ppo", "--resume", "--run-dir", run]):
        done = in_process(capsys, *args)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert not sign.exists()


def test_only_resume_reads_the_snapshot(run, sign, capsys):
    (path,) = run.glob("envs-*.pickle")
    path.write_bytes(pickle.dumps(Touch(sign)))
    with pytest.raises(RunError, match="expected the snapshot of the checkpoint, got a damaged file"):
        resume(run)
    # A stranger can make the digest right.
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    checkpoint["envs"]["sha256"] = digest_of(path.read_bytes())
    write_tensor_file(run / "checkpoint.safetensors", checkpoint)
    load(run)
    assert in_process(capsys, "eval", run, "--episodes", "1").returncode == 0
    with resume(run, fresh_episodes=True) as again:
        assert not again.restored.exact
    assert not sign.exists()


def test_a_snapshot_is_in_the_folder(run, sign):
    outside = run.parent / "outside.pickle"
    outside.write_bytes(pickle.dumps(Touch(sign)))
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    checkpoint["envs"] = {"file": "../outside.pickle", "sha256": digest_of(outside.read_bytes())}
    write_tensor_file(run / "checkpoint.safetensors", checkpoint)
    with pytest.raises(RunError, match="is not the name of a snapshot"):
        resume(run)
    assert not sign.exists()


@pytest.mark.parametrize("form", ["{folder}/evil.py:Evil", "evil:Evil-v0"])
def test_code_is_run_only_if_it_is_named(run, sign, capsys, monkeypatch, form):
    folder = run.parent / "code"
    folder.mkdir()
    (folder / "evil.py").write_text(
        f"import gymnasium, pathlib\npathlib.Path({str(sign)!r}).touch()\n"
        "Evil = lambda: gymnasium.make('CartPole-v1')\n"
        "gymnasium.register('Evil-v0', lambda: gymnasium.make('CartPole-v1'))\n"
    )
    monkeypatch.delitem(gymnasium.registry, "Evil-v0", raising=False)
    monkeypatch.syspath_prepend(folder)
    name = form.format(folder=folder)
    saved = load_saved(run)
    object.__setattr__(saved.origin, "env", name)
    save_policy(run / "policy.safetensors", saved.policy, saved.origin)
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    checkpoint["about"]["env"] = name
    write_tensor_file(run / "checkpoint.safetensors", checkpoint)
    for args in (["eval", run], ["train", "ppo", "--resume", "--run-dir", run]):
        done = in_process(capsys, *args)
        assert done.returncode == 2
        assert f"which is run only if you name it: --env {name}" in done.stderr
    with pytest.raises(ArgumentError, match="which is run only if you name it"):
        resume(run)
    assert not sign.exists()
    assert in_process(capsys, "eval", run, "--episodes", "1", "--env", name).returncode == 0
    assert sign.exists()


def test_a_list_of_names_is_no_name(run, sign, capsys):
    # `make` takes lists, so a list must not get past the question whether it names code.
    file = run.parent / "evil.py"
    file.write_text(f"import pathlib\npathlib.Path({str(sign)!r}).touch()\n")
    saved = load_saved(run)
    object.__setattr__(saved.origin, "env", [f"{file}:Evil"])
    save_policy(run / "policy.safetensors", saved.policy, saved.origin)
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    checkpoint["about"]["env"] = [f"{file}:Evil"]
    write_tensor_file(run / "checkpoint.safetensors", checkpoint)
    for args in (["eval", run], ["train", "ppo", "--resume", "--fresh-episodes", "--run-dir", run]):
        done = in_process(capsys, *args)
        assert done.returncode == 2
        assert "expected str, got list" in done.stderr
    assert not sign.exists()


def test_options_of_seeds_cannot_name_code(tmp_path, sign, capsys):
    (tmp_path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(sign)!r}).touch()\n")
    for name in ("options", "changes"):
        plan = {"seeds": [1], "env": ENV, "encoder": "", "options": [], "changes": []}
        plan[name] = ["--env", f"{tmp_path}/evil.py:Evil"]
        (tmp_path / "seeds.json").write_text(json.dumps(plan))
        done = in_process(capsys, "train", "ppo", "--resume", "--run-dir", tmp_path)
        assert done.returncode == 2
        assert "seeds.json: expected what this version of Shoal writes" in done.stderr
    assert not sign.exists()


def test_links_lead_nowhere(run, capsys):
    outside = run.parent / "outside"
    outside.write_text("mine")
    for name in ("run.lock", "curve.png", "policy.safetensors.part"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside)
        in_process(capsys, "train", "ppo", "--resume", "--run-dir", run)
        assert outside.read_text() == "mine"
        (run / name).unlink(missing_ok=True)


def test_the_config_is_for_people(run, sign, capsys):
    (run / "config.json").write_text(f'{{"env": "{sign}.py:Evil", "config": ')
    assert in_process(capsys, "eval", run, "--episodes", "1").returncode == 0
    with resume(run) as again:
        assert again.about.env == ENV
    assert ENV in (run / "config.json").read_text()
