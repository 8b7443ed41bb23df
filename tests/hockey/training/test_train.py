"""Training runs by configuration files: what they return and leave behind, and how they go on."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import ArgumentError, RunError
from shoal.hockey import resume_run, train_run, train_single_run
from shoal.learn import DQN, DQNConfig, Run, load
from shoal.learn.runs.policy_file import load_file
from tests.hockey.training.small import (
    NAME,
    config,
    contents,
    phase,
    table,
    train,
    without_plots,
    write,
)

# One process of pytest's runs all of this, so that the run is trained once.
pytestmark = pytest.mark.xdist_group("hockey training")

PHASES = (phase("shoot", 8), phase("defend", 12, "TRAIN_DEFENSE", "basic_weak"), phase("again", 12))
GAMES = 32  # about 2300 steps: two reports, so that one checkpoint is not the last one


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A whole run, and its result."""
    folder = tmp_path_factory.mktemp("trained")
    training = {"checkpoint_save_freq": 8}
    content = config(*PHASES, training=training, mirror=True, action_fineness=3)
    return train(folder, content, draws=True, num_envs=2, eval_freq_steps=1000, eval_num_games=6)


def go_on(run, **options):
    with without_plots():
        return resume_run(run, verbose=False, **options)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the folder of the run."""
    return shutil.copytree(trained["run_dir"], tmp_path / "run")


def fresh(folder, name):
    """A new folder of that folder."""
    (folder / name).mkdir()
    return folder / name


def rewards(run):
    return [float(line["reward"]) for line in table(run, "rewards")]


# -- results -------------------------------------------------------------------------------------------


def test_a_result_tells_of_the_run(trained):
    assert set(trained) == {
        *("run_name", "run_dir", "final_reward", "mean_reward", "total_episodes", "total_steps"),
        *("total_gradient_steps", "evaluation_results", "stopped"),
    }
    run = trained["run_dir"]
    found = rewards(run)
    assert (trained["run_name"], trained["stopped"], trained["total_episodes"]) == (NAME, False, GAMES)
    assert trained["final_reward"] == found[-1]
    assert trained["mean_reward"] == pytest.approx(sum(found) / GAMES)
    assert trained["total_steps"] > 10 * 81
    assert trained["total_gradient_steps"] == pytest.approx((trained["total_steps"] - 100) / 8, abs=1.3)


def test_files_of_a_run(trained):
    folder = Path(trained["run_dir"])
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    models = [f"models/{NAME}_ep{games:06d}" for games in (8, 16, 24, 32)]
    assert {path for path in found if "/" in path} - {
        path for path in found if path.startswith("replay")
    } == {
        f"configs/{NAME}.json",
        *(f"csvs/{NAME}_{kind}.csv" for kind in ("rewards", "losses", "evaluation")),
        *(f"plots/{NAME}_{kind}.png" for kind in ("rewards", "losses", "evaluation")),
        f"models/{NAME}.safetensors",
        *(f"{path}.safetensors" for path in models),
        *(f"{path}_metadata.json" for path in models),
    }
    assert {"checkpoint.safetensors", "config.json", "hockey.json", "policy.safetensors"} <= found
    written = json.loads((folder / "configs" / f"{NAME}.json").read_text())
    assert [each["name"] for each in written["curriculum"]["phases"]] == ["shoot", "defend", "again"]
    for path in folder.glob("plots/*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_saved_policies(trained):
    models = Path(trained["run_dir"]) / "models"
    metadata = {
        path.name[len(NAME) + 1 : -len("_metadata.json")]: json.loads(path.read_text())
        for path in models.glob("*.json")
    }
    assert metadata == {
        "ep000008": {"episode": 8, "phase_index": 1, "phase_episode": 0},
        "ep000016": {"episode": 16, "phase_index": 1, "phase_episode": 8},
        "ep000024": {"episode": 24, "phase_index": 2, "phase_episode": 4},
        "ep000032": {"episode": 32, "phase_index": 2, "phase_episode": 12},
    }
    steps = [
        load_file(models / f"{NAME}_ep{games:06d}.safetensors").origin.steps for games in (8, 16, 24, 32)
    ]
    assert steps == sorted(set(steps))
    last, whole = load_file(models / f"{NAME}.safetensors"), load(trained["run_dir"])
    assert last.origin.env == "shoal/HockeyOne-v0"
    assert last.origin.steps == trained["total_steps"]
    assert last.policy.arguments == whole.arguments
    assert all((last.policy.state_dict()[name] == value).all() for name, value in whole.state_dict().items())


def test_csvs(trained):
    run = trained["run_dir"]
    games = table(run, "rewards")
    assert list(games[0]) == ["episode", "reward", "phase"]
    assert [int(line["episode"]) for line in games] == list(range(1, GAMES + 1))
    assert [line["phase"] for line in games] == ["shoot"] * 8 + ["defend"] * 12 + ["again"] * 12
    losses = table(run, "losses")
    assert list(losses[0]) == ["step", "loss"]
    steps = [int(line["step"]) for line in losses]
    assert [step // 1000 for step in steps[:-1]] == list(range(1, len(steps)))
    assert steps[-2] < steps[-1] <= trained["total_steps"]
    assert all(0 < float(line["loss"]) < math.inf for line in losses)
    # Without a goal in most games, and with rewards that are not scaled.
    assert min(rewards(run)) < -5


def test_evaluations(trained):
    rows, told = table(trained["run_dir"], "evaluation"), trained["evaluation_results"]
    columns = ["step", "episode", "win_rate", "mean_reward", "std_reward", "wins", "losses", "draws"]
    assert list(rows[0]) == columns == list(told[0])
    assert [{name: float(value) for name, value in row.items()} for row in rows] == told
    # After every 1000 steps, and at the end.
    steps = [row["step"] for row in told]
    assert [step // 1000 for step in steps[:-1]] == list(range(1, steps[-1] // 1000 + 1))
    assert steps[-1] == trained["total_steps"]
    assert told[-1]["episode"] == GAMES
    for row in told:
        assert row["wins"] + row["losses"] + row["draws"] == 6
        assert row["win_rate"] == row["wins"] / 6
        assert isinstance(row["step"], int)
        assert row["std_reward"] > 0


def test_progress_is_printed(tmp_path, capsys):
    train(
        tmp_path,
        config(phase("one", 2), phase("two", 2)),
        verbose=True,
        eval_freq_steps=5000,
        eval_num_games=2,
    )
    said = capsys.readouterr().out
    assert re.search(rf"^{NAME}: DDDQN, 0 of 4 games played, 1 at once, in ", said)
    assert "\nphase 2 of 2: two, 2 games\n" in said
    assert re.search(r"\nat \d+ steps against the weak bot: win rate \d\.\d{3} ", said)


def test_folders_and_names_are_made_of_time_and_settings(tmp_path):
    path = write(tmp_path, config(phase(episodes=2), agent="SAC", noise="pink", mirror=True))
    with without_plots():
        results = [
            train_run(path, tmp_path / "runs", verbose=False, device="cpu", num_envs=2),
            train_single_run(path, tmp_path / "runs", verbose=False, eval_freq_steps=None, device="cpu"),
        ]
    for found, ending in zip(results, ("_vec2", ""), strict=True):
        assert re.fullmatch(rf"run_lr1e03_bs16_h16_[0-9a-f]{{8}}_\d{{8}}_\d{{6}}{ending}", found["run_name"])
        folder = Path(found["run_dir"])
        assert folder.parent == tmp_path / "runs"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?", folder.name)
        assert (folder / "models" / f"{found['run_name']}.safetensors").exists()
        assert found["evaluation_results"] == []
    assert results[0]["run_dir"] != results[1]["run_dir"]


# -- how much is learnt --------------------------------------------------------------------------------


def test_gradient_steps_do_not_depend_on_the_number_of_envs(tmp_path):
    # The defect to avoid: one gradient step for each step of all envs.
    training = {"updates_per_step": 1, "train_freq": 8, "warmup_steps": 60}
    for num_envs in (1, 4):
        found = train(
            fresh(tmp_path, str(num_envs)), config(phase(episodes=8), training=training), num_envs=num_envs
        )
        assert found["total_episodes"] == 8
        expected = (found["total_steps"] - 60) / 8
        assert found["total_gradient_steps"] == pytest.approx(expected, abs=1 + num_envs / 8)


def test_the_same_seed_trains_the_same_agent(tmp_path):
    def play(seed):
        folder = fresh(tmp_path, str(len(list(tmp_path.iterdir()))))
        train(folder, config(phase(episodes=4), agent="SAC", noise="pink"), seed=seed, num_envs=2)
        policy = load(folder / "run").state_dict()
        return rewards(folder / "run"), [value.tolist() for value in policy.values()]

    one, same, other = play(1), play(1), play(2)
    assert one == same
    assert one[0] != other[0]


def test_games_to_be_played_are_played_whatever_the_number_of_envs(tmp_path):
    """Fewer games than envs, each of full length."""
    found = train(tmp_path, config(phase(episodes=2)), num_envs=8)
    assert (found["total_episodes"], found["stopped"]) == (2, False)
    assert found["total_steps"] == 8 * 81


# -- the beginning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["run", "file"])
def test_a_run_begins_with_a_saved_policy(trained, tmp_path, given):
    start = Path(trained["run_dir"])
    path = start if given == "run" else start / "models" / f"{NAME}.safetensors"
    seen = []

    def look(learner):
        seen.extend([learner.policy.state_dict()[name].clone() for name in kept])

    kept = [name for name in load(start).state_dict() if name != "epsilon"]
    content = config(phase(episodes=1), action_fineness=3)
    train(tmp_path, content, checkpoint_path=path, on_learner=look)
    whole = load(start).state_dict()
    assert all((value == whole[name]).all() for name, value in zip(kept, seen, strict=True))


def test_a_policy_of_another_form(trained, tmp_path):
    with pytest.raises(ArgumentError, match=r"policy: expected a QPolicy with .*got a QPolicy with"):
        train(tmp_path, config(hidden_dim=[16]), checkpoint_path=trained["run_dir"])
    with pytest.raises(ArgumentError, match=r"policy: expected a SACPolicy with .*got a QPolicy with"):
        train(tmp_path, config(agent="SAC"), checkpoint_path=trained["run_dir"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, r"device: expected 'cpu', 'cuda', 'cuda:N', a number N or None, got 'gpu'"),
        ({"device": "cuda:x"}, r"device: expected .*, got 'cuda:x'"),
        ({"device": True}, r"device: expected .*, got True"),
        ({"device": "cuda:99"}, r"device: this machine has .*GPU.* that torch can use, got 'cuda:99'"),
        ({"device": 99}, r"device: this machine has .*GPU.* that torch can use, got 99"),
        ({"run_name": "a/b"}, r"run_name: expected a name for files: letters.* got 'a/b'"),
        ({"run_name": ""}, r"run_name: expected a name for files: letters.* got ''"),
        ({"eval_num_games": 0}, r"eval_num_games: expected a whole number of 1 or more, got 0"),
        ({"eval_freq_steps": 0}, r"eval_freq_steps: expected a whole number of 1 or more, or None, got 0"),
        ({"num_envs": 0}, r"num_envs: expected at least 1, got 0"),
        (
            {"checkpoint_path": "none.pt"},
            r"none\.pt: expected the file of a policy or the folder of a run, but",
        ),
    ],
)
def test_wrong_arguments_leave_no_folder(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        train(tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_wrong_files(tmp_path):
    with pytest.raises(ArgumentError, match=r"config: cannot read .*none\.json: No such file"):
        train_run(tmp_path / "none.json", verbose=False)
    with pytest.raises(
        ArgumentError, match=r"config\.json: 1 problem in the configuration:\n- agent\.type: "
    ):
        train(tmp_path, config(agent="TD3"))


def test_a_folder_with_a_run_is_not_written_to(trained, run):
    before = contents(run)
    with pytest.raises(RunError, match="contains a run already: choose another folder, or resume it"):
        train(run.parent, run_dir=run)
    assert contents(run) == before


# -- stopping and going on -----------------------------------------------------------------------------


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(trained, tmp_path):
    content = config(*PHASES, training={"checkpoint_save_freq": 8}, mirror=True, action_fineness=3)
    learners = []
    found = train(
        tmp_path,
        content,
        num_envs=2,
        eval_freq_steps=1000,
        eval_num_games=6,
        on_learner=learners.append,
        on_update=lambda update: learners[0].stop(),
    )
    assert found["stopped"]
    assert 0 < found["total_episodes"] < GAMES
    games = found["total_episodes"]
    assert rewards(tmp_path / "run") == rewards(trained["run_dir"])[:games]
    again = go_on(tmp_path / "run")
    for name in (
        "total_episodes",
        "total_steps",
        "total_gradient_steps",
        "mean_reward",
        "evaluation_results",
    ):
        assert again[name] == trained[name]
    assert not again["stopped"]
    for kind in ("rewards", "evaluation"):
        assert table(tmp_path / "run", kind) == table(trained["run_dir"], kind)
    whole, policy = load(trained["run_dir"]).state_dict(), load(tmp_path / "run").state_dict()
    assert all((policy[name] == value).all() for name, value in whole.items())


KILLED = """
import os, sys
from shoal.hockey import train_run

def on_update(update):
    if update.steps >= 2000:
        os.kill(os.getpid(), 9)

train_run(
    sys.argv[1], verbose=False, run_name="small", run_dir=sys.argv[2], device="cpu", num_envs=2,
    eval_freq_steps=1000, eval_num_games=6, on_update=on_update,
)
"""


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(trained, tmp_path):
    """The last checkpoint is of the first 1000 steps, and csvs are of 2000."""
    content = config(*PHASES, training={"checkpoint_save_freq": 8}, mirror=True, action_fineness=3)
    folder = tmp_path / "run"
    process = subprocess.run(
        [sys.executable, "-c", KILLED, write(tmp_path, content), folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    before = len(rewards(folder))
    told = []
    found = go_on(folder, on_learner=lambda learner: told.append(learner.episodes.count))
    assert 0 < told[0] < before < GAMES  # it repeats some games, whose lines are there already
    assert found["total_steps"] == trained["total_steps"]
    for kind in ("rewards", "losses", "evaluation"):
        assert table(folder, kind) == table(trained["run_dir"], kind)
    assert (folder / "models" / f"{NAME}_ep000032.safetensors").exists()


def test_a_run_that_was_killed_right_after_a_checkpoint_has_all_games(tmp_path, monkeypatch):
    save, folder = Run.save, tmp_path / "killed"

    def save_and_copy(run):
        done = save(run)
        if not folder.exists():
            shutil.copytree(run.folder, folder)  # what a kill at this moment leaves
        return done

    monkeypatch.setattr(Run, "save", save_and_copy)
    train(tmp_path, config(phase(episodes=16)))
    go_on(folder)
    assert [int(line["episode"]) for line in table(folder, "rewards")] == list(range(1, 17))


def test_an_evaluation_that_was_under_way_is_repeated(tmp_path, monkeypatch):
    from shoal.hockey.training import train as module

    play, folder = module.play_bot, tmp_path / "killed"

    def copy_and_play(*args, **options):
        if not folder.exists():
            shutil.copytree(tmp_path / "run", folder)
        return play(*args, **options)

    monkeypatch.setattr(module, "play_bot", copy_and_play)
    content = config(phase(episodes=16))
    whole = train(tmp_path, content, eval_freq_steps=1000, eval_num_games=2)
    assert go_on(folder)["evaluation_results"] == whole["evaluation_results"]


def test_names_of_phases_may_have_commas(tmp_path):
    found = train(tmp_path, config(phase("camp, easy", 2)))
    before = table(tmp_path / "run", "rewards")
    assert go_on(tmp_path / "run")["mean_reward"] == found["mean_reward"]
    assert table(tmp_path / "run", "rewards") == before


def test_a_finished_run_stays_as_it_is(trained, run):
    before = contents(run)
    found = go_on(run)
    assert {**found, "run_dir": trained["run_dir"]} == trained
    after = contents(run)
    assert {
        name for name in before if not name.endswith((".png", ".json")) and before[name] != after[name]
    } <= {f"models/{NAME}.safetensors"}
    assert set(before) == set(after)


def test_the_number_of_games_stays_as_it_is(tmp_path):
    # Four games end at the same time.
    content = config(phase(episodes=6))
    found = train(tmp_path, content, num_envs=4)
    assert found["total_episodes"] == 6
    assert go_on(tmp_path / "run")["total_episodes"] == 6


# -- damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("checkpoint.safetensors", b"", r"checkpoint\.safetensors: .*damaged"),
        ("checkpoint.safetensors", ..., r"checkpoint\.safetensors: .*damaged"),
        (
            "checkpoint.safetensors",
            None,
            r"expected the folder of a run, but it has no checkpoint\.safetensors",
        ),
        ("hockey.json", None, r"expected the folder of a hockey run, but it has no hockey\.json"),
        ("hockey.json", b"", r"hockey\.json: is damaged .*Begin a new run"),
        ("hockey.json", b"\xff\x00", r"hockey\.json: is damaged"),
        ("hockey.json", b"[]", r"hockey\.json: is damaged"),
        ("hockey.json", b"{}", r"hockey\.json: is damaged"),
        (
            "hockey.json",
            b'{"run_name": "x", "config": {}}',
            r"hockey\.json: is damaged .*problems in the config",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and "\\" not in value else None,
)
def test_damaged_runs_are_refused_and_stay_as_they_are(run, name, content, message):
    path = run / name
    if content is None:
        path.unlink()
    elif content is ...:
        whole = path.read_bytes()
        path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    else:
        path.write_bytes(content)
    before = contents(run)
    with pytest.raises(RunError, match=message):
        go_on(run)
    assert contents(run) == before


@pytest.mark.parametrize("key", ["run_name", "eval_freq_steps", "eval_num_games"])
def test_settings_of_other_types_are_damage(run, key):
    path = run / "hockey.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: ["often"]}))
    before = contents(run)
    with pytest.raises(RunError, match=r"hockey\.json: is damaged"):
        go_on(run)
    assert contents(run) == before


def test_damaged_lines_of_csvs_are_dropped(run):
    path = run / "csvs" / f"{NAME}_rewards.csv"
    whole = path.read_text()
    path.write_text(whole + "33,-1.5,aga")  # a line that a kill has cut off
    go_on(run)
    assert path.read_text() == whole


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(
        RunError, match=r"none: expected the folder of a hockey run, but it has no hockey\.json"
    ):
        resume_run(tmp_path / "none")
    (tmp_path / "other").mkdir()
    with DQN("shoal/CartPole-v1", DQNConfig(num_envs=1, hidden=(8,))) as dqn:
        dqn.save(tmp_path / "other")
    with pytest.raises(RunError, match=r"other: expected the folder of a hockey run"):
        resume_run(tmp_path / "other")
