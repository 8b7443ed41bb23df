"""Win rates: many games at once, on both sides, each env with its quota; and the side of an agent."""

import numpy as np
import pytest
import torch

import shoal
from shoal import _core
from shoal.errors import ArgumentError
from shoal.hockey import HockeyOne, Score, change, play_bot, settings
from shoal.learn import SACPolicy

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")

MIRROR = np.array([-1, -1, 1, -1, -1, 1] * 2 + [-1] * 4 + [1, 1])


class Scripted:
    """A policy that chooses by a function of the observations, and notes what it sees."""

    device = torch.device("cpu")

    def __init__(self, choose=None):
        self.seen, self.deterministic = [], set()
        self._choose = choose or (lambda obs: np.zeros((len(obs), 4), np.float32))

    def initial_state(self, rows):
        return None

    def act_batch(self, obs, deterministic=False, state=None, *, generator=None):
        self.seen.append(obs.copy())
        self.deterministic.add(deterministic)
        return self._choose(obs).astype(np.float32)


def score(wins, losses, draws):
    winners = np.array([1] * wins + [-1] * losses + [0] * draws)
    return Score(winners, winners * 10.0, np.full(len(winners), 100))


def noisy_policy():
    torch.manual_seed(1)
    with shoal.make("shoal/HockeyOne-v0", 1) as vec:
        return SACPolicy(vec.observation_layout, vec.single_action_space, hidden=(8,))


# -- counts --------------------------------------------------------------------------------------------


def test_a_score_counts_games():
    found = score(3, 2, 5)
    assert (found.games, found.wins, found.losses, found.draws, found.win_rate) == (10, 3, 2, 5, 0.3)


@pytest.mark.parametrize(
    ("wins", "games", "interval"),
    [
        # (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n), by hand with z2 = 3.8416
        (50, 100, (0.40383, 0.59617)),
        (0, 10, (0.0, 0.27754)),
        (10, 10, (0.72246, 1.0)),
        (8, 10, (0.49016, 0.94333)),
        (1, 1, (0.20654, 1.0)),
    ],
)
def test_the_interval_is_that_of_wilson(wins, games, interval):
    assert score(wins, games - wins, 0).interval == pytest.approx(interval, abs=2e-5)


def test_a_score_in_a_line():
    assert str(score(50, 20, 30)) == "win rate 0.500 (0.404 to 0.596), 50 won, 30 drawn, 20 lost"


# -- games ---------------------------------------------------------------------------------------------


def test_every_env_plays_its_part_of_the_games(monkeypatch):
    """Counting the games that end first would favour short ones."""
    monkeypatch.setattr("shoal.hockey.evaluation.MOST_ENVS", 8)
    ends = []
    receive = shoal.Native.recv

    def recv(vec):
        batch = receive(vec)
        ends.append((batch.terminations | batch.truncations).copy())
        return batch

    monkeypatch.setattr(shoal.Native, "recv", recv)
    found = play_bot(Scripted(), "strong", 21)
    played = np.array(ends).sum(0)
    assert found.games == 21
    assert played[:5].min() >= 3
    assert played[5:].min() >= 2
    # By hand: of the games of each env, the first three or two count.
    lengths = []
    for env, count in enumerate([3] * 5 + [2] * 3):
        at = np.flatnonzero(np.array(ends)[:, env])
        first = np.concatenate([[0], at[:-1] + 1])  # a reset takes a batch too
        lengths += (at - first)[:count].tolist()
    assert sorted(lengths) == sorted(found.steps.tolist())


def test_a_policy_that_does_nothing_hardly_wins():
    weak, strong = (play_bot(Scripted(), bot, 128) for bot in ("weak", "strong"))
    for found in (weak, strong):
        assert found.games == 128
        assert found.losses > 3 * found.wins
        assert ((found.winners == 0) == (found.steps == 251)).all()
        assert (found.rewards[found.winners == -1] < -9).all()
        assert (found.rewards[found.winners == 1] > 0).all()
    nobody = play_bot(Scripted(), "none", 8)
    assert (nobody.draws, set(nobody.steps)) == (8, {251})
    assert nobody.rewards.max() <= 0  # no touch, no goal: only the distance to the puck


def test_the_same_seed_plays_the_same_games():
    policy = noisy_policy()
    one, same, other = (play_bot(policy, "weak", 12, seed=seed, deterministic=False) for seed in (5, 5, 6))
    for part in ("winners", "rewards", "steps"):
        np.testing.assert_array_equal(getattr(one, part), getattr(same, part))
    assert (one.rewards != other.rewards).all()
    # The generators of others are not touched.
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    play_bot(policy, "weak", 2, deterministic=False)
    assert torch.rand(1) == expected


def test_actions_are_the_likeliest_ones_unless_they_are_drawn():
    policy = Scripted()
    play_bot(policy, "none", 2)
    assert policy.deterministic == {True}
    play_bot(policy, "none", 2, deterministic=False)
    assert policy.deterministic == {True, False}


def test_half_of_the_games_are_played_on_each_side_and_half_of_them_with_the_puck():
    policy = Scripted()
    play_bot(policy, "none", 12)
    first = policy.seen[0]
    np.testing.assert_allclose(first[:, :2], [[-3, 0]] * 12, atol=1e-6)  # the own goal is on the left
    np.testing.assert_allclose(first[:, 6:8], [[3, 0]] * 12, atol=1e-6)
    # Sides change with every env, and who has the puck with every second one.
    has_puck = first[:, 12] < 0
    assert has_puck.tolist() == [False, True, True, False] * 3
    assert (np.abs(first[:, 12]) > 0.99).all()


def test_training_games_are_shorter():
    assert play_bot(Scripted(), "none", 3, mode="TRAIN_SHOOTING").steps.tolist() == [81] * 3


def test_training_modes_are_played_on_the_left():
    policy = Scripted()
    found = play_bot(policy, "none", 40, mode="TRAIN_DEFENSE")
    assert (policy.seen[0][:, 12] >= 0).all()  # the puck is on the other half, and flies to the own goal
    assert (policy.seen[1][:, 14] < 0).mean() > 0.9
    assert found.losses > 5


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="games: expected at least 1, got 0"):
        play_bot(Scripted(), "weak", 0)
    with pytest.raises(ArgumentError, match=r"opponent: expected one of none, weak, strong, .*got 'me'"):
        play_bot(Scripted(), "me")
    with pytest.raises(ArgumentError, match="mode: expected one of NORMAL"):
        play_bot(Scripted(), mode="SHOOT")


def test_a_wrong_number_of_steps():
    with pytest.raises(ArgumentError, match="max_steps: expected"):
        play_bot(Scripted(), max_steps=0)


# -- the side of an agent ------------------------------------------------------------------------------


def chase(obs):
    """Run after the puck, and shoot."""
    found = np.zeros((len(obs), 4), np.float32)
    found[:, :2] = (obs[:, 12:14] - obs[:, :2]) * 4
    found[:, 3] = 1
    return found.clip(-1, 1)


def test_both_sides_give_the_mirrored_game():
    kwargs = {**settings(opponent="none"), "side": np.array([0, 1]).tolist(), "start": [1, 1]}
    with shoal.Native(HockeyOne, 2, env_kwargs=kwargs, num_workers=1, infos=True) as vec:
        vec.reset(seed=[4, 4])
        rackets, puck = vec.column_of("rackets"), vec.column_of("puck")
        puck[1] = -puck[0]  # the same game as the other player sees it
        obs, *_rest = vec.step(np.zeros((2, 4), np.float32))
        assert list(vec.get_attr("own_player")) == [0, 1]
        for _ in range(200):
            np.testing.assert_array_equal(obs[0], obs[1])
            obs, rewards, terminations, _truncations, infos = vec.step(chase(obs))
            assert rewards[0] == rewards[1]
            assert terminations[0] == terminations[1]
            np.testing.assert_array_equal(rackets[0], rackets[1][::-1])
            if terminations[0]:
                break
        assert terminations[0]
        assert rewards[0] > 9  # it has scored
        assert infos["winner"].tolist() == [1, 1]
        assert list(vec.get_attr("winner")) == [1, -1]  # as player one sees it
        returns = np.array(vec.get_attr("returns"))
        assert returns[0, 0] == returns[1, 1] > 0


def test_the_other_player_is_on_the_other_side():
    with shoal.make(
        "shoal/HockeyOne-v0", 2, env_kwargs={"side": [0, 1], **settings(opponent="strong")}
    ) as vec:
        vec.reset(seed=0)
        for _ in range(30):
            vec.step(np.zeros((2, 4), np.float32))
        rackets = np.array(vec.get_attr("rackets"))
        assert not rackets[0, 0, 3:].any()  # the agent of the left
        assert not rackets[1, 1, 3:].any()  # the agent of the right
        assert rackets[0, 1, 3:].any()
        assert rackets[1, 0, 3:].any()


def test_a_side_is_drawn_for_every_game():
    with shoal.make("shoal/HockeyOne-v0", 400, env_kwargs=settings(side=None)) as vec:
        vec.reset(seed=0)
        first = np.array(vec.get_attr("own_player"))
        vec.reset(seed=1)
        second = np.array(vec.get_attr("own_player"))
        assert first.mean() == pytest.approx(0.5, abs=0.1)
        assert (first == second).mean() == pytest.approx(0.5, abs=0.1)
        change(vec, side="right", mode="TRAIN_SHOOTING")
        vec.reset(seed=2)
        assert not np.any(vec.get_attr("own_player"))  # camps are for player one
        change(vec, mode="NORMAL")
        vec.reset(seed=2)
        assert np.all(vec.get_attr("own_player"))


def test_returns_are_the_sums_of_the_original_rewards_of_a_game():
    with shoal.make("shoal/HockeyOne-v0", 20, env_kwargs=settings(side=None, opponent="strong")) as vec:
        vec.reset(seed=0)
        own, sums = np.array(vec.get_attr("own_player")), np.zeros(20)
        for _ in range(60):
            _, rewards, terminations, *_ = vec.step(np.zeros((20, 4), np.float32))
            sums += rewards
            if terminations.any():
                break
        found = np.array(vec.get_attr("returns"))
        np.testing.assert_allclose(found[np.arange(20), own], sums)
        assert (sums < 0).all()
        vec.reset(seed=1)
        assert not np.any(vec.get_attr("returns"))


def test_unknown_sides():
    with pytest.raises(ArgumentError, match="side: expected left, right or None, got 'up'"):
        settings(side="up")
    with (
        shoal.make("shoal/Hockey-v0") as vec,
        pytest.raises(
            ArgumentError, match=r"side: expected a vec of HockeyOne\. Hockey has an agent on each side"
        ),
    ):
        change(vec, side="right")
