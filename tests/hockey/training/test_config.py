"""Configuration files: all that is wrong is told at once, with its place."""

import copy
import json
from pathlib import Path

import pytest

from shoal.errors import ArgumentError
from shoal.hockey import Mode
from shoal.hockey.actions import COMBINED_20
from shoal.hockey.training.config import (
    Shaping,
    Training,
    actions_of,
    check_config,
    make_config,
    read_config,
)

EXAMPLES = Path(__file__).parents[3] / "examples" / "hockey" / "configs"
MIXTURE = {
    "type": "weighted_mixture",
    "opponents": [{"type": "basic_weak", "weight": 0.75}, {"type": "none", "weight": 0.25}],
}
GOOD = {
    "curriculum": {
        "phases": [
            {
                "name": "camp",
                "episodes": 10,
                "environment": {"mixture": [{"mode": "TRAIN_SHOOTING", "weight": 3}, {"mode": "NORMAL"}]},
                "opponent": MIXTURE,
                "reward_shaping": {"N": 4, "K": 2, "TOUCH_FINAL": 3.5},
                "clear_buffer": False,
            },
            {
                "name": "games",
                "episodes": 20,
                "environment": {"mode": "NORMAL", "keep_mode": True},
                "opponent": {"type": "basic_strong", "weight": 1.0, "deterministic": True},
                "reward_shaping": None,
            },
        ]
    },
    "hyperparameters": {"learning_rate": 0.01, "batch_size": 64},
    "training": {"warmup_steps": 50},
    "agent": {"type": "DDDQN", "hyperparameters": {"hidden_dim": [8, 8], "learning_rate": 0.5}},
}

PHASE, OWN = "curriculum.phases[0]", "agent.hyperparameters"


def changed(path, value):
    """The good file with another value at a path; without it if the value is `...`."""
    whole = copy.deepcopy(GOOD)
    *way, last = [
        int(key) if key.isdigit() else key for key in path.replace("[", ".").replace("]", "").split(".")
    ]
    place = whole
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return whole


def test_a_file_is_read():
    found = make_config(GOOD)
    camp, games = found.phases
    assert (camp.name, camp.episodes, games.episodes, found.episodes) == ("camp", 10, 20, 30)
    assert camp.modes == {Mode.TRAIN_SHOOTING: 3.0, Mode.NORMAL: 1.0}
    assert camp.opponents == {"weak": 0.75, "none": 0.25}
    assert camp.shaping == Shaping(N=4, K=2, TOUCH_FINAL=3.5)
    assert (camp.clear_buffer, games.clear_buffer) == (False, True)
    assert (games.modes, games.opponents, games.shaping) == ({Mode.NORMAL: 1.0}, {"strong": 1.0}, None)
    assert found.training == Training(warmup_steps=50)
    assert (found.agent.type, found.agent.hyperparameters["hidden_dim"]) == ("DDDQN", [8, 8])
    assert (found.learning_rate, found.batch_size) == (0.01, 64)
    assert found.source == GOOD


def test_defaults_are_those_of_the_course():
    least = {
        "curriculum": {"phases": [GOOD["curriculum"]["phases"][1]]},
        "training": {},
        "agent": {"type": "SAC"},
    }
    found = make_config(least)
    assert found.training == Training(
        max_episode_steps=500,
        updates_per_step=1.0,
        train_freq=1,
        warmup_steps=400,
        reward_scale=0.1,
        checkpoint_save_freq=100,
    )
    assert (found.learning_rate, found.batch_size) == (1e-4, 256)
    assert (found.agent.type, found.agent.hyperparameters) == ("SAC", {})
    shaping = make_config(changed(f"{PHASE}.reward_shaping", {})).phases[0].shaping
    assert shaping == Shaping(600, 400, 20.0, 15.0, 0.0, 1.5, 1.0, 2.0)


def test_shared_hyperparameters_override_those_of_the_agent():
    assert make_config(GOOD).learning_rate == 0.01
    assert make_config(changed("hyperparameters", ...)).learning_rate == 0.5
    assert make_config(changed("hyperparameters", None)).batch_size == 256


def test_discrete_actions():
    def of(**own):
        return actions_of(make_config(changed(OWN, own)).agent.hyperparameters)

    assert (len(of()), len(of(action_fineness=3)), of(action_set="combined-20")) == (8, 14, COMBINED_20)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.json")))
def test_example_files_are_read(name):
    path = EXAMPLES / f"{name}.json"
    found = read_config(path)
    assert found.source == json.loads(path.read_text())
    assert found.episodes > 0
    if name == "curriculum_simple":
        assert [phase.episodes for phase in found.phases] == [8000, 8000, 15000, 40000]
        assert found.phases[2].opponents == {"weak": 0.8, "strong": 0.2}
        assert (found.learning_rate, found.batch_size, found.training.reward_scale) == (5e-4, 512, 0.5)
        assert len(actions_of(found.agent.hyperparameters)) == 14


def test_weights_of_shaping_by_the_number_of_games():
    shaping = Shaping(N=10, K=4, CLOSENESS_START=8, TOUCH_START=4, CLOSENESS_FINAL=0, TOUCH_FINAL=0)
    start, half, final = (
        {"closeness": 8.0, "touch": 4.0, "direction": 0.0},
        {"closeness": 4.0, "touch": 2.0, "direction": 1.0},
        {"closeness": 0.0, "touch": 0.0, "direction": 2.0},
    )
    expected = {0: start, 10: start, 12: half, 14: final, 1000: final}
    assert {games: shaping.weights(games) for games in expected} == expected
    assert Shaping(N=0, K=0).weights(0) == {"closeness": 1.5, "touch": 1.0, "direction": 2.0}


A_MODE = "one of NORMAL, TRAIN_SHOOTING, TRAIN_DEFENSE"
WRONG = [
    ("curriculum", ..., "curriculum: missing: expected an object, {...}"),
    ("curriculum", [], "curriculum: expected an object, {...}, got []"),
    ("curriculum.phases", ..., "curriculum.phases: missing: expected a list of phases"),
    ("curriculum.phases", [], "curriculum.phases: expected a list of phases, got []"),
    (PHASE, "camp", f"{PHASE}: expected an object, {{...}}, got 'camp'"),
    (f"{PHASE}.name", 3, f"{PHASE}.name: expected a text, got 3"),
    (f"{PHASE}.name", ..., f"{PHASE}.name: missing: expected a text"),
    (f"{PHASE}.episodes", 0, f"{PHASE}.episodes: expected a whole number of 1 or more, got 0"),
    (f"{PHASE}.episodes", 1.5, f"{PHASE}.episodes: expected a whole number of 1 or more, got 1.5"),
    (f"{PHASE}.episodes", True, f"{PHASE}.episodes: expected a whole number of 1 or more, got True"),
    (f"{PHASE}.episodes", "9", f"{PHASE}.episodes: expected a whole number of 1 or more, got '9'"),
    (f"{PHASE}.episode", 9, f"{PHASE}.episode: there is no such key: did you mean episodes?"),
    (f"{PHASE}.environment", ..., f"{PHASE}.environment: missing: expected an object, {{...}}"),
    (f"{PHASE}.environment", {}, f"{PHASE}.environment.mode: missing: expected {A_MODE}"),
    (f"{PHASE}.environment", {"mode": "SHOOT"}, f"{PHASE}.environment.mode: expected {A_MODE}, got 'SHOOT'"),
    (
        f"{PHASE}.environment",
        {"mode": ["NORMAL"]},
        f"{PHASE}.environment.mode: expected {A_MODE}, got ['NORMAL']",
    ),
    (
        f"{PHASE}.environment.mode",
        "NORMAL",
        f"{PHASE}.environment.mode: expected either mode or mixture, got both",
    ),
    (
        f"{PHASE}.environment.mixture",
        [],
        f"{PHASE}.environment.mixture: expected a list of objects, got []",
    ),
    (
        f"{PHASE}.environment.mixture[0].weight",
        -1,
        f"{PHASE}.environment.mixture[0].weight: expected a number of 0 or more, got -1",
    ),
    (
        f"{PHASE}.environment.mixture[1].mode",
        ...,
        f"{PHASE}.environment.mixture[1].mode: missing: expected {A_MODE}",
    ),
    (
        f"{PHASE}.environment.mixture",
        [{"mode": "NORMAL", "weight": 0}],
        f"{PHASE}.environment.mixture: expected at least one weight above 0",
    ),
    (
        f"{PHASE}.environment.keep_mode",
        False,
        f"{PHASE}.environment.keep_mode: expected true: agents see and act as in games with keep mode",
    ),
    (f"{PHASE}.environment.keep_mode", 1, f"{PHASE}.environment.keep_mode: expected true or false, got 1"),
    (f"{PHASE}.opponent", ..., f"{PHASE}.opponent: missing: expected an object, {{...}}"),
    (
        f"{PHASE}.opponent",
        {"type": "me"},
        f"{PHASE}.opponent.type: expected one of none, basic_weak, basic_strong",
    ),
    (
        f"{PHASE}.opponent.opponents[0].type",
        "weighted_mixture",
        f"{PHASE}.opponent.opponents[0].type: expected ",
    ),
    (
        f"{PHASE}.opponent.opponents[0].weight",
        0.5,
        f"{PHASE}.opponent.opponents: expected weights that sum up to 1, got 0.75",
    ),
    (
        f"{PHASE}.opponent.opponents[1].weight",
        -0.25,
        f"{PHASE}.opponent.opponents[1].weight: expected a number of 0 or more, got -0.25",
    ),
    (f"{PHASE}.opponent.opponents", ..., f"{PHASE}.opponent.opponents: missing: expected a list of objects"),
    (f"{PHASE}.reward_shaping", 3, f"{PHASE}.reward_shaping: expected an object, {{...}}, got 3"),
    (
        f"{PHASE}.reward_shaping.N",
        -1,
        f"{PHASE}.reward_shaping.N: expected a whole number of 0 or more, got -1",
    ),
    (
        f"{PHASE}.reward_shaping.TOUCH_FINAL",
        "x",
        f"{PHASE}.reward_shaping.TOUCH_FINAL: expected a number, got 'x'",
    ),
    (
        f"{PHASE}.reward_shaping.TOUCH_FNAL",
        1,
        f"{PHASE}.reward_shaping.TOUCH_FNAL: there is no such key: did you mean TOUCH_FINAL?",
    ),
    (f"{PHASE}.clear_buffer", "yes", f"{PHASE}.clear_buffer: expected true or false, got 'yes'"),
    ("training", ..., "training: missing: expected an object, {...}"),
    ("training.warmup_steps", -5, "training.warmup_steps: expected a whole number of 0 or more, got -5"),
    ("training.updates_per_step", -1, "training.updates_per_step: expected a number of 0 or more, got -1"),
    ("training.train_freq", 0, "training.train_freq: expected a whole number of 1 or more, got 0"),
    (
        "training.max_episode_steps",
        0,
        "training.max_episode_steps: expected a whole number of 1 or more, got 0",
    ),
    (
        "training.checkpoint_save_freq",
        0,
        "training.checkpoint_save_freq: expected a whole number of 1 or more, got 0",
    ),
    ("training.reward_scale", float("nan"), "training.reward_scale: expected a number, got nan"),
    ("training.warmup", 3, "training.warmup: there is no such key: did you mean warmup_steps?"),
    (
        "hyperparameters.learning_rate",
        "fast",
        "hyperparameters.learning_rate: expected a number of 1e-12 or more, got 'fast'",
    ),
    (
        "hyperparameters.batch_size",
        0,
        "hyperparameters.batch_size: expected a whole number of 1 or more, got 0",
    ),
    (
        "hyperparameters.momentum",
        0,
        "hyperparameters.momentum: there is no such key; known: batch_size, learning_rate",
    ),
    ("agent", ..., "agent: missing: expected an object, {...}"),
    ("agent.type", ..., "agent.type: missing: expected DDDQN or SAC"),
    ("agent.type", "TD3", "agent.type: expected DDDQN or SAC, got 'TD3'"),
    (OWN, 3, f"{OWN}: expected an object, {{...}}, got 3"),
    (
        f"{OWN}.hidden_dim",
        [64, 0],
        f"{OWN}.hidden_dim: expected a list of whole numbers above 0, got [64, 0]",
    ),
    (f"{OWN}.gamma", 1.5, f"{OWN}.gamma: expected a number from 0 to 1, got 1.5"),
    (f"{OWN}.eps", float("inf"), f"{OWN}.eps: expected a number from 0 to 1, got inf"),
    (f"{OWN}.action_fineness", 1, f"{OWN}.action_fineness: expected a whole number of 2 or more, got 1"),
    (f"{OWN}.eps_dacay", 0.9, f"{OWN}.eps_dacay: there is no such key: did you mean eps_decay?"),
    (
        f"{OWN}.action_set",
        "all",
        f"{OWN}.action_set: expected one of basic, combined-20, combined-24, got 'all'",
    ),
    (
        OWN,
        {"action_set": "basic", "action_fineness": 3},
        f"{OWN}.action_set: expected either action_set or action_fineness, got both",
    ),
    ("agent", {"type": "SAC", "hyperparameters": {"eps": 1}}, f"{OWN}.eps: there is no such key"),
    (
        "agent",
        {"type": "SAC", "hyperparameters": {"noise": "loud"}},
        f"{OWN}.noise: expected one of normal, white, pink, red, got 'loud'",
    ),
    ("curiculum", {}, "curiculum: there is no such key: did you mean curriculum?"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[wrong[2] for wrong in WRONG])
def test_every_mistake_is_told_with_its_place(path, value, message):
    assert check_config(GOOD) == []
    assert any(each.startswith(message) for each in check_config(changed(path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{PHASE}.opponent.type", ["none"]),
        (f"{PHASE}.opponent.opponents[0].type", ["none"]),
        pytest.param(f"{OWN}.action_set", ["basic"]),
        pytest.param("agent", {"type": "SAC", "hyperparameters": {"noise": ["white"]}}),
        pytest.param(f"{OWN}.hidden_dim", [True]),
        (f"{PHASE}.episodes", 10**400),
        (f"{PHASE}.name", None),
        ("agent.type", ["SAC"]),
    ],
)
def test_values_of_unusual_types_are_mistakes_too(path, value):
    last = {"agent": "noise"}.get(path, path.rpartition(".")[2])
    assert any(f"{last}: expected" in each for each in check_config(changed(path, value)))


@pytest.mark.parametrize("given", [None, 3, [], "curriculum"])
def test_a_file_that_is_no_object(given):
    assert check_config(given)[0] == f"the file: expected an object, {{...}}, got {given!r}"


def test_all_mistakes_come_at_once(tmp_path):
    path = tmp_path / "wrong.json"
    whole = changed("training.train_freq", 0)
    whole["agent"]["type"] = "PPO"
    whole["curriculum"]["phases"][1]["episodes"] = -1
    path.write_text(json.dumps(whole))
    with pytest.raises(ArgumentError, match=r"wrong\.json: 3 problems in the configuration:\n- ") as caught:
        read_config(path)
    assert str(caught.value).split("\n- ")[1:] == [
        "curriculum.phases[1].episodes: expected a whole number of 1 or more, got -1",
        "agent.type: expected DDDQN or SAC, got 'PPO'",
        "training.train_freq: expected a whole number of 1 or more, got 0",
    ]
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ArgumentError, match=r"^1 problem in the configuration:\n- training\.train_freq: "):
        make_config(changed("training.train_freq", 0))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ArgumentError, match=r"config: cannot read .*none\.json: No such file"):
        read_config(tmp_path / "none.json")
    with pytest.raises(ArgumentError, match=r"config: cannot read .*: Is a directory"):
        read_config(tmp_path)
    path = tmp_path / "half.json"
    path.write_text('{"curriculum": ')
    with pytest.raises(ArgumentError, match=r"half\.json: expected JSON: Expecting value"):
        read_config(path)


def test_a_file_of_other_bytes_is_a_mistake(tmp_path):
    path = tmp_path / "bytes.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match=r"bytes\.json: expected JSON"):
        read_config(path)
