"""The engine beside the original: recorded steps, and the reference trajectories of the specification."""

import numpy as np
import pytest

from shoal import _core
from shoal.hockey import change
from tests.hockey.games import follow, one_game, put, recorded_games

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")


@pytest.fixture(scope="module")
def replayed():
    """For each recorded step: the error, and whether counters, end, winner and rewards agree."""
    errors, agrees, rewards, others, spins = [], [], [], [], []
    with one_game() as vec:
        for game in recorded_games():
            change(vec, mode=int(game["mode"][0]))
            vec.reset(seed=0)
            for t in range(len(game["t"])):
                put(vec, game["before"][t], game["puck_spin"][t])
                if game["mode"][0] == 2 and t == 0:  # the shot was drawn; its velocity is damped in the step
                    vec.column_of("shot")[0] = game["after"][t][14:16] / 0.999
                action = game["action"][t].reshape(2, 4).astype(np.float32)
                obs, reward, terminations, truncations, infos = vec.step(action)
                after, ended = game["after"][t], bool((terminations | truncations)[0])
                errors.append(np.abs(obs[0, :16] - after[:16]).max())
                agrees.append(
                    (
                        (obs[0, 16:] == after[16:]).all(),
                        ended == bool(game["done"][t]),
                        infos["winner"].tolist() == [game["winner"][t], -game["winner"][t]],
                    )
                )
                if errors[-1] < 1e-4:
                    expected = [
                        *(game["reward"][t], game["closeness"][t], game["touch"][t], game["direction"][t]),
                        *(
                            game["reward2"][t],
                            game["closeness2"][t],
                            game["touch2"][t],
                            game["direction2"][t],
                        ),
                    ]
                    found = [
                        value
                        for row in range(2)
                        for value in (
                            reward[row],
                            infos["reward_closeness_to_puck"][row],
                            infos["reward_touch_puck"][row],
                            infos["reward_puck_direction"][row],
                        )
                    ]
                    rewards.append(np.abs(np.subtract(found, expected)).max())
                    others.append(np.abs(obs[1] - game["other"][t]).max())
                    spins.append(abs(vec.column_of("puck")[0, 4] - game["puck_spin_next"][t]))
                if ended:
                    break
    return np.array(errors), np.array(agrees), np.array(rewards), np.array(others), np.array(spins)


def test_recorded_steps(replayed):
    errors, *_ = replayed
    assert len(errors) == 3053
    assert np.median(errors) < 1e-5
    assert (errors > 1e-2).mean() < 0.005


def test_possession_goals_and_winners_are_those_of_the_recordings(replayed):
    _, agrees, *_ = replayed
    assert agrees.all(), agrees.mean(0)


def test_spin_is_that_of_the_recordings(replayed):
    """It is limited, to a quarter turn in a step."""
    *_, spins = replayed
    assert spins.max() < 0.1


def test_rewards_and_both_observations_are_those_of_the_recordings(replayed):
    _, _, rewards, others, _ = replayed
    assert len(rewards) > 3000
    assert rewards.max() < 1e-5
    assert others.max() < 2e-4  # where the first observation is within 1e-4


X, Y, VX, VY = 0, 1, 3, 4  # of the own racket
PUCK_X, PUCK_Y, PUCK_VX, PUCK_VY, HELD = 12, 13, 14, 15, 16


@pytest.fixture
def vec():
    with one_game() as vec:
        vec.reset(seed=0)
        yield vec


def near(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_puck_bounces_off_a_wall_with_spin(vec):
    put(vec, puck=(0, 2.5, 3, 10))
    seen, *_ = follow(vec, 4)
    near(
        seen[:, PUCK_X : PUCK_VY + 1],
        [
            (0.05994, 2.6998, 2.997, 9.99),
            (0.11982, 2.8994, 2.994, 9.98001),
            (0.17964, 3.0988, 2.99101, 9.97003),
            (0.22146, 2.94477, 1.97459, -9.46206),
        ],
    )
    assert vec.column_of("puck")[0, 4] == pytest.approx(9.2333, abs=1e-4)


def test_slow_puck_does_not_bounce(vec):
    put(vec, puck=(0, 3.08, 0.3, 0.8))
    seen, *_ = follow(vec, 3)
    near(seen[2, PUCK_X : PUCK_VY + 1], (0.01637, 3.11189, 0.21934, 0))


def test_fast_puck_is_slowed_down(vec):
    put(vec, racket=(-3, 2), puck=(0, 0, 0, 50))
    seen, *_ = follow(vec, 6)
    near(seen[:, PUCK_VY], (40, 32, 25.6, 20.48, 20.45952, -19.41711), 1e-4)
    near(seen[:, PUCK_Y], (0.8, 1.44, 1.952, 2.3616, 2.77079, 3.05728))


def test_puck_bounces_off_a_side_wall(vec):
    put(vec, [-3, 0, 0, 0, 0, 0, 3, -1, 0, 0, 0, 0, 3, 2, 20, 0, 0, 0])
    seen, *_ = follow(vec, 2)
    near(seen[:, PUCK_X], (3.3996, 3.60651))
    near(seen[1, PUCK_VX], -18.96202, 1e-4)


def test_goal_is_noticed_one_step_later(vec):
    put(vec, [-3, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 3, 0, 20, 0, 0, 0])
    seen, rewards, terminations, infos = follow(vec, 4)
    near(seen[:, PUCK_X], (3.3996, 3.7988, 4.1976, 4.596), 1e-4)
    assert terminations.tolist() == [True, True]
    assert rewards[0] == 10.0
    assert rewards[1] == pytest.approx(-10.0 + infos["reward_closeness_to_puck"][1])
    assert infos["winner"].tolist() == [1, -1]


def test_catch_hold_and_shot(vec):
    put(vec, puck=(-2.2, 0, -8, 0))
    seen, *_ = follow(vec, 23)
    near(seen[3, [PUCK_X, PUCK_VX, X, VX, HELD]], (-2.53308, 7.29792, -3.00543, -0.27172, 15))
    near(seen[4, [PUCK_X, PUCK_VX, X, HELD]], (-2.70141, -0.24502, -3.01583, 14))
    assert seen[3:18, HELD].tolist() == [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 0]
    near(seen[17, [PUCK_X, PUCK_VX]], (-1.9164, 59.86926), 1e-3)
    near(seen[18:23, PUCK_VX], (47.8954, 38.31633, 30.65306, 24.52245, 24.49793), 1e-3)


def test_receding_puck_is_kicked_and_not_caught(vec):
    put(vec, velocity=(8, 0), puck=(-2.5, 0, 0.5, 0))
    seen, *_ = follow(vec, 3, action=(1, 0, 0, 0))
    near(seen[2, [VX, PUCK_X, PUCK_VX, HELD]], (5.82278, -2.18828, 11.05942, 0))


def test_centre_zone_turns_a_racket_back(vec):
    put(vec, racket=(-3.4, 0), puck=(2, 2, 0, 0))
    seen, *_ = follow(vec, 40, action=(1, 0, 0, 0))
    inside = int(np.argmax(seen[:, X] > -0.62))
    near(seen[inside : inside + 5, X], (-0.61463, -0.48781, -0.52678, -0.52462, -0.48543), 1e-4)
    near(seen[inside : inside + 5, VX], (10.568, 6.34078, -1.9486, 0.10832, 1.95956), 1e-3)


def test_left_boundary_stops_a_racket(vec):
    put(vec, racket=(-3.3, 0), puck=(2, 2, 0, 0))
    seen, *_ = follow(vec, 6, action=(-1, 0, 0, 0))
    near(seen[:, X], (-3.33724, -3.408, -3.50892, -3.50892, -3.50892, -3.50892), 1e-4)
    near(seen[:, VX], (-1.862, -3.538, -5.046, 0, 0, 0), 1e-3)


def test_full_throttle_is_a_saw_tooth(vec):
    put(vec, racket=(-3, -2.7), puck=(2, 2, 0, 0))
    seen, *_ = follow(vec, 12, action=(0, 1, 0, 0))
    expected = (1.862, 3.538, 5.046, 6.404, 7.625, 8.725, 9.714, 10.605, 6.363, 7.589, 8.692, 9.685)
    near(seen[:12, VY], expected, 2e-3)
