"""PettingZoo's own games: what goes in keeps its contract, what comes out keeps ours."""

import numpy as np
import pytest
from pettingzoo import make

import shoal
from shoal import _core
from shoal.envs import pettingzoo
from shoal.errors import MissingExtra, UnknownEnv
from shoal.testing.contract import difference

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")

GAMES = {
    "knights-archers-zombies": ("butterfly/knights_archers_zombies-v11", {"max_cycles": 200}),
    "pistonball": ("butterfly/pistonball-v6", {"n_pistons": 5, "max_cycles": 10}),
    "multiwalker": ("sisl/multiwalker-v9", {"max_cycles": 60}),
    "connect-four": ("classic/connect_four-v3", {}),
    "tictactoe": ("classic/tictactoe-v3", {}),
}
TURNS = ("connect-four", "tictactoe")


# Box2D, pygame and PettingZoo's tests warn of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", GAMES)
def test_what_goes_in_passes_pettingzoos_own_tests(name):
    from pettingzoo.test import api_test, parallel_api_test

    full, kwargs = GAMES[name]
    if name in TURNS:
        env = pettingzoo.create(name, **kwargs)
        api_test(env, num_cycles=30)
    else:
        env = pettingzoo.create(name, **kwargs)
        parallel_api_test(env, num_cycles=30)
    assert type(env.unwrapped) is type(make("aec" if name in TURNS else "parallel", full).unwrapped)
    env.close()


def choose(vec, obs, rng):
    """Random actions, legal ones where a game has masks."""
    if "action_mask" not in getattr(vec.single_observation_space, "spaces", {}):
        return vec.action_space.sample()
    return np.array([rng.choice(np.flatnonzero(legal)) if legal.any() else 0 for legal in obs["action_mask"]])


def play(vec, steps):
    """All that a vec returns."""
    rng = np.random.default_rng(0)
    vec.action_space.seed(0)
    obs, infos = vec.reset(seed=3)
    found = [(obs, infos)]
    for _ in range(steps):
        obs, *rest = vec.step(choose(vec, obs, rng))
        found.append((obs, *rest, vec.mask))
    return found


@needs_processes
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("knights-archers-zombies", "NextStep"),
        ("pistonball", "SameStep"),
        ("multiwalker", "NextStep"),
        ("connect-four", "SameStep"),
        ("tictactoe", "NextStep"),
    ],
)
def test_workers_give_the_same(name, mode):
    options = {"env_kwargs": GAMES[name][1], "autoreset_mode": mode, "episode_stats": True}
    results = []
    for backend in ({"backend": "serial"}, {"backend": "multiprocessing", "num_workers": 2}):
        with shoal.make(f"pettingzoo-{name}", 3, **backend, **options) as vec:
            results.append(play(vec, 40))
    for serial, parallel in zip(*results, strict=True):
        without = [
            [
                {key: part for key, part in each.items() if key != "episode"} if type(each) is dict else each
                for each in found
            ]
            for found in (serial, parallel)
        ]  # episodes have a time
        assert difference(*without) is None


def test_knights_archers_zombies_as_pettingzoo_plays_it():
    kwargs = {"max_cycles": 300}
    bare = make("parallel", "butterfly/knights_archers_zombies-v11", **kwargs)
    with shoal.make("pettingzoo-knights-archers-zombies", env_kwargs=kwargs, backend="serial") as vec:
        rows = vec.agents
        assert rows == ("archer_0", "archer_1", "knight_0", "knight_1")
        obs, _ = vec.reset(seed=1)
        expected, _ = bare.reset(seed=1)
        vec.action_space.seed(1)
        deaths = 0
        while bare.agents:
            assert [agent for agent, acts in zip(rows, vec.mask, strict=True) if acts] == bare.agents
            for agent in bare.agents:
                assert np.array_equal(vec.by_agent(obs)[agent][0], expected[agent])
            actions, playing = vec.action_space.sample(), bare.agents[:]
            expected, *told = bare.step({agent: actions[rows.index(agent)] for agent in playing})
            obs, *ours, _ = vec.step(actions)
            for theirs, found in zip(told[:3], ours, strict=True):
                whole = [theirs[agent] if agent in playing else 0 for agent in rows]
                assert found.tolist() == whole
            deaths += sum(told[1].values())
    bare.close()
    assert deaths > 1


@pytest.mark.parametrize("name", TURNS)
def test_in_games_of_turns_who_waits_is_masked_and_hears_of_the_end(name):
    with shoal.make(f"pettingzoo-{name}", 2, backend="serial", autoreset_mode="SameStep") as vec:
        rng, ends = np.random.default_rng(0), 0
        obs, _ = vec.reset(seed=0)
        for _ in range(120):
            mask = vec.mask.reshape(2, 2)
            assert mask.sum(1).tolist() == [1, 1]
            assert obs["action_mask"].reshape(2, 2, -1).any(2)[mask].all()
            obs, rewards, terminations, truncations, _ = vec.step(choose(vec, obs, rng))
            over = terminations.reshape(2, 2)
            assert (over[:, 0] == over[:, 1]).all()
            assert not truncations.any()
            assert (rewards.reshape(2, 2).sum(1) == 0).all()  # what one wins the other loses
            mover = rewards.reshape(2, 2)[mask]
            assert (mover >= 0).all()
            assert not rewards[~terminations].any()
            for env in range(2):
                if not over[env].any():  # the other moves next
                    assert (vec.mask.reshape(2, 2)[env] != mask[env]).all()
            ends += over[:, 0].sum()
        assert ends > 5


def test_a_move_that_is_not_legal_ends_the_game():
    with shoal.make("pettingzoo-tictactoe", backend="serial") as vec:
        vec.reset(seed=0)
        vec.step([4, 0])
        _, rewards, terminations, *_ = vec.step([0, 4])
        assert rewards.tolist() == [0, -1]
        assert terminations.all()


def test_names_and_what_is_missing():
    assert {*GAMES} < set(pettingzoo.names())
    with pytest.raises(UnknownEnv, match="Did you mean 'pettingzoo-tictactoe'"):
        shoal.make("pettingzoo-tic-tac-toe")
    with pytest.raises(MissingExtra, match=r'pettingzoo-hanabi needs .* pip install "pettingzoo\[classic\]"'):
        shoal.make("pettingzoo-hanabi", backend="serial")


def test_frames():
    with shoal.make("pettingzoo-tictactoe", 2, backend="serial", render_mode="rgb_array") as vec:
        vec.reset(seed=0)
        first, second = vec.render()
        assert first.shape == second.shape
        assert first.ndim == 3
