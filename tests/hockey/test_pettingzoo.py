"""The game as a parallel env of PettingZoo."""

import sys
import warnings

import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.errors import ActionError, ActionPartMissing, ArgumentError, EpisodeOver, MissingExtra
from shoal.hockey import HockeyEnv, Mode

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")
pytest.importorskip("pettingzoo")

from shoal.hockey.pettingzoo import parallel_env

ONE, TWO = "player_1", "player_2"
NOTHING = {ONE: np.zeros(4), TWO: np.zeros(4)}


@pytest.fixture
def env():
    made = parallel_env()
    yield made
    made.close()


def test_api():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test imports games by their old names
        from pettingzoo.test import parallel_api_test, parallel_seed_test
    parallel_api_test(parallel_env(), num_cycles=600)
    parallel_seed_test(parallel_env, num_cycles=600)


def test_players_see_and_get_what_they_do_in_the_game(env):
    game = HockeyEnv()
    expected, _ = game.reset(seed=4)
    obs, infos = env.reset(seed=4)
    rng = np.random.default_rng(0)
    assert env.agents == env.possible_agents == [ONE, TWO]
    while env.agents:
        np.testing.assert_array_equal(obs[ONE], expected.astype(np.float32))
        np.testing.assert_array_equal(obs[TWO], game.obs_agent_two().astype(np.float32))
        assert all(obs[agent] in env.observation_space(agent) for agent in env.agents)
        actions = {agent: rng.uniform(-1, 1, 4).astype(np.float32) for agent in env.agents}
        expected, reward, terminated, truncated, info = game.step(np.hstack([actions[ONE], actions[TWO]]))
        obs, rewards, terminations, truncations, infos = env.step(actions)
        info_two = game.get_info_agent_two()
        assert infos == {ONE: info, TWO: info_two}
        assert rewards == {ONE: reward, TWO: game.get_reward_agent_two(info_two)}
        assert terminations == dict.fromkeys((ONE, TWO), terminated)
        assert truncations == dict.fromkeys((ONE, TWO), truncated)
    assert game.done
    assert env.step({}) == ({}, {}, {}, {}, {})


def test_mode_and_options():
    env = parallel_env(mode=Mode.TRAIN_DEFENSE, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.game.max_timesteps == 80
    assert env.render().shape == (480, 600, 3)
    env.reset(options={"mode": "NORMAL", "one_starting": True})
    assert (env.game.max_timesteps, env.game.one_starts) == (250, True)
    env.close()


def test_vecs_of_it():
    with shoal.make(parallel_env, num_envs=2, backend="serial") as vec:
        obs, _ = vec.reset(seed=0)
        assert (vec.num_rows, obs.shape) == (4, (4, 18))
        assert vec.step(np.zeros((4, 4), np.float32))[1].shape == (4,)


def test_wrong_actions_move_nothing(env):
    env.reset(seed=0)
    with pytest.raises(
        ActionPartMissing, match=r"actions: expected one of 'player_2' too, got \['player_1'\]"
    ):
        env.step({ONE: np.zeros(4)})
    with pytest.raises(ActionError, match=r"action: expected 4 numbers, got an array of shape \(3,\)"):
        env.step({ONE: np.zeros(4), TWO: np.zeros(3)})
    with pytest.raises(ActionError, match=r"action: expected 4 numbers from -1 to 1, got \[nan"):
        env.step({ONE: np.full(4, np.nan), TWO: np.zeros(4)})
    assert env.game.time == 0


def test_finished_games_need_a_reset(env):
    env.reset(seed=0)
    while env.agents:
        env.step(NOTHING)
    with pytest.raises(
        EpisodeOver, match=r"actions: expected none, because the game is over: call reset\(\)"
    ):
        env.step(NOTHING)


def test_wrong_mode():
    with pytest.raises(ArgumentError, match=r"mode: expected one of .* got 'HARD'"):
        parallel_env(mode="HARD")


def test_needs_pettingzoo(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "shoal.hockey.pettingzoo")
    with pytest.raises(MissingExtra, match=r'needs PettingZoo .* pip install "shoal\[pettingzoo\]"'):
        import shoal.hockey.pettingzoo  # noqa: F401
