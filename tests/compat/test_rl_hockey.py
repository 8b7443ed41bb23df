"""Scripts written for rl_hockey run on Shoal: faces, agents, envs, and a user's guide as it stands."""

import importlib
import json
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import _core
from shoal.compat import install_as_rl_hockey
from shoal.compat import rl_hockey as face
from shoal.compat.rl_hockey import agent_evaluator
from shoal.errors import ActionError, ArgumentError, CallError, MissingExtra, RunError
from shoal.hockey import HockeyEnv, play_bot
from shoal.hockey.players import make_player
from tests.cli.conftest import _libraries_of_commands_that_hold_on  # noqa: F401
from tests.compat.rl_hockey_envs import Foreign
from tests.hockey.training.small import config, phase, train, without_plots, write

compiled = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")
GUIDE = Path(__file__).with_name("hockey_guide.txt").read_text()
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def forget():
    """Remove the stand-in, as if it had never been installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rl_hockey"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not face.FACADE]


@pytest.fixture(autouse=True)
def _nothing_stays():
    forget()
    yield
    forget()


# -- installing ----------------------------------------------------------------------------------------


def test_install_twice():
    install_as_rl_hockey()
    module = importlib.import_module("rl_hockey")
    install_as_rl_hockey()
    assert importlib.import_module("rl_hockey") is module
    assert importlib.util.find_spec("rl_hockey").origin == "shoal.compat"
    assert sys.meta_path.count(face.FACADE) == 1


@pytest.mark.parametrize("imported", [False, True])
def test_the_real_one_is_not_replaced(tmp_path, monkeypatch, imported):
    package = tmp_path / "rl_hockey"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    install_as_rl_hockey()  # a mere folder
    forget()
    (package / "__init__.py").write_text("real = True")
    importlib.invalidate_caches()
    if imported:
        importlib.import_module("rl_hockey")
    with pytest.raises(CallError, match=r"rl_hockey itself is installed, in .*rl_hockey/__init__.py"):
        install_as_rl_hockey()
    assert importlib.import_module("rl_hockey").real


NAMES = {
    "train_single_run": ["common.training.train_single_run"],
    "train_run": ["common.training.train_run"],
    "VectorizedHockeyEnv": ["common.vectorized_env"],
    "VectorizedHockeyEnvOptimized": ["common.vectorized_env"],
    "evaluate_agent": ["common.evaluation.agent_evaluator"],
    "DDDQN": ["DDDQN", "DDDQN.dddqn"],
    "SAC": ["sac", "sac.sac"],
}


def test_everything_is_where_scripts_look_for_it():
    install_as_rl_hockey()
    assert sorted(NAMES) == sorted(face.__all__)
    for name, modules in NAMES.items():
        for module in modules:
            found = {}
            exec(f"from rl_hockey.{module} import {name}", found)
            assert found[name] is getattr(face, name)
    found = {}
    exec("import rl_hockey.sac.sac as one; from rl_hockey.common.vectorized_env import *", found)
    assert found["one"].SAC is face.SAC
    assert found["VectorizedHockeyEnv"] is face.VectorizedHockeyEnv


@pytest.mark.parametrize(
    "statement",
    [
        "import rl_hockey.common.buffer",
        "from rl_hockey.common import buffer",
        "from rl_hockey.common.vectorized_env import ThreadedVectorizedHockeyEnv",
        "from rl_hockey import td3",
    ],
)
def test_names_that_are_not_offered(statement):
    install_as_rl_hockey()
    with pytest.raises(
        ImportError, match=r"Shoal's stand-in for rl_hockey has only DDDQN, SAC, Vect|cannot import name"
    ):
        exec(statement)
    with pytest.raises(
        MissingExtra, match=r"rl_hockey\.common\.buffer: Shoal's stand-in for rl_hockey has only DDDQN"
    ):
        importlib.import_module("rl_hockey.common.buffer")
    common = importlib.import_module("rl_hockey.common")
    with pytest.raises(
        AttributeError, match=r"rl_hockey\.common\.buffer: Shoal's stand-in for rl_hockey has"
    ):
        _ = common.buffer
    with pytest.raises(AttributeError, match="has no attribute 'td3'"):
        _ = face.td3


def test_importing_shoal_installs_nothing_and_no_torch():
    run = (
        "import sys, shoal.compat; shoal.compat.install_as_rl_hockey(); import rl_hockey.sac; "
        "print([name in sys.modules for name in ('rl_hockey', 'torch')])"
    )
    assert subprocess.check_output([sys.executable, "-c", run], text=True) == "[True, False]\n"


# -- vectorized envs -----------------------------------------------------------------------------------


@compiled
def test_games_in_the_form_of_rl_hockey():
    for cls, kind in (
        (face.VectorizedHockeyEnv, np.float64),
        (face.VectorizedHockeyEnvOptimized, np.float32),
    ):
        with cls(3, seed=1) as envs, cls(3, seed=1) as same, cls(3) as other:
            assert (envs.num_envs, envs.observation_space.shape, envs.action_space.shape) == (3, (18,), (8,))
            obs = envs.reset()
            assert (obs.shape, obs.dtype) == ((3, 18), kind)
            np.testing.assert_array_equal(obs, same.reset())
            assert (obs[:, 12] != other.reset()[:, 12]).all()
            kept = obs.copy()
            actions = np.tile([1, 0.5, 0.2, 0, -1, 0.5, 0.2, 0], (3, 1))
            after, rewards, dones, truncs, infos = envs.step(actions)
            two = envs.obs_agent_two()
            np.testing.assert_array_equal(obs, kept)  # what was returned before stays
            assert (rewards.shape, dones.tolist(), truncs.tolist()) == ((3,), [False] * 3, [False] * 3)
            assert set(infos[0]) >= {
                "winner",
                "reward_closeness_to_puck",
                "reward_touch_puck",
                "reward_puck_direction",
            }
            np.testing.assert_allclose(
                rewards, [info["reward_closeness_to_puck"] for info in infos], atol=1e-6
            )
            # Each player plays its own numbers: one goes ahead, the other back.
            assert (after[:, 3] > 0).all()
            assert (two[:, 3] <= 0).all()
            np.testing.assert_allclose(two[:, 12:16], -after[:, 12:16])
            assert two.dtype == kind
        envs.close()


@compiled
def test_games_are_reset_and_their_last_observation_is_in_infos():
    """The defect to avoid: the last observation was returned, and the first one of the next game lost."""
    with face.VectorizedHockeyEnv(4, lambda: HockeyEnv(mode="TRAIN_SHOOTING"), seed=0) as envs:
        obs, nothing = envs.reset(), np.zeros((4, 8))
        for step in range(1, 82):
            before = obs
            obs, _rewards, dones, truncs, infos = envs.step(nothing)
            assert truncs.tolist() == [step == 81] * 4
            assert not dones.any()
            assert all(("terminal_obs" in info) == (step == 81) for info in infos)
        for place, info in enumerate(infos):
            # Nothing moves in a game without actions, and the next game has another puck.
            np.testing.assert_allclose(info["terminal_obs"], before[place], atol=1e-6)
            assert abs(obs[place, 13] - before[place, 13]) > 1e-4
            assert info["winner"] == 0
        assert (envs.obs_agent_two()[:, 12] == -obs[:, 12]).all()
        assert envs.step(nothing)[3].tolist() == [False] * 4


@compiled
def test_a_goal_ends_a_game():
    kinds = {"TRAIN_DEFENSE": 0}
    with face.VectorizedHockeyEnv(8, lambda: HockeyEnv(mode="TRAIN_DEFENSE"), seed=3) as envs:
        envs.reset()
        for _ in range(30):
            _, rewards, dones, truncs, infos = envs.step(np.zeros((8, 8)))
            for place in np.flatnonzero(dones):
                assert infos[place]["winner"] in (1, -1)
                assert rewards[place] * infos[place]["winner"] > 5
                assert abs(infos[place]["terminal_obs"][12]) > 3.5  # the puck is in a goal
                kinds["TRAIN_DEFENSE"] += 1
            assert not truncs.any()
    assert kinds["TRAIN_DEFENSE"] > 2


@compiled
def test_envs_of_other_packages_run_in_worker_processes():
    made = partial(Foreign)
    with face.VectorizedHockeyEnvOptimized(2, made, seed=0) as envs:
        assert envs.reset().tolist() == [[10] * 18] * 2
        assert envs.obs_agent_two().tolist() == [[-10] * 18] * 2
        actions = np.zeros((2, 8))
        actions[:, 0], actions[:, 7] = [0.5, 1], [1, 0]
        for count in (1, 2):
            obs, rewards, dones, truncs, infos = envs.step(actions)
            assert obs[:, 0].tolist() == [10 + count] * 2
            assert rewards.tolist() == [0.5, 1]
            assert [info["reward_touch_puck"] for info in infos] == [1, 0]
        obs, _, dones, truncs, infos = envs.step(actions)
        assert (dones.tolist(), truncs.tolist()) == ([False] * 2, [True] * 2)
        assert obs[:, 0].tolist() == [20, 20]
        assert [info["terminal_obs"][0] for info in infos] == [13, 13]
        for _ in range(3):
            obs, _, dones, truncs, infos = envs.step(actions)
        assert (dones.tolist(), truncs.tolist()) == ([True] * 2, [False] * 2)
        assert [(info["winner"], info["terminal_obs"][0]) for info in infos] == [(1, 23)] * 2
        assert envs.obs_agent_two().dtype == np.float32


@compiled
def test_wrong_actions():
    with pytest.raises(ArgumentError, match="num_envs: expected 1 or more, got 0"):
        face.VectorizedHockeyEnv(0)
    with face.VectorizedHockeyEnv(2) as envs:
        envs.reset()
        with pytest.raises(ActionError, match=r"actions: expected shape \(2, 8\), got \(2, 4\)"):
            envs.step(np.zeros((2, 4)))
        with pytest.raises(ActionError, match="actions: expected numbers from -1 to 1, got NaN"):
            envs.step(np.full((2, 8), np.nan))
        envs.step(np.full((2, 8), 7.0))  # clipped


@compiled
def test_observations_before_the_first_reset():
    with face.VectorizedHockeyEnv(2) as envs, pytest.raises(CallError, match="reset"):
        envs.obs_agent_two()


# -- agents --------------------------------------------------------------------------------------------

SMALL = {"hidden_dim": [16], "batch_size": 32, "device": "cpu", "buffer_size": 600}
AGENTS = {
    "DDDQN": partial(face.DDDQN, 4, 3, learning_rate=1e-2, **SMALL),
    "SAC": partial(face.SAC, 4, 2, learning_rate=1e-2, **SMALL),
}
BOTH = pytest.mark.parametrize("name", AGENTS)


def fill(agent, count=100):
    """Store episodes of one step: the reward depends on the state and the action."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        state = rng.normal(size=4)
        action = agent.act(state)
        agent.store_transition((state, action, 1.0, rng.normal(size=4), True))


@BOTH
def test_agents_act(name):
    agent = AGENTS[name](seed=1)
    states = np.random.default_rng(0).normal(size=(50, 4))
    likely, again = (agent.act_batch(states, deterministic=True) for _ in range(2))
    drawn = agent.act_batch(states)
    np.testing.assert_array_equal(likely, again)
    assert (drawn != likely).any()
    if name == "DDDQN":
        assert likely.shape == (50,)
        assert set(drawn) == {0, 1, 2}
        assert agent.act(states[0], deterministic=True) == likely[0]
    else:
        assert likely.shape == (50, 2)
        assert np.abs(drawn).max() <= 1
        np.testing.assert_allclose(agent.act(states[0], deterministic=True), likely[0], rtol=1e-5)
    assert isinstance(agent.evaluate(states[0]), float)
    with pytest.raises(ArgumentError, match=r"states: expected \[rows, 4\], got shape \(1, 3\)"):
        agent.act(np.zeros(3))
    agent.close()


@BOTH
def test_agents_learn(name):
    agent = AGENTS[name](seed=1)
    with pytest.raises(ArgumentError, match="train: expected transitions in the replay, got none"):
        agent.train(1)
    fill(agent)
    found = agent.train(60)
    assert {"value", "q_values", "grad_norm"} <= set(found)
    assert all(len(values) == 60 for values in found.values())
    # The reward is always 1, and each episode ends with it.
    assert np.mean(found["value"][-5:]) < np.mean(found["value"][:5]) / 5
    assert np.mean(found["q_values"][-5:]) == pytest.approx(1, abs=0.4)
    agent.close()


def test_values_after_the_end_of_an_episode_do_not_count():
    """`done` ends the sum of rewards; otherwise the value of the next state is added."""
    values = {}
    for done in (True, False):
        agent = face.DDDQN(1, 2, learning_rate=2e-2, gamma=0.5, target_update_freq=5, seed=0, **SMALL)
        for _ in range(40):
            agent.store_transition(([1.0], 0, 1.0, [1.0], done))
            agent.store_transition(([1.0], 1, 1.0, [1.0], done))
        agent.train(300)
        values[done] = agent.evaluate([1.0])
        agent.close()
    assert values[True] == pytest.approx(1, abs=0.1)
    assert values[False] == pytest.approx(2, abs=0.2)  # 1 + 0.5 + 0.25 + ...


def test_random_actions_become_rarer_with_every_episode():
    agent = face.DDDQN(4, 3, eps=0.8, eps_min=0.3, eps_decay=0.5, **SMALL)
    seen = [agent.eps]
    for episode in range(3):
        agent.on_episode_start(episode)
        seen.append(agent.eps)
        agent.on_episode_end(episode)
    assert seen == pytest.approx([0.8, 0.4, 0.3, 0.3])
    agent.eps = 0
    states = np.random.default_rng(0).normal(size=(50, 4))
    np.testing.assert_array_equal(agent.act_batch(states), agent.act_batch(states, deterministic=True))
    agent.close()


@BOTH
def test_agents_are_saved_and_loaded(name, tmp_path):
    one, other = AGENTS[name](seed=1), AGENTS[name](seed=2)
    states = np.random.default_rng(0).normal(size=(20, 4))
    fill(one, 40)
    one.train(5)
    one.save(tmp_path / "new" / "agent")
    one.save(tmp_path / "agent.pt")
    assert (tmp_path / "new" / "agent.safetensors").exists()
    expected = one.act_batch(states, deterministic=True)
    assert (other.act_batch(states, deterministic=True) != expected).any()
    for path in (tmp_path / "new" / "agent", tmp_path / "agent.pt"):
        other = AGENTS[name](seed=2)
        other.load(path)
        np.testing.assert_array_equal(other.act_batch(states, deterministic=True), expected)
        assert other.evaluate(states[0]) == one.evaluate(states[0])
        fill(other, 40)
        other.train(2)  # it goes on learning
        other.close()
    with pytest.raises(RunError, match=r"none\.safetensors: expected the file of a policy or the folder"):
        one.load(tmp_path / "none")
    (tmp_path / "agent.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(RunError, match=r"agent\.pt"):
        one.load(tmp_path / "agent.pt")
    wide = {"DDDQN": face.DDDQN, "SAC": face.SAC}[name](
        4, 3 if name == "DDDQN" else 2, **{**SMALL, "hidden_dim": [8]}
    )
    wide.save(tmp_path / "wide")
    with pytest.raises(ArgumentError, match=r"policy: expected a .*Policy with"):
        one.load(tmp_path / "wide")
    for agent in (one, wide):
        agent.close()


def test_a_replay_may_be_small():
    face.DDDQN(4, 3, **{**SMALL, "buffer_size": 100}).close()


# -- the guide -----------------------------------------------------------------------------------------

LARGE = {"eval_num_games=200": "eval_num_games=4", 'device="cuda:1"': 'device="cpu"'}


def blocks():
    """The guide's blocks of Python, for a machine without GPU."""
    for match in BLOCK.finditer(GUIDE):
        code = textwrap.dedent(match.group(1))
        for large, small in LARGE.items():
            code = code.replace(large, small)
        line = GUIDE[: match.start()].count("\n") + 1
        yield compile("\n" * line + code, "hockey_guide.txt", "exec")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a short run."""
    return train(tmp_path_factory.mktemp("saved"), config(phase(episodes=1), agent="SAC"))["run_dir"]


@compiled
def test_every_block_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    assert len(list(blocks())) == GUIDE.count("```python") == 5
    assert all(large in GUIDE for large in LARGE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    mixed = phase("both", 2, "NORMAL", "weighted_mixture")
    mixed["opponent"]["opponents"] = [
        {"type": "basic_weak", "weight": 0.8},
        {"type": "basic_strong", "weight": 0.2},
    ]
    content = config(
        phase("shoot", 1),
        phase("defend", 1, "TRAIN_DEFENSE", "basic_weak"),
        mixed,
        action_fineness=3,
        use_huber_loss=True,
    )
    write(tmp_path, content).rename(tmp_path / "configs" / "curriculum_simple.json")
    install_as_rl_hockey()
    result = None
    quick = partial(face.train_single_run, eval_num_games=4)
    with without_plots():
        for code in blocks():
            names = {"__name__": "guide", "train_single_run": quick}
            exec(code, names)
            result = names.get("result", result)
    said = capsys.readouterr().out
    assert f"Training completed: {result['run_name']}\n" in said
    assert f"Total steps: {result['total_steps']}\n" in said
    assert f"Mean reward: {result['mean_reward']:.2f}\n" in said
    assert result["run_name"].endswith("_vec4")
    assert result["total_episodes"] == 4
    runs = sorted((tmp_path / "results" / "runs").iterdir())
    endings = sorted(next((run / "configs").iterdir()).stem.rpartition("_")[2][:3] for run in runs)
    assert len(runs) == 5
    assert endings.count("vec") == 4  # all but the one with a single env
    for run in runs:
        assert [path.name for path in run.glob("models/*") if "_ep" not in path.name]
        rewards = next(run.glob("csvs/*_rewards.csv")).read_text().splitlines()
        assert len(rewards) == 5


@compiled
def test_agents_are_evaluated(saved, monkeypatch):
    install_as_rl_hockey()
    limits = []

    def play(*args, max_steps, **options):
        limits.append(max_steps)  # with it, the game would be compiled once more
        return play_bot(*args, **options)

    monkeypatch.setattr(agent_evaluator, "play_bot", play)
    evaluate_agent = importlib.import_module("rl_hockey.common.evaluation.agent_evaluator").evaluate_agent
    found = evaluate_agent(saved, None, {"type": "SAC"}, 6, num_parallel=3, device="cpu")
    assert set(found) == {
        *("wins", "losses", "draws", "win_rate", "mean_reward", "std_reward", "num_games", "weak_opponent"),
        *("all_rewards", "all_winners"),
    }
    assert found["num_games"] == 6 == found["wins"] + found["losses"] + found["draws"]
    assert found["win_rate"] == found["wins"] / 6
    assert found["all_winners"].count(-1) == found["losses"]
    assert found["mean_reward"] == pytest.approx(np.mean(found["all_rewards"]))
    assert json.loads(json.dumps(found)) == found
    assert limits == [251]  # as in the original, which counts from 0
    with pytest.raises(ArgumentError, match=r"the file of a policy, got 'none\.pt', which does not exist"):
        evaluate_agent("none.pt")
    with pytest.raises(ArgumentError, match="device: expected 'cpu'"):
        evaluate_agent(saved, device="gpu")


@compiled
def test_files_of_policies_play(saved):
    path = next(path for path in Path(saved, "models").glob("*.safetensors"))
    one, other = make_player(str(path)), make_player(str(saved))
    obs = np.random.default_rng(0).normal(size=18).astype(np.float32)
    np.testing.assert_array_equal(one.act(obs), other.act(obs))
    assert one.name == path.stem
    torch.manual_seed(0)
    agent = face.SAC(hidden_dim=[16], device="cpu")
    agent.save(path.with_name("other"))
    assert make_player(str(path.with_name("other.safetensors"))).name == "other"
    agent.close()
    small = face.SAC(4, 2, **SMALL)
    small.save(path.with_name("small"))
    small.close()
    with pytest.raises(
        ArgumentError, match=r"expected a run on shoal/HockeyOne-v0.* got one on an env without a name"
    ):
        make_player(str(path.with_name("small.safetensors")))
