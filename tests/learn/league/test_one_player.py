"""Two players as one: a game of PettingZoo, and hockey."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import _core
from shoal.errors import ArgumentError
from shoal.learn import DQN, DQNConfig
from shoal.learn.league import OnePlayer
from shoal.testing import SampleEnv

pytest.importorskip("pettingzoo")
compiled = pytest.mark.skipif(_core.NAME != "native", reason="compiled envs need the compiled core")
ROCK, PAPER, SCISSORS = range(3)


def two_players(num_envs=4):
    from pettingzoo.classic.rps.rps import parallel_env

    return shoal.Serial(lambda: parallel_env(max_cycles=5), num_envs, flat=True, copy=False)


def always(action, seen=None):
    def play(rows):
        if seen is not None:
            seen.append(len(rows))
        return np.full(len(rows), action)

    return play


def play(games, steps, action=PAPER):
    with shoal.Serial(lambda: games, flat=True) as vec:
        vec.reset(seed=0)
        return [vec.step(np.full(vec.num_envs, action)) for _ in range(steps)]


def test_the_other_side_is_played():
    results = []
    games = OnePlayer(
        two_players(),
        choose=lambda env: "rock" if env < 2 else "scissors",
        player_of={"rock": always(ROCK), "scissors": always(SCISSORS)}.get,
        on_game=lambda env, key, balance: results.append((env, key, balance)),
    )
    seen = play(games, 7)
    assert seen[0][1].tolist() == [1, 1, -1, -1]  # paper beats rock, and loses against scissors
    assert results == [(0, "rock", 10), (1, "rock", 10), (2, "scissors", -10), (3, "scissors", -10)]
    ended = [
        step for step, (_, _, terminated, truncated, _) in enumerate(seen) if (terminated | truncated).any()
    ]
    assert ended == [4]
    assert seen[5][1].tolist() == [0, 0, 0, 0]  # the autoreset


def test_each_player_is_asked_once_for_all_of_its_games():
    asked = {"rock": [], "paper": []}
    games = OnePlayer(
        two_players(6),
        choose=lambda env: "paper" if env == 5 else "rock",
        player_of=lambda key: always(ROCK if key == "rock" else PAPER, asked[key]),
    )
    play(games, 3)
    assert asked == {"rock": [5, 5, 5], "paper": [1, 1, 1]}


def test_a_new_opponent_is_chosen_for_each_game():
    order = iter(range(1000))
    games = OnePlayer(two_players(2), choose=lambda env: str(next(order)), player_of=lambda key: always(ROCK))
    play(games, 7)
    assert games.keys == ["2", "3"]


@pytest.mark.parametrize("side", [0, 1, None])
def test_either_side_can_be_played(side):
    engine = two_players(8)
    games = OnePlayer(engine, lambda env: "rock", lambda key: always(ROCK), side=side, seed=1)
    sent = []
    step = engine.step
    engine.step = lambda actions: (sent.append(np.array(actions).reshape(8, 2)), step(actions))[1]
    seen = play(games, 1)
    engine.step = step
    assert (seen[0][1] == 1).all()
    paper = sent[0].argmax(1)
    assert paper.tolist() == games.side.tolist()
    assert set(paper.tolist()) == ({0, 1} if side is None else {side})


def test_a_learner_learns_to_beat_its_opponent():
    config = DQNConfig(
        total_steps=1200,
        warmup_steps=100,
        updates_per_step=0.25,
        hidden=(16,),
        batch_size=32,
        learning_rate=3e-3,
    )
    games = OnePlayer(two_players(8), lambda env: "scissors", lambda key: always(SCISSORS), side=None)
    with shoal.Serial(lambda: games, flat=True, copy=False) as vec, DQN(vec, config) as dqn:
        dqn.train()
        obs = np.zeros((1, *vec.single_observation_space.shape), vec.single_observation_space.dtype)
        assert dqn.policy.act_batch(obs, deterministic=True).tolist() == [ROCK]
        assert dqn.episodes.mean_return(20) > 3  # of at most 5; chance is 0


@compiled
def test_a_snapshot_goes_on_with_the_same_games():
    """Hockey's, because PettingZoo's games cannot be in a snapshot."""

    def made():
        engine = shoal.make("shoal/Hockey-v0", 4, flat=True, copy=False)
        follow = lambda rows: (rows[:, 12:16] - rows[:, :4]).clip(-1, 1)  # noqa: E731
        return shoal.Serial(lambda: OnePlayer(engine, str, lambda key: follow, side=None), flat=True)

    actions = np.random.default_rng(0).uniform(-1, 1, (400, 4, 4)).astype(np.float32)
    with made() as vec, made() as other:
        vec.reset(seed=0)
        for action in actions[:300]:
            vec.step(action)
        state = vec.snapshot()
        other.restore(state)
        for action in actions[300:]:
            for one, same in zip(vec.step(action)[:4], other.step(action)[:4], strict=True):
                np.testing.assert_array_equal(one, same)


def test_other_vecs_are_refused():
    single = shoal.Serial(lambda: SampleEnv(Box(-1, 1, (2,)), Discrete(2)), 2)
    with single, pytest.raises(ArgumentError, match="vec: expected one with two agents, got 1"):
        OnePlayer(single, str, str)
    pair = two_players()
    with pair, pytest.raises(ArgumentError, match="side: expected 0, 1 or None, got 2"):
        OnePlayer(pair, str, str, side=2)


@compiled
def test_games_of_the_engine_need_no_player():
    engine = shoal.make("shoal/Hockey-v0", 3, flat=True, copy=False)
    engine.set_attr("opponent_agent", [0.0] * 3)
    engine.set_attr("opponent_strong", [1.0] * 3)
    games = OnePlayer(engine, lambda env: "strong", lambda key: None)
    with shoal.Serial(lambda: games, flat=True) as vec:
        first, _ = vec.reset(seed=0)
        for _ in range(30):
            obs, *_ = vec.step(np.zeros((3, 4), np.float32))
    assert (obs[:, :2] == first[:, :2]).all()  # the learner rests
    assert (obs[:, 6:8] != first[:, 6:8]).any()  # the bot plays
