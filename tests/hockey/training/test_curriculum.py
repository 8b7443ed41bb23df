"""Curricula: phases, mixtures and rewards that change with the games, and no transition lost."""

import numpy as np
import pytest

import shoal
from shoal.hockey.training.config import make_config
from shoal.hockey.training.curriculum import WIN, Curriculum
from tests.hockey.training.small import config, phase, table, train

REWARDS = ("win", "closeness", "touch", "direction")


def weights(opponents):
    return [{"type": kind, "weight": weight} for kind, weight in opponents.items()]


class Games:
    """Games of a vec that a curriculum directs, and what it was told of them."""

    def __init__(self, *phases, num_envs=3, reward_scale=1.0, seed=0, **more):
        self.phases = make_config(config(*phases)).phases
        self.vec = shoal.make("shoal/HockeyOne-v0", num_envs, env_kwargs=more, num_workers=1)
        self.results, self.begun, self.given = [], [], []
        self.curriculum = Curriculum(
            self.vec, self.phases, reward_scale, on_game=self.results.append, on_phase=self.begun.append
        )
        self.vec.async_reset(seed=seed)
        self.vec.recv()
        self.returns = np.zeros(num_envs)
        self.action = np.zeros((num_envs, 4), np.float32)

    def step(self):
        """Step all games, and let the curriculum see the batch; returns which games have ended."""
        self.vec.send(self.action)
        batch = self.vec.recv()
        self.returns += batch.rewards
        ended = batch.terminations | batch.truncations
        self.given += self.returns[ended].tolist()
        self.returns[ended] = 0
        self.curriculum(batch)
        return ended

    def of(self, *names):
        """Columns of the envs' states."""
        return [np.array(self.vec.get_attr(name)).tolist() for name in names]

    def rewards(self):
        """Weights of the rewards, [envs, parts]."""
        return np.array([self.vec.get_attr(f"reward_{name}") for name in REWARDS]).T.tolist()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.vec.close()


# -- phases --------------------------------------------------------------------------------------------


def test_phases_change_with_the_number_of_games():
    with Games(
        phase("shoot", 4), phase("defend", 1, "TRAIN_DEFENSE", "basic_weak"), phase("play", 3, "NORMAL")
    ) as games:
        curriculum, seen = games.curriculum, []
        while not curriculum.is_done:
            if games.step().any():
                seen.append((curriculum.games, curriculum.phase, curriculum.games_of_phase))
        # Three games end in each step; after all have ended, the last phase is still the phase.
        assert seen == [(3, 0, 3), (6, 2, 1), (8, 2, 3)]
        assert games.begun == [2]
        assert [(one.number, one.phase) for one in games.results] == [
            *((number, 0) for number in (1, 2, 3, 4)),
            (5, 1),
            *((number, 2) for number in (6, 7, 8)),
        ]


def test_a_phase_begins_in_each_env_with_its_next_game():
    with Games(phase("shoot", 2), phase("play", 9, "NORMAL", "basic_strong"), num_envs=2) as games:
        while not games.step().any():
            pass
        assert (games.curriculum.games, games.begun) == (2, [1])
        assert games.of("mode", "opponent") == [[1, 1], [0, 0]]  # they are over, and not yet begun anew
        games.step()
        assert games.of("mode", "opponent") == [[0, 0], [2, 2]]


def test_games_under_way_keep_mode_opponent_and_rewards():
    shaping = {"N": 0, "K": 0, "TOUCH_FINAL": 4}
    with Games(
        phase("shoot", 1), phase("play", 9, "NORMAL", "basic_weak", reward_shaping=shaping), num_envs=2
    ) as games:
        games.vec.column_of("time")[0] = 60  # so that its game is over 60 steps before the other
        while not (ended := games.step()).any():
            pass
        assert ended.tolist() == [True, False]
        games.step()
        for _ in range(5):
            assert games.rewards() == [[WIN, 2.5, 4, 2], [WIN, 1, 0, 0]]
            assert games.of("mode", "opponent") == [[0, 1], [1, 0]]
            games.step()


def test_only_envs_whose_game_has_ended_get_new_rewards():
    shaping = {"N": 0, "K": 0, "CLOSENESS_FINAL": 0, "TOUCH_FINAL": 0, "DIRECTION_FINAL": 6}
    with Games(
        phase("defend", 1, "TRAIN_DEFENSE"), phase("play", 99, "NORMAL", reward_shaping=shaping), num_envs=8
    ) as games:
        while not (ended := games.step()).any():
            pass
        assert 0 < ended.sum() < 8  # goals against a player that does nothing
        after = games.rewards()
        assert [line == [WIN, 1, 0, 6] for line in after] == ended.tolist()
        assert [line == [WIN, 1, 0, 0] for line in after] == (~ended).tolist()


def test_mixtures_are_drawn_for_every_game():
    mixed = phase(
        "mixed",
        10_000,
        [{"mode": "NORMAL", "weight": 1}, {"mode": "TRAIN_SHOOTING", "weight": 3}],
        "weighted_mixture",
    )
    mixed["opponent"]["opponents"] = weights({"basic_weak": 0.5, "basic_strong": 0.3, "none": 0.2})
    with Games(mixed, num_envs=1000) as games:
        first, second = np.array(games.of("mode", "opponent")), np.full((2, 1000), -1)
        ended = np.zeros(1000, bool)
        for _ in range(253):
            begins = ended
            ended = games.step()
            begun = begins & (second[0] < 0)
            second[:, begun] = np.array(games.of("mode", "opponent"))[:, begun]
    for mode, opponent in (first, second):
        assert np.bincount(mode, minlength=3) / 1000 == pytest.approx([0.25, 0.75, 0], abs=0.05)
        assert np.bincount(opponent, minlength=3) / 1000 == pytest.approx([0.2, 0.5, 0.3], abs=0.05)
    # No env keeps what it has drawn.
    expected = 0.25**2 + 0.75**2, 0.2**2 + 0.5**2 + 0.3**2
    assert (first == second).mean(1) == pytest.approx(expected, abs=0.06)


# -- rewards -------------------------------------------------------------------------------------------


def test_shaping_advances_inside_a_phase():
    shaping = {
        "N": 2,
        "K": 4,
        "CLOSENESS_START": 8,
        "TOUCH_START": 4,
        "CLOSENESS_FINAL": 0,
        "TOUCH_FINAL": 2,
        "DIRECTION_FINAL": 1,
    }
    with Games(
        phase("one", 3), phase("two", 99, reward_shaping=shaping), num_envs=1, reward_scale=0.5
    ) as games:
        seen = {}
        while games.curriculum.games < 12:
            if games.step().any():
                seen[games.curriculum.games] = games.rewards()[0]
        start, final = [WIN / 2, 4.5, 2, 0], [WIN / 2, 0.5, 1, 0.5]
        assert [seen[number] for number in (1, 2, 3, 4, 5)] == [[WIN / 2, 0.5, 0, 0]] * 2 + [start] * 3
        assert seen[7] == [WIN / 2, 2.5, 1.5, 0.25]  # in the middle, after 4 games of the phase
        assert [seen[number] for number in (9, 10, 12)] == [final] * 3


def test_rewards_are_scaled_but_scores_are_those_of_the_original_game():
    shaping = {"N": 0, "K": 0, "CLOSENESS_FINAL": 3, "TOUCH_FINAL": 5, "DIRECTION_FINAL": 7}

    def play(scale, reward_shaping):
        games = Games(
            phase("defend", 40, "TRAIN_DEFENSE", "basic_weak", reward_shaping=reward_shaping),
            num_envs=20,
            reward_scale=scale,
            seed=3,
        )
        with games:
            while not games.curriculum.is_done:
                games.step()
        return games

    raw, scaled, shaped = play(1.0, None), play(0.1, None), play(0.1, shaping)
    scores = [one.score for one in raw.results]
    np.testing.assert_allclose(raw.given[:40], scores)
    np.testing.assert_allclose(scaled.given[:40], np.array(scores) / 10)
    assert [one.score for one in scaled.results] == [one.score for one in shaped.results] == scores
    assert np.abs(np.array(shaped.given[:40]) - np.array(scores) / 10).max() > 0.1
    winners, steps = [one.winner for one in raw.results], [one.steps for one in raw.results]
    assert set(winners) == {1, 0, -1}  # the bot has scored in its own goal too
    assert all((steps[i] == 81) == (winners[i] == 0) for i in range(40))
    assert all(scores[i] < -9 for i in range(40) if winners[i] == -1)
    assert all(scores[i] > 0 for i in range(40) if winners[i] == 1)


def test_scores_of_games_on_the_right_are_those_of_the_agent():
    with Games(phase("play", 30, "NORMAL", "none"), num_envs=30, side=1, played_by=2) as games:
        while not games.curriculum.is_done:
            games.step()
        won = [one for one in games.results if one.winner == 1]
        lost = [one for one in games.results if one.winner == -1]
        assert len(won) > len(lost)  # a strong bot plays for the agent
        assert all(one.score > 0 for one in won)
        np.testing.assert_allclose(games.given[:30], [one.score for one in games.results])


# -- the replay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clears", [False, True])
def test_a_new_phase_clears_the_replay_only_if_it_is_told_to(tmp_path, clears):
    phases = phase("shoot", 4), phase("again", 4, clear_buffer=clears), phase("play", 4, clear_buffer=False)
    learners, seen = [], []

    def look(learner):
        learners.append(learner)
        observe = learner._interaction.on_batch

        def both(batch):
            before = len(learner.replay)
            observe(batch)
            seen.append((before, len(learner.replay)))

        learner.watch(both)

    result = train(tmp_path, config(*phases), num_envs=2, on_learner=look)
    assert result["total_episodes"] == 12
    assert [line["phase"] for line in table(result["run_dir"], "rewards")] == [
        *["shoot"] * 4,
        *["again"] * 4,
        *["play"] * 4,
    ]
    replay, steps = learners[0].replay, result["total_steps"]
    cleared = [before for before, after in seen if after < before]
    assert replay.generation == len(cleared) == clears
    # All transitions are there but those whose outcome is not known yet.
    assert steps - len(replay) - sum(cleared) <= 2 * (1 + clears)
    if clears:
        assert cleared[0] == pytest.approx(steps / 3, abs=90)
