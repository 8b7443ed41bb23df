"""Runs with a replay: they go on bit for bit, and a checkpoint writes only what is new of the replay."""

import os
import random
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation

import shoal
from shoal.batch import Batch
from shoal.errors import RunError
from shoal.learn import Actions, Replay, Run, off_policy, resume
from shoal.learn.runs import replay_files
from shoal.learn.runs import run as run_module
from shoal.learn.runs.replay_files import ReplayFiles, read_replay
from shoal.learn.runs.tensor_file import read_tensor_file, write_named_tensor_file, write_tensor_file
from tests.learn.off_policy import make
from tests.learn.runs.folders import end_at_call

CARTPOLE, PENDULUM = "shoal/CartPole-v1", "shoal/Pendulum-v1"


@pytest.fixture(scope="module", autouse=True)
def _small_files():
    """Report every 20 steps, and write files of 2 to 4 kB, so that a small replay has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(off_policy, "REPORT_STEPS", 20)
        patch.setattr(replay_files, "SMALL", 2_000)
        patch.setattr(replay_files, "LARGE", 4_000)
        yield


def same(first, second):
    """Whether two nested values of tensors, arrays and plain values are equal bit for bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    return first == second


def content_of(replay):
    """All that a replay holds."""
    return {**replay.state_dict(), "seen": replay.observations(replay.oldest, replay.total)}


def files_in(folder):
    """When each file of the replay was written, by name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("replay-*")}


# -- learners ----------------------------------------------------------------------------------------------


def learner_for(env, **settings):
    """A small learner: SAC for Pendulum, else DQN."""
    return make("sac" if env == PENDULUM else "dqn", env, **{"total_steps": 400, **settings})


def train_to(run, steps):
    """Train until a number of steps, and save; returns the learner."""
    learner = run.learner
    learner.train(lambda update: update.steps >= steps and learner.stop())
    run.save()
    return learner


def state_of(learner):
    """All that a learner has learnt and stored, without envs and times."""
    state = learner.state_dict(with_replay=False)
    return {**state, "counts": learner.updates, "envs": None, "replay": content_of(learner.replay)}


def batches_of(replay):
    """Some batches that the replay samples next."""
    return [tuple(replay.sample(64, gamma=0.9, n_step=n_step)) for n_step in (1, 2, 3)]


STACKED = """
from gymnasium import make
from gymnasium.wrappers import FrameStackObservation


def stacked():
    return FrameStackObservation(make("CartPole-v1"), 3)
"""


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (CARTPOLE, {}),
        (CARTPOLE, {"prioritized": True, "n_step": 3}),
        (CARTPOLE, {"replay_size": 170}),
        (CARTPOLE, {"replay_size": 170, "prioritized": True, "mode": "overlap"}),
        (PENDULUM, {"noise": "pink"}),
        (PENDULUM, {"replay_size": 170, "noise": "pink", "mode": "overlap"}),
        ("stacked", {"replay_size": 170, "frame_stack": 3, "backend": "serial"}),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, env, settings):
    named = {}
    if env == "stacked":
        (tmp_path / "stacked.py").write_text(STACKED)
        env = f"{tmp_path}/stacked.py:stacked"
        named = {"env": env}
    with learner_for(env, **settings) as whole:
        whole.train()
        expected = state_of(whole)
    with learner_for(env, **settings) as learner, Run(tmp_path / "run", learner, env) as run:
        saved = state_of(train_to(run, 80))  # before learning begins
    for steps in (130, 260, 400):
        with resume(tmp_path / "run", **named) as run:
            assert run.restored.exact
            assert same(state_of(run.learner), saved)
            learner = train_to(run, steps)
            saved = state_of(learner)
    assert same(saved, expected)
    assert same(batches_of(learner.replay), batches_of(whole.replay))
    wrapped = "replay_size" in settings
    assert bool(learner.replay.oldest) == wrapped


class Now:
    """Executor that calls a function when it is submitted."""

    def __init__(self, *_):
        pass

    def submit(self, function, *args):
        self.result = lambda: None
        function(*args)
        return self

    def shutdown(self, wait):
        pass


class Later(Now):
    """Executor that calls a function when its result is asked for."""

    def submit(self, function, *args):
        self.result = lambda: function(*args)
        return self


def test_overlap_learns_the_same_whichever_is_faster(monkeypatch):
    found = []
    for executor in (Now, Later):
        monkeypatch.setattr(off_policy, "ThreadPoolExecutor", executor)
        with learner_for(CARTPOLE, mode="overlap", prioritized=True, total_steps=300) as learner:
            learner.train()
            found.append(state_of(learner))
    assert same(*found)


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_replay_that_was_cleared_is_saved_anew(tmp_path, mode):
    settings = {"mode": mode, "updates_per_step": 2}
    with learner_for(CARTPOLE, **settings) as learner, Run(tmp_path, learner, CARTPOLE) as run:
        train_to(run, 200)
        before = files_in(tmp_path)
        learner.replay.clear()
        run.save()
        assert not files_in(tmp_path)
        saved = state_of(train_to(run, 400))  # more places than before
        assert not before.keys() & files_in(tmp_path).keys()
    with resume(tmp_path) as run:
        assert same(state_of(run.learner), saved)
        assert 200 <= run.learner.replay.total < 230


@pytest.mark.parametrize("settings", [{}, {"prioritized": True}])
def test_a_run_goes_on_with_another_number_of_steps(tmp_path, settings):
    # The replay is no larger than needed, so that its capacity is another one then.
    with learner_for(CARTPOLE, **settings) as learner, Run(tmp_path, learner, CARTPOLE) as run:
        saved = content_of(train_to(run, 200).replay)
    for steps in (600, 220):
        with resume(tmp_path, total_steps=steps) as run:
            assert run.learner.replay.capacity != learner.replay.capacity
            assert same(content_of(run.learner.replay), saved)
            run._close(save=False)
    with resume(tmp_path, total_steps=600) as run:
        saved = state_of(train_to(run, 500))
    with resume(tmp_path) as run:
        assert same(state_of(run.learner), saved)


def test_the_normaliser_goes_on_after_the_replay_was_cleared():
    with learner_for(CARTPOLE) as learner:
        learner.train(lambda update: update.steps >= 200 and (learner.replay.clear(), learner.stop()))
        before = float(learner.policy.encoder.moments.count)
        learner.train()
        assert learner.policy.encoder.moments.count > before + 100


def test_an_earlier_state_is_saved_as_well(tmp_path):
    with learner_for(CARTPOLE) as learner, Run(tmp_path, learner, CARTPOLE) as run:
        early = train_to(run, 200).state_dict()
        expected = state_of(learner)
        train_to(run, 400)
        learner.load_state_dict(early)
        run.save()
    with resume(tmp_path) as run:
        assert same(state_of(run.learner), expected)


# -- files -------------------------------------------------------------------------------------------------


class Stepped:
    """A vec of four envs that random actions step, and a replay of it."""

    def __init__(self, vec, capacity, **settings):
        self.vec, self._random = vec, np.random.default_rng(0)
        self.make = lambda: Replay(
            capacity, 4, vec.observation_layout, Actions(vec.single_action_space), **settings
        )
        self.replay = self.make()
        vec.async_reset(seed=0)

    def step(self, count, *, masked=False):
        for _ in range(count):
            batch, actions = self.vec.recv(), self._random.integers(0, 2, (4, 1))
            masks = self._random.integers(0, 2, (4, 2), np.bool_) if masked else None
            self.replay.add(batch, actions, masks=masks)
            self.vec.send(actions[:, 0])


def stacked_vec():
    """CartPole with observations that are stacks of three frames."""
    return shoal.Serial(lambda: FrameStackObservation(gymnasium.make("CartPole-v1"), 3), 4, flat=True)


@pytest.fixture
def stepped():
    """CartPole with a replay of 170 places."""
    with shoal.make(CARTPOLE, 4, flat=True, copy=False) as vec:
        yield Stepped(vec, 170)


def other_content(replay):
    """Fill a replay with something else."""
    rows, no = np.arange(4), np.zeros(4, np.bool_)
    layout = replay._layout
    obs = np.full((4, *layout.flat_shape), 7, layout.flat_dtype)
    for _ in range(replay.capacity // 2):
        batch = Batch(obs, np.full(4, 7.0), no, no, ~no, no, rows, rows * 0, {})
        replay.add(batch, np.ones((4, 1), np.int64))
    return replay


@pytest.mark.parametrize("kind", ["plain", "prioritized", "masked", "stacked"])
def test_a_replay_is_read_as_it_was_saved(tmp_path, kind):
    chance = random.Random(0)
    with stacked_vec() if kind == "stacked" else shoal.make(CARTPOLE, 4, flat=True, copy=False) as vec:
        stepped = Stepped(vec, 170, prioritized=kind == "prioritized", frame_stack=3 * (kind == "stacked"))
        replay, files = stepped.replay, ReplayFiles(tmp_path)
        for save in range(25):
            stepped.step(chance.choice([0, 1, 1, 3, 10, 30]), masked=kind == "masked" and save > 5)
            if kind == "prioritized" and len(replay):
                places = replay.sample(8, gamma=0.9).places
                replay.set_errors(places, np.arange(8, dtype=np.float32), 0.6)
            saved = files.save(replay)
            files.remove_others()
            assert files_in(tmp_path).keys() == {file["file"] for file in saved["files"]}
            found = other_content(stepped.make())
            found.load_state_dict(read_replay(tmp_path, saved, tmp_path, ""))
            assert same(content_of(found), content_of(replay))
        assert replay.total > 2 * replay.capacity


@pytest.mark.parametrize("begin", ["zeros", "cleared"])
def test_frames_are_read_as_they_were_written(tmp_path, begin):
    # Frames that look like those before, of which none is stored.
    with stacked_vec() as vec:
        stepped = Stepped(vec, 170, frame_stack=3)
        replay, rows, no = stepped.replay, np.arange(4), np.zeros(4, np.bool_)
        obs = np.zeros((4, 3, 4), np.float32)
        if begin == "cleared":
            obs[:] = 5
            replay.add(Batch(obs, np.zeros(4), no, no, ~no, ~no, rows, rows * 0, {}), rows[:, None] % 2)
            replay.clear()
        replay.add(Batch(obs, np.zeros(4), no, no, ~no, ~no, rows, rows * 0, {}), rows[:, None] % 2)
        assert same(replay.observations(0, 4), obs)
        found = other_content(stepped.make())
        found.load_state_dict(read_replay(tmp_path, ReplayFiles(tmp_path).save(replay), tmp_path, ""))
        assert same(found.observations(0, 4), obs)


def test_an_outcome_is_saved_that_takes_no_place(tmp_path, monkeypatch):
    # The only env ends by itself after each step.
    with shoal.make(CARTPOLE, 1, flat=True) as vec:
        layout, actions = vec.observation_layout, Actions(vec.single_action_space)
    no, yes, row = np.zeros(1, np.bool_), np.ones(1, np.bool_), np.zeros(1, np.int64)
    begins = Batch(np.zeros((1, 4), np.float32), np.zeros(1), no, no, yes, yes, row, row, {})
    ends = begins._replace(rewards=np.full(1, 5.0), terminations=yes, mask=no, resets=no)
    replay, files = Replay(100, 1, layout, actions), ReplayFiles(tmp_path)
    for small, count in ((2_000, 1), (1, 3)):  # the file before is written again; or it stays as it is
        monkeypatch.setattr(replay_files, "SMALL", small)
        replay.add(begins, row[:, None])
        files.save(replay)
        replay.add(ends, row[:, None])
        saved, found = files.save(replay), Replay(100, 1, layout, actions)
        assert len(saved["files"]) == count
        found.load_state_dict(read_replay(tmp_path, saved, tmp_path, ""))
        assert same(content_of(found), content_of(replay))
    assert len(found) == 2


def test_full_files_are_written_once(stepped, tmp_path):
    replay, files = stepped.replay, ReplayFiles(tmp_path)
    for _ in range(40):
        stepped.step(7)  # 28 places or fewer, of 28 bytes each
        before = files_in(tmp_path)
        parts = files.save(replay)["files"]
        files.remove_others()
        after = files_in(tmp_path)
        full = [part["file"] for part in parts[:-1]]
        assert all(before[name] == after[name] for name in full if name in before)
        assert sum(before.get(name) != time for name, time in after.items()) == 1
        assert all(part["nbytes"] >= 2_000 for part in parts[:-1])
        assert all(part["nbytes"] < 6_000 for part in parts)
        assert parts[0]["last"] > replay.oldest >= parts[0]["first"]
        assert [part["first"] for part in parts[1:]] == [part["last"] for part in parts[:-1]]
        assert parts[-1]["last"] == replay.total


def test_a_small_last_file_is_written_again_with_what_is_new(stepped, tmp_path):
    files = ReplayFiles(tmp_path)
    stepped.step(3)
    (small,) = files.save(stepped.replay)["files"]
    stepped.step(3)
    (larger,) = files.save(stepped.replay)["files"]
    assert (small["first"], small["last"]) == (0, 12)
    assert (larger["first"], larger["last"]) == (0, 24)
    assert files_in(tmp_path).keys() == {small["file"], larger["file"]}
    files.remove_others()
    assert files_in(tmp_path).keys() == {larger["file"]}


def test_much_at_once_is_several_files(stepped, tmp_path):
    stepped.step(100)
    parts = ReplayFiles(tmp_path).save(stepped.replay)["files"]
    assert len(parts) > 1
    assert parts[0]["first"] == stepped.replay.oldest > 0
    assert all(part["nbytes"] < 6_000 for part in parts)


def test_a_resumed_run_keeps_its_full_files(tmp_path):
    with learner_for(CARTPOLE) as learner, Run(tmp_path, learner, CARTPOLE) as run:
        train_to(run, 300)
    before = files_in(tmp_path)
    with resume(tmp_path) as run:
        train_to(run, 320)
        listed = [part.file for part in run._replay_files._parts]
    after = files_in(tmp_path)
    assert after.keys() == set(listed)
    assert len(listed) > 2
    assert {name: before.get(name) for name in listed[:-1]} == {name: after[name] for name in listed[:-1]}


# -- damage ------------------------------------------------------------------------------------------------

# One process of pytest's runs the tests of this run, so that it is trained once.
of_one_run = pytest.mark.xdist_group("a run with a replay")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, _small_files):
    """A run with several files of a replay that has wrapped around."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = {"replay_size": 170, "prioritized": True}
    with learner_for(CARTPOLE, **settings) as learner, Run(folder, learner, CARTPOLE) as run:
        for steps in range(60, 361, 60):
            train_to(run, steps)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of that run, which a test may change."""
    return shutil.copytree(trained, tmp_path / "run")


def forge(run, change):
    """Change what the checkpoint and the files of a run say; digests are right afterwards.

    Args:
        run: The folder.
        change: Function that is given what the checkpoint says of the replay, and the content of its files.
    """
    path = run / "checkpoint.safetensors"
    checkpoint = read_tensor_file(path, "")
    replay = checkpoint["state"]["replay"]
    contents = [read_tensor_file(run / file["file"], "") for file in replay["files"]]
    assert len(contents) > 2
    assert len(contents[1]["changed"])
    described = [(file, dict(file)) for file in replay["files"]]
    change(replay, contents)
    for (file, before), content in zip(described, contents, strict=True):
        name, digest, _ = write_named_tensor_file(run, "replay", content)
        for key, value in (("file", name), ("sha256", digest)):
            file[key] = value if file[key] == before[key] else file[key]
    write_tensor_file(path, checkpoint)


@of_one_run
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_damaged_file_is_refused_by_name(run, place):
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    names = [file["file"] for file in checkpoint["state"]["replay"]["files"]]
    path, other = run / names[place], run / names[place - 1]
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:100], whole[:-1] + bytes([whole[-1] ^ 1]), other.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=f"^{path}: expected a file that Shoal wrote, got one that is dam"):
            resume(run).close()
    path.unlink()
    with pytest.raises(RunError, match=f"^{path}: expected a part of the replay, but it is missing"):
        resume(run).close()
    path.mkdir()
    with pytest.raises(RunError, match=f"^{path}: expected a file, got a folder"):
        resume(run).close()
    path.rmdir()
    path.write_bytes(whole)
    resume(run).close()


def set_in(content, name, value, at=None):
    """Change an array of a file, or one of its elements."""
    if at is None:
        content[name] = value(content[name]) if callable(value) else value
    else:
        content[name] = content[name].copy()
        content[name][at] = value


FORGED = {
    # Serial numbers
    "total below 0": lambda replay, _: replay["rest"].update(total=-1),
    "total too large": lambda replay, _: replay["rest"].update(total=10**6),
    "total beyond 64 bits": lambda replay, _: replay["rest"].update(total=10**30),
    "total as text": lambda replay, _: replay["rest"].update(total="many"),
    "first below 0": lambda _, parts: parts[0].update(first=-4),
    "first too small": lambda _, parts: parts[1].update(first=parts[1]["first"] - 1),
    "first and last exchanged": lambda _, parts: parts[1].update(
        first=parts[1]["last"], last=parts[1]["first"]
    ),
    "last beyond the total": lambda _, parts: parts[-1].update(last=10**9),
    "another first in the checkpoint": lambda replay, _: replay["files"][1].update(first=0),
    "another last in the checkpoint": lambda replay, _: replay["files"][-1].update(last=10**9),
    "last of the checkpoint below 0": lambda replay, _: replay["files"][-1].update(last=-1),
    "first of the checkpoint as text": lambda replay, _: replay["files"][0].update(first="0"),
    # Lists of files
    "a file less": lambda replay, _: replay["files"].pop(1),
    "a file twice": lambda replay, _: replay["files"].append(replay["files"][-1]),
    "files in another order": lambda replay, _: replay["files"].reverse(),
    "no list of files": lambda replay, _: replay.update(files=3),
    "a file without a digest": lambda replay, _: replay["files"][0].update(sha256=None),
    # Places
    "next beyond the ring": lambda _, parts: set_in(parts[1], "next", 170, 3),
    "next below the ring": lambda _, parts: set_in(parts[1], "next", -3, 3),
    "changed below 0": lambda _, parts: set_in(parts[1], "changed", -1, 0),
    "changed in a later file": lambda _, parts: set_in(parts[1], "changed", parts[1]["last"], 0),
    "changed next beyond the ring": lambda _, parts: set_in(parts[1], "changed_next", 170, 0),
    "open beyond the total": lambda replay, _: set_in(replay["rest"], "open", 10**6, 0),
    # Shapes and dtypes
    "next of one number": lambda _, parts: set_in(parts[1], "next", lambda next: next[:1]),
    "next of 64 bits": lambda _, parts: set_in(parts[1], "next", lambda next: next.astype(np.int64)),
    "rewards in a column": lambda _, parts: set_in(parts[1], "rewards", lambda rewards: rewards[:, None]),
    "rewards of 64 bits": lambda _, parts: set_in(parts[1], "rewards", lambda each: each.astype(np.float64)),
    "actions of two choices": lambda _, parts: set_in(parts[1], "actions", lambda each: each.repeat(2, 1)),
    "actions in a row": lambda _, parts: set_in(parts[1], "actions", lambda actions: actions[:, 0]),
    "an action that does not exist": lambda _, parts: set_in(parts[1], "actions", 2, slice(None)),
    "an action below 0": lambda _, parts: set_in(parts[1], "actions", -1, slice(None)),
    "observations of one number": lambda _, parts: set_in(
        parts[1]["observations"], "rows", lambda rows: rows[:, :1].copy()
    ),
    "observations of bytes": lambda _, parts: set_in(
        parts[1]["observations"], "rows", lambda rows: rows.astype(np.uint8)
    ),
    "no observations": lambda _, parts: parts[1].update(observations={}),
    "rewards that are a list": lambda _, parts: parts[1].update(rewards=[1.0, 2.0]),
    "changed as fractions": lambda _, parts: set_in(parts[1], "changed", lambda changed: changed * 1.0),
    "changed rewards of one number": lambda _, parts: set_in(
        parts[1], "changed_rewards", lambda rewards: rewards[:1].copy()
    ),
    "open of other rows": lambda replay, _: set_in(replay["rest"], "open", lambda each: each.repeat(2)),
    "open as fractions": lambda replay, _: set_in(replay["rest"], "open", lambda each: each * np.nan),
    "opened as fractions": lambda replay, _: set_in(
        replay["files"][-1], "opened", lambda opened: opened * 1.0
    ),
    "opened in a table": lambda replay, _: set_in(
        replay["files"][-1], "opened", lambda opened: opened[:, None]
    ),
    # Priorities and random numbers
    "no priorities": lambda replay, _: replay["rest"].update(priorities=None),
    "few priorities": lambda replay, _: set_in(replay["rest"], "priorities", lambda each: each[:3].copy()),
    "one priority for all": lambda replay, _: replay["rest"].update(priorities=np.ones(1)),
    "a priority of NaN": lambda replay, _: set_in(replay["rest"], "priorities", np.nan, 0),
    "a priority below 0": lambda replay, _: set_in(replay["rest"], "priorities", -1.0, 0),
    "priorities of 0": lambda replay, _: set_in(replay["rest"], "priorities", lambda each: each * 0),
    "largest priority of NaN": lambda replay, _: replay["rest"].update(largest=float("nan")),
    "another generator": lambda replay, _: replay["rest"]["random"].update(bit_generator="MT19937"),
    "no state of the generator": lambda replay, _: replay["rest"]["random"].update(state={}),
    "a huge state of the generator": lambda replay, _: replay["rest"]["random"].update(
        state={"state": -1, "inc": 2**200}
    ),
    "no rest": lambda replay, _: replay.update(rest={}),
}


@of_one_run
@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_forged_content_is_refused(run, change):
    forge(run, change)
    with pytest.raises(RunError, match=rf"^{run}/\S+: expected what this version of Shoal writes, got "):
        resume(run).close()


@of_one_run
def test_a_forged_run_without_a_change_goes_on(run):
    forge(run, lambda *_: None)
    with resume(run) as again:
        train_to(again, 400)
        assert again.learner.steps >= 400


@of_one_run
@pytest.mark.parametrize("name", ["../outside.safetensors", "/replay-0.safetensors", "replay-0/../../x", "x"])
def test_a_file_of_the_replay_is_in_the_folder(run, name):
    (file,) = list(run.glob("replay-*"))[:1]
    shutil.copy(file, run.parent / "outside.safetensors")
    forge(run, lambda replay, _: replay["files"][0].update(file=name))
    with pytest.raises(RunError, match=f"'{name}' is not the name of a part of a replay"):
        resume(run).close()


@of_one_run
@pytest.mark.parametrize("owed", [float("nan"), float("inf"), -1.0, "much"])
def test_gradient_steps_that_are_due_are_a_number(run, owed):
    checkpoint = read_tensor_file(run / "checkpoint.safetensors", "")
    checkpoint["state"]["owed"] = owed
    write_tensor_file(run / "checkpoint.safetensors", checkpoint)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: expected what this version of Shoal wri"):
        resume(run).close()


def test_forged_noise_is_refused():
    with learner_for(PENDULUM, noise="pink", total_steps=120) as learner:
        learner.train()
        noise = learner.state_dict()["learning"]["noise"]
        for name, value in (("place", -2000), ("number", -2), ("place", 0.5)):
            forged = {**noise, name: np.full(4, value)}
            with pytest.raises(ValueError, match="the noise has places that do not exist"):
                learner._noise.load_state_dict(forged)
            with pytest.raises(ValueError, match="the noise was saved with another number of rows"):
                learner._noise.load_state_dict({**noise, name: noise[name][:1]})


FORGED_FRAMES = [
    ("index", lambda index: index + 10**6),
    ("index", lambda index: index - 10**6),
    ("index", lambda index: index[:, :1]),
    ("numbers", lambda numbers: numbers + 10**6),
    ("numbers", lambda numbers: numbers - 10**6),
    ("numbers", lambda numbers: numbers[:3]),
    ("numbers", lambda numbers: numbers * 1.0),
    ("frames", lambda frames: frames[:, :1]),
    ("frames", lambda frames: frames[:1]),
    ("frames", lambda frames: frames.astype(np.uint8)),
    ("previous", lambda previous: previous[:1]),
    ("previous_index", lambda index: index + 10**6),
    ("previous_index", lambda index: index * 1.0),
    ("counts", lambda counts: (1 << 63, 1)),
    ("counts", lambda counts: (-1, 1)),
]


def test_forged_frames_are_refused():
    with stacked_vec() as vec:
        stepped = Stepped(vec, 60, frame_stack=3)
        stepped.step(10)
        stepped.make().load_state_dict(stepped.replay.state_dict())
        for name, value in FORGED_FRAMES:
            state = stepped.replay.state_dict()
            for content in (state["observations"], state["parts"][0]["observations"]):
                if name in content:
                    content[name] = value(content[name])
            with pytest.raises(ValueError, match=r"^expected (values of shape|frames from) .*, got "):
                stepped.make().load_state_dict(state)


# -- kills -------------------------------------------------------------------------------------------------


def test_a_kill_at_any_write_leaves_a_checkpoint_with_its_replay(tmp_path):
    # A child saves, and ends before its first, second, ... file is there or gone.
    folder, kill, ended, found = tmp_path / "run", 0, False, set()
    settings = {"replay_size": 170, "prioritized": True}
    with learner_for(CARTPOLE, **settings) as learner, Run(folder, learner, CARTPOLE) as run:
        train_to(run, 180)
        old = state_of(train_to(run, 200))  # with a small last file
        learner.train(lambda update: update.steps >= 340 and learner.stop())
        new = state_of(learner)
        state = learner.state_dict(with_replay=False)
        learner.state_dict = lambda **_: dict(state)  # a vec cannot be used in a child
        while not ended:
            kill += 1
            copied = shutil.copytree(folder, tmp_path / f"copy{kill}")
            if (child := os.fork()) == 0:
                run.folder = run._replay_files._folder = copied
                end_at_call(kill, ("replace", "unlink"))
                run.save()
                os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            with resume(copied) as again:
                assert again.restored.exact
                is_new = again.learner.steps == learner.steps
                assert same(state_of(again.learner), new if is_new else old)
                found.add((is_new, len(files_in(copied))))
        run._close(save=False)
    counts = [{count for is_new, count in found if is_new == each} for each in (False, True)]
    assert len(counts[0]) > 2  # it was killed after none, some and all of the new files
    assert len(counts[1]) > 1  # and before old ones were removed


def test_a_run_that_was_killed_before_its_first_checkpoint_is_begun_anew(tmp_path, monkeypatch):
    with learner_for(CARTPOLE) as learner:
        learner.train(lambda update: update.steps >= 200 and learner.stop())
        with monkeypatch.context() as patch, Run(tmp_path, learner, CARTPOLE) as run:
            patch.setattr(run_module, "write_tensor_file", killed)
            with pytest.raises(KeyboardInterrupt, match="killed"):
                run.save()
            run._close(save=False)
        assert files_in(tmp_path)
        with Run(tmp_path, learner, CARTPOLE) as run:
            assert not files_in(tmp_path)
        saved = state_of(learner)
    with resume(tmp_path) as run:
        assert same(state_of(run.learner), saved)


def killed(*_):
    raise KeyboardInterrupt("killed")


def test_files_of_a_save_that_failed_go_with_the_next(tmp_path, monkeypatch):
    with learner_for(CARTPOLE) as learner, Run(tmp_path, learner, CARTPOLE) as run:
        train_to(run, 100)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "write_tensor_file", killed)
            for steps in (120, 140):  # few places each
                with pytest.raises(KeyboardInterrupt, match="killed"):
                    train_to(run, steps)
        left = files_in(tmp_path)
        saved = state_of(train_to(run, 220))
        assert left.keys() - files_in(tmp_path).keys()
        assert files_in(tmp_path).keys() == {part.file for part in run._replay_files._parts}
    with resume(tmp_path) as run:
        assert same(state_of(run.learner), saved)
