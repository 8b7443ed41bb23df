"""What was saved stays whole: kills, full disks, two processes in one folder."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.errors import OutOfResources, RunError
from shoal.learn import PPO, Run, load, resume
from shoal.learn.runs import files
from shoal.learn.runs.files import write_file
from tests.learn.runs.folders import ENV, config, end_at_call, train_run


@pytest.fixture
def _small_files():
    """Allow files of 10 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_small_files")
def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path):
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(OutOfResources, match=f"cannot write {path}: the file is too large. Free some space"):
        write_file(path, bytes(20_000))
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("target", ["policy.safetensors", "checkpoint.safetensors", "envs-"])
def test_a_full_disk_costs_no_checkpoint(tmp_path, monkeypatch, target):
    train_run(tmp_path)
    sync = os.fsync

    def full(descriptor):
        if target in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with resume(tmp_path) as run:
        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(OutOfResources, match=f"cannot write .*{target}.*: the disk is full. Free some"):
            run.learner.train(lambda update: run.save())
        run._close(save=False)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    load(tmp_path)
    with resume(tmp_path) as run:
        assert run.restored.exact
        assert run.learner.updates in (5, 6)


def weights(learner):
    return [tensor.clone() for tensor in learner.policy.state_dict().values()]


def test_a_kill_at_any_write_leaves_a_whole_checkpoint(tmp_path):
    # A child saves, and ends at its first, second, ... call that changes the folder.
    folder = tmp_path / "run"
    train_run(folder, env="CartPole-v1", backend="serial")
    at = {}
    ended, kill = False, 0
    with resume(folder) as run:
        at[5] = weights(run.learner)
        run.learner.train(lambda update: update.updates == 8 and run.learner.stop())
        at[8] = weights(run.learner)
        state = run.learner.state_dict()
        run.learner.state_dict = lambda **_: dict(state)  # a vec cannot be used in a child
        found = set()
        while not ended:
            kill += 1
            copied = shutil.copytree(folder, tmp_path / f"copy{kill}")
            if (child := os.fork()) == 0:
                run.folder = copied
                end_at_call(kill)
                run.save()
                os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            load(copied)
            with resume(copied) as again:
                assert again.restored.exact
                assert all(map(torch.equal, weights(again.learner), at[again.learner.updates]))
                found.add(again.learner.updates)
        run._close(save=False)
    assert found == {5, 8}
    assert kill > 8


HOLDER = """
import sys
from shoal.learn import resume
with resume(sys.argv[1]) as run:
    print("open", flush=True)
    sys.stdin.read()
"""


def _contents(folder):
    # Without TensorBoard's files, which a thread of the holder's writes when it gets to it.
    return {path.name: path.read_bytes() for path in folder.iterdir() if ".tfevents." not in path.name}


def test_one_process_writes_to_a_folder(tmp_path):
    train_run(tmp_path)
    with PPO(ENV, config()) as ppo:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "open\n"
            before = _contents(tmp_path)
            for begin in (lambda: resume(tmp_path), lambda: Run(tmp_path, ppo, ENV)):
                with pytest.raises(
                    RunError, match=f"another run is writing to this folder: process {process.pid} "
                ):
                    begin()
            load(tmp_path)  # looking is allowed
            assert _contents(tmp_path) == before
            process.send_signal(signal.SIGKILL)
        with resume(tmp_path) as run:
            assert run.learner.updates == 5


def test_a_run_that_fails_lets_go_of_its_folder(tmp_path):
    train_run(tmp_path)
    with pytest.raises(ValueError, match="total_steps: expected at least"):
        resume(tmp_path, total_steps=1)
    with pytest.raises(KeyError, match="broken"), resume(tmp_path):
        raise KeyError("broken")
    resume(tmp_path).close()
