"""The game as envs: symmetry, modes, opponents, settings, and the contract of every vec."""

from functools import partial

import numpy as np
import pytest

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import ActionError, ArgumentError
from shoal.hockey import Hockey, HockeyOne, Mode, change, settings
from shoal.testing.contract import require_equal
from tests.hockey.games import one_game, put

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")


def held_actions(rng, steps, rows):
    """Actions that are held for some steps, so that rackets reach every part of the table."""
    drawn = rng.uniform(-1.5, 1.5, (steps // 8 + 1, rows, 4)).astype(np.float32)
    return np.repeat(drawn, 8, 0)[:steps]


def trajectory(env="shoal/HockeyOne-v0", num_envs=6, steps=300, **options):
    seen = []
    actions = held_actions(np.random.default_rng(0), steps, num_envs * (2 if "One" not in env else 1))
    with shoal.make(env, num_envs, infos=True, **options) as vec:
        seen.append(vec.reset(seed=3)[0])
        for action in actions:
            over = ~vec.mask.reshape(vec.num_envs, -1).any(1)
            if over.any() and vec.autoreset_mode is AutoresetMode.DISABLED:
                seen.append(vec.reset(options={"reset_mask": over}))
            seen.append(vec.step(action))
    return seen


# -- symmetry ------------------------------------------------------------------------------------------


def test_swapped_sides_give_the_mirrored_game():
    """Bit for bit: what one player sees in a game, the other sees in the mirrored one."""
    rng = np.random.default_rng(1)
    with one_game() as ours, one_game() as mirrored:
        for game in range(20):
            ours.reset(seed=game), mirrored.reset(seed=game)
            x, y = rng.uniform(-3, 0), rng.uniform(-2, 2)
            puck = np.array([x, y, *rng.uniform(-40, 40, 2)])
            own, other = rng.uniform(-1, 1, (2, 6)) * [0.4, 2.4, 1, 5, 5, 5] + [-2.6, 0, 0, 0, 0, 0]
            flip = np.array([-1, -1, 1, -1, -1, 1])
            put(ours, [*own, *(flip * other), *puck, 0, 0])
            put(mirrored, [*other, *(flip * own), *(-puck), 0, 0])
            for action in held_actions(rng, 250, 2):
                first, *moment = ours.step(action)
                second, *mirror = mirrored.step(action[::-1].copy())
                np.testing.assert_array_equal(first, second[::-1])
                np.testing.assert_array_equal(moment[0], mirror[0][::-1])
                if not ours.mask.any():
                    break


def test_second_observation_is_the_view_of_the_other_side():
    with one_game() as vec:
        vec.reset(seed=0)
        for action in held_actions(np.random.default_rng(2), 100, 2):
            (first, second), *_ = vec.step(action)
            expected = [*first[6:12], *first[:6], *first[12:16]] * np.array(
                [-1, -1, 1, -1, -1, 1] * 2 + [-1] * 4
            )
            np.testing.assert_array_equal(second, [*expected, first[17], first[16]])


# -- the contract --------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["shoal/Hockey-v0", "shoal/HockeyOne-v0"])
def test_threads_do_not_change_a_game(env):
    one = trajectory(env, num_envs=14, num_workers=1)
    for threads in (2, 7):
        require_equal(trajectory(env, num_envs=14, num_workers=threads), one, f"{threads} threads")


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("env", ["shoal/Hockey-v0", "shoal/HockeyOne-v0"])
def test_every_backend_plays_the_same_game(env, mode):
    kwargs = settings(mode={"NORMAL": 1, "TRAIN_SHOOTING": 2, "TRAIN_DEFENSE": 2})
    play = partial(trajectory, env, num_envs=3, autoreset_mode=mode, env_kwargs=kwargs)
    require_equal(play(backend="serial"), play(), "the same as Native")


def test_a_snapshot_goes_on_exactly():
    actions = held_actions(np.random.default_rng(4), 200, 5)
    with shoal.make("shoal/HockeyOne-v0", 5) as vec:
        vec.reset(seed=0)
        for action in actions[:100]:
            vec.step(action)
        snapshot = vec.snapshot()
        first = [vec.step(action) for action in actions[100:]]
        vec.restore(snapshot)
        require_equal([vec.step(action) for action in actions[100:]], first, "the same steps")


def test_debugging_plays_the_same_game():
    require_equal(
        trajectory(num_envs=2, steps=60, debug=True), trajectory(num_envs=2, steps=60), "uncompiled"
    )


def test_without_keep_mode_nobody_holds_the_puck():
    """Fewer entries in observations and actions. Uncompiled, because it would be another kernel."""
    with shoal.make("shoal/Hockey-v0", env_kwargs={"keep_mode": False}, debug=True) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs.shape == (2, 16)
        assert vec.single_action_space.shape == (3,)
        put(vec, racket=(-3, 0), puck=(-2.4, 0, -8, 0))
        for _ in range(4):
            obs, *_ = vec.step(np.zeros((2, 3), np.float32))
        assert obs[0, 14] > 5  # it has bounced off
        assert vec.column_of("possession").tolist() == [[0, 0]]


# -- modes, opponents, rewards -------------------------------------------------------------------------


def games(num_envs=400, **chosen):
    """Play one game per env; return the length, the winner and the last infos of each."""
    kwargs = settings(**chosen)
    with shoal.Native(HockeyOne, num_envs, env_kwargs=kwargs, infos=True, autoreset_mode="Disabled") as vec:
        vec.reset(seed=0)
        lengths, winners = np.zeros(num_envs, int), np.zeros(num_envs, int)
        infos, action = {}, np.zeros((num_envs, 4), np.float32)
        playing = np.ones(num_envs, bool)
        while playing.any():
            *_, terminations, truncations, now = vec.step(action)
            lengths += playing
            ended = playing & (terminations | truncations)
            winners[ended] = now["winner"][ended]
            for name in ("mode", "opponent"):
                infos.setdefault(name, np.zeros(num_envs, int))[ended] = now[name][ended]
            playing &= ~ended
            if playing.any() and (over := terminations | truncations).any():
                vec.reset(options={"reset_mask": over})  # the others go on
    return lengths, winners, infos


def test_time_is_up_after_250_steps_or_80():
    """One step later, as in the original, and the episode is truncated."""
    for mode, steps in ((Mode.NORMAL, 251), (Mode.TRAIN_SHOOTING, 81)):
        with shoal.make("shoal/HockeyOne-v0", env_kwargs=settings(mode=mode, opponent="none")) as vec:
            vec.reset(seed=0)
            for step in range(1, steps + 1):
                _, _, terminations, truncations, _ = vec.step(np.zeros((1, 4), np.float32))
                assert truncations[0] == (step == steps)
                assert not terminations[0]


def test_modes_and_opponents_are_drawn_by_their_weights():
    _, _, infos = games(
        2000,
        mode={Mode.NORMAL: 1, Mode.TRAIN_DEFENSE: 3},
        opponent={"none": 1, "strong": 1},
        played_by="weak",
    )
    assert np.bincount(infos["mode"], minlength=3) / 2000 == pytest.approx([0.25, 0, 0.75], abs=0.04)
    assert np.bincount(infos["opponent"], minlength=3) / 2000 == pytest.approx([0.5, 0, 0.5], abs=0.05)


def test_mode_and_opponent_change_while_the_vec_runs():
    with shoal.make("shoal/HockeyOne-v0", 8, infos=True) as vec:
        vec.reset(seed=0)
        vec.set_attr("opponent_weak", [0.0, 1.0] * 4)
        vec.set_attr("opponent_strong", [1.0, 0.0] * 4)
        change(vec, mode="TRAIN_SHOOTING")
        vec.reset()
        *_, infos = vec.step(np.zeros((8, 4), np.float32))
        assert infos["opponent"].tolist() == [2, 1] * 4
        assert infos["mode"].tolist() == [1] * 8


def test_bots_play_as_the_original_ones_do():
    """Wins, draws and losses of 2000 games, and their length, as measured in the original."""
    for first, second, expected in (
        ("strong", "weak", (0.424, 0.437, 0.14)),
        ("weak", "strong", (0.14, 0.437, 0.424)),
    ):
        lengths, winners, _ = games(2000, played_by=first, opponent=second)
        found = [(winners == value).mean() for value in (1, 0, -1)]
        assert found == pytest.approx(expected, abs=0.035)
        assert lengths.mean() == pytest.approx(170, abs=6)


def test_defense_shoots_at_the_goal_of_player_one():
    lengths, winners, _ = games(mode="TRAIN_DEFENSE", opponent="none")
    assert (winners == -1).mean() > 0.3
    assert lengths.max() <= 81


def test_rewards_are_the_weighted_parts():
    weights = {"win": 7.0, "closeness": 2.0, "touch": 3.0, "direction": 5.0}
    kwargs = settings(**weights, mode="TRAIN_SHOOTING", played_by="strong")
    with shoal.Native(HockeyOne, 200, env_kwargs=kwargs, infos=True) as vec:
        vec.reset(seed=0)
        parts = ("winner", "reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")
        touched = 0
        for _ in range(80):
            _, rewards, _, _, infos = vec.step(np.zeros((200, 4), np.float32))
            expected = sum(w * infos[part] for w, part in zip(weights.values(), parts, strict=True))
            np.testing.assert_allclose(rewards, expected, atol=1e-12)
            touched += infos["reward_touch_puck"].sum()
        assert touched > 50


def test_row_of_player_two_is_masked_where_a_bot_plays():
    kwargs = settings(opponent={"agent": 1, "strong": 1})
    with shoal.Native(Hockey, 200, env_kwargs=kwargs, infos=True, autoreset_mode="Disabled") as vec:
        vec.reset(seed=0)
        masked = ~vec.by_agent(vec.mask)["agent_1"]
        assert 70 < masked.sum() < 130
        for _ in range(251):
            _, rewards, terminations, truncations, infos = vec.step(np.zeros((400, 4), np.float32))
            if not vec.mask.reshape(200, 2).any(1).all():
                break
            second = vec.by_agent(rewards)["agent_1"]
            assert not second[masked].any()
        assert (vec.by_agent(infos["opponent"])["agent_0"] == np.where(masked, 2, 3)).all()
        assert not vec.by_agent(terminations | truncations)["agent_1"][masked].any()


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"mode": "NORML"}, r"mode: expected one of NORMAL \(0\), .*got 'NORML'"),
        ({"mode": 7}, "mode: expected one of"),
        ({"opponent": "human"}, "opponent: expected one of none, weak, strong, agent, got 'human'"),
        ({"opponent": {"weak": -1, "strong": 2}}, "opponent: expected weights of 0 or more"),
        ({"mode": {"NORMAL": 0}}, "mode: expected weights of 0 or more, not all 0"),
        ({"played_by": "me"}, "played_by: expected one of agent, weak, strong"),
        ({"one_starts": 2}, "one_starts: expected True, False or None"),
        ({"opponent": ["weak", "strong"]}, "opponent: expected one, or a dict with weights"),
        ({"touch": "much"}, "touch: expected a number, or an array"),
    ],
)
def test_unknown_settings(chosen, message):
    with pytest.raises(ArgumentError, match=message):
        settings(**chosen)


def test_settings_may_differ_between_games():
    share = np.array([0.0, 1.0, 0.0, 1.0])
    kwargs = settings(opponent={"weak": share, "strong": 1 - share}, touch=share)
    with shoal.make("shoal/HockeyOne-v0", 4, env_kwargs=kwargs, infos=True) as vec:
        vec.reset(seed=0)
        assert vec.step(np.zeros((4, 4), np.float32))[-1]["opponent"].tolist() == [2, 1, 2, 1]
        assert list(vec.get_attr("reward_touch")) == share.tolist()
        change(vec, opponent={"weak": 1 - share, "strong": share})
        vec.reset()
        assert vec.step(np.zeros((4, 4), np.float32))[-1]["opponent"].tolist() == [1, 2, 1, 2]


def test_without_any_weight_a_game_is_normal_and_without_opponent():
    weights = {"mode_normal": 0.0, "opponent_weak": 0.0}
    with shoal.make("shoal/HockeyOne-v0", env_kwargs=weights, infos=True) as vec:
        vec.reset(seed=0)
        infos = vec.step(np.zeros((1, 4), np.float32))[-1]
        assert (infos["mode"][0], infos["opponent"][0]) == (0, 0)


def test_settings_of_the_other_env():
    with shoal.make("shoal/HockeyOne-v0") as vec, pytest.raises(ArgumentError, match="has no second agent"):
        change(vec, opponent="agent")
    with (
        shoal.make("shoal/Hockey-v0") as vec,
        pytest.raises(ArgumentError, match="played_by: expected a vec of"),
    ):
        change(vec, played_by="weak")


def test_one_agent_cannot_play_an_agent():
    with pytest.raises(ArgumentError, match=r"opponent_agent: expected values from 0\.0 to 0\.0"):
        shoal.make("shoal/HockeyOne-v0", env_kwargs=settings(opponent="agent"))


def test_bad_actions():
    with shoal.make("shoal/HockeyOne-v0", 2) as vec:
        vec.reset(seed=0)
        with pytest.raises(ActionError, match=r"expected numbers, got \[nan"):
            vec.step(np.full((2, 4), np.nan, np.float32))
        with pytest.raises(ActionError, match="shape"):
            vec.step(np.zeros((2, 3), np.float32))
        vec.step(np.full((2, 4), 9.0, np.float32))  # clipped
