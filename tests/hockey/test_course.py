"""The classes of the course's package: scripts written for the original run on the compiled engine."""

import copy
import math
import pickle
import subprocess
import sys
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
import shoal.hockey as h_env
from shoal import _core
from shoal.errors import ActionError, ActionTypeError, ArgumentError, ArgumentTypeError, Closed, MissingExtra
from shoal.hockey import BasicOpponent, HockeyEnv, HockeyEnv_BasicOpponent, HumanOpponent, Mode
from shoal.hockey.rules import STATE, bot
from shoal.native.records import Record
from shoal.testing.contract import require_equal
from tests.hockey.games import one_game, put, recorded_games

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")

MIRROR = np.array([-1, -1, 1, -1, -1, 1] * 2 + [-1] * 4 + [1, 1])
NOTHING = np.zeros(8)
GOAL = [-3, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 3, 0, 20, 0, 0, 0]  # the puck flies into the goal of player two


@pytest.fixture
def env():
    made = HockeyEnv()
    yield made
    made.close()


def mirrored(obs):
    return obs[[*range(6, 12), *range(6), *range(12, 16), 17, 16]] * MIRROR


def play(env, seed, steps=60):
    """All that two players see of a game with random actions."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)]
    for _ in range(steps):
        seen.append(env.step(rng.uniform(-1, 1, env.action_space.shape)))
        seen.append((env.obs_agent_two(), env.get_info_agent_two()))
        if env.done:
            seen.append(env.reset())
    return seen


def rest(env, steps):
    """The last transition of some steps without any action."""
    for _ in range(steps):
        last = env.step(NOTHING)
    return last


# -- scripts -------------------------------------------------------------------------------------------


def test_a_script_of_the_course():
    env = h_env.HockeyEnv(mode=h_env.Mode.NORMAL)
    one, two = h_env.BasicOpponent(weak=False, seed=1), h_env.BasicOpponent(weak=True, seed=2)
    winners = set()
    for seed in range(8):
        obs, info = env.reset(seed=seed)
        obs_two = env.obs_agent_two()
        for _ in range(env.max_timesteps + 1):
            obs, reward, done, truncated, info = env.step(np.hstack([one.act(obs), two.act(obs_two)]))
            obs_two = env.obs_agent_two()
            info_two = env.get_info_agent_two()
            reward_two = env.get_reward_agent_two(info_two)
            assert type(reward) is type(reward_two) is float
            assert info["winner"] == -info_two["winner"] == env.winner
            if done or truncated:
                break
        assert done or truncated
        assert env.done
        winners.add(env.winner)
        result = 10.0 * env.winner
        assert reward == result + info["reward_closeness_to_puck"] == env.get_reward(info)
        assert reward_two == -result + info_two["reward_closeness_to_puck"]
    assert winners - {0}
    env.close()


def test_a_loop_that_ignores_truncated_ends_one_step_later(env):
    env.reset(seed=0)
    done, steps = False, 0
    while not done:
        _, _, done, _, _ = env.step(NOTHING)
        steps += 1
    assert steps == 252


def test_import_loads_no_extra():
    code = (
        "import sys, shoal.hockey; "
        "print([m for m in ('torch', 'pygame', 'pettingzoo', 'numba', 'starlette') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_constants():
    assert (h_env.FPS, h_env.SCALE, h_env.VIEWPORT_W, h_env.VIEWPORT_H) == (50, 60, 600, 480)
    assert (h_env.W, h_env.H, h_env.CENTER_X, h_env.CENTER_Y, h_env.ZONE) == (10, 8, 5, 4, 0.5)
    assert math.isclose(h_env.MAX_ANGLE, math.pi / 3)
    assert (h_env.MAX_TIME_KEEP_PUCK, h_env.GOAL_SIZE, h_env.MAX_PUCK_SPEED) == (15, 75, 25)
    assert (h_env.FORCEMULTIPLIER, h_env.TORQUEMULTIPLIER, h_env.SHOOTFORCEMULTIPLIER) == (6000, 400, 60)
    assert h_env.RACKETFACTOR == 1.2
    assert h_env.RACKETPOLY[0] == (-10, 20)
    assert len(h_env.RACKETPOLY) == 7


# -- the same game -------------------------------------------------------------------------------------


def test_games_are_those_of_the_vec(env):
    rng = np.random.default_rng(0)
    with one_game() as vec:
        for seed in range(5):
            expected, _ = vec.reset(seed=seed)
            obs, _ = env.reset(seed=seed)
            np.testing.assert_array_equal(obs.astype(np.float32), expected[0])
            while vec.mask.any():
                action = rng.uniform(-1.5, 1.5, 8)
                (first, second), rewards, ends, cuts, infos = vec.step(
                    action.astype(np.float32).reshape(2, 4)
                )
                obs, reward, terminated, truncated, info = env.step(action)
                np.testing.assert_array_equal(obs.astype(np.float32), first)
                np.testing.assert_array_equal(env.obs_agent_two().astype(np.float32), second)
                info_two = env.get_info_agent_two()
                both = reward, env.get_reward_agent_two(info_two)
                np.testing.assert_allclose(both, rewards, rtol=1e-6)
                assert [terminated, truncated] == [ends[0], cuts[0]] == [ends[1], cuts[1]]
                for name in info:
                    assert [info[name], info_two[name]] == infos[name].tolist()


def test_recorded_games(env):
    """From the state before each step of the original to the state after it."""
    errors = []
    for game in recorded_games()[:6]:
        env.reset(mode=int(game["mode"][0]), seed=0)
        rest(env, 1)  # after it, the shot of TRAIN_DEFENSE has been made
        for i in range(1, len(game["t"])):
            env.set_state(game["before"][i], game["puck_spin"][i])
            obs, reward, terminated, truncated, _ = env.step(game["action"][i])
            errors.append(np.abs(obs - game["after"][i]).max())
            if errors[-1] < 1e-4:
                assert reward == pytest.approx(game["reward"][i], abs=1e-5)
                np.testing.assert_allclose(env.obs_agent_two(), game["other"][i], atol=1e-4)
        assert (terminated or truncated) == game["done"][-1]
        assert env.winner == game["winner"][-1]
    assert np.median(errors) < 1e-5


def test_second_player_sees_the_mirrored_table(env):
    env.reset(seed=0)
    rng = np.random.default_rng(1)
    for _ in range(100):
        obs, *_ = env.step(rng.uniform(-1, 1, 8))
        np.testing.assert_array_equal(env.obs_agent_two(), mirrored(obs))


def test_observations_have_double_precision(env):
    obs, _ = env.reset(seed=0)
    obs, *_ = env.step(np.full(8, 0.3))
    assert obs.dtype == np.float64 == env.observation_space.dtype
    assert (obs != obs.astype(np.float32)).any()
    assert obs in env.observation_space


# -- spaces and actions --------------------------------------------------------------------------------


def test_spaces(env):
    assert env.observation_space.shape == (18,)
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    assert (env.num_actions, env.discrete_action_space.n, env.keep_mode) == (4, 8, True)


def test_without_keep_mode():
    env = HockeyEnv(keep_mode=False, debug=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.obs_agent_two().shape == env.observation_space.shape == (16,)
    assert (env.action_space.shape, env.num_actions, env.discrete_action_space.n) == ((6,), 3, 7)
    # What would be a catch is a bounce.
    env.set_state([-3, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, -2.2, 0, -8, 0])
    bot = BasicOpponent(keep_mode=False, seed=0)
    assert bot.act(obs).shape == (3,)
    for _ in range(6):
        obs, _, _, _, info = env.step(np.zeros(6))
        assert info["reward_touch_puck"] == 0
    assert obs[14] > 5
    with pytest.raises(ActionError, match=r"discrete_action: expected 0 to 6, got 7"):
        env.discrete_to_continous_action(7)
    with pytest.raises(ActionError, match=r"action: expected 6 numbers, got an array of shape \(8,\)"):
        env.step(NOTHING)
    env.close()


def test_discrete_actions(env):
    expected = [
        [0, 0, 0, 0],
        [-1, 0, 0, 0],
        [1, 0, 0, 0],
        [0, -1, 0, 0],
        [0, 1, 0, 0],
        [0, 0, -1, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]
    assert [env.discrete_to_continous_action(k) for k in range(8)] == expected
    assert env.discrete_to_continous_action(np.int64(7)) == expected[7]


def test_actions_are_clipped(env):
    env.reset(seed=0)
    clipped, *_ = copy.deepcopy(env).step([1, -1] * 4)
    np.testing.assert_array_equal(env.step([9, -np.inf] * 4)[0], clipped)


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        (np.zeros(4), ActionError, r"action: expected 8 numbers, got an array of shape \(4,\)"),
        (np.zeros((2, 4)), ActionError, r"action: expected 8 numbers, got an array of shape \(2, 4\)"),
        ([0] * 7 + [np.nan], ActionError, r"action: expected 8 numbers from -1 to 1, got \[.*nan\]"),
        (["a"] * 8, ActionTypeError, r"action: expected 8 numbers, got \['a'"),
        (None, ActionError, r"action: expected 8 numbers, got an array of shape \(\)"),
    ],
)
def test_wrong_actions_move_nothing(env, action, error, text):
    before, _ = env.reset(seed=0)
    with pytest.raises(error, match=text):
        env.step(action)
    assert env.time == 0
    np.testing.assert_array_equal(env.obs_agent_two(), mirrored(before))


@pytest.mark.parametrize("wrong", [8, -1, 1.5, "left", None])
def test_wrong_discrete_actions(env, wrong):
    with pytest.raises(ActionError, match=r"discrete_action: expected 0 to 7, got"):
        env.discrete_to_continous_action(wrong)


# -- reset ---------------------------------------------------------------------------------------------


def test_players_take_turns(env):
    assert env.one_starts  # the game that begins with the env
    for expected in (False, True, False):
        obs, _ = env.reset()
        assert env.one_starts is expected
        assert (obs[12] < 0) == expected
    for given in (True, True, False, np.bool_(True)):
        obs, _ = env.reset(one_starting=given)
        assert env.one_starts == given
        assert (obs[12] < 0) == given


def test_seeds_decide_everything():
    first, second, other = HockeyEnv(), HockeyEnv(), HockeyEnv()
    second.reset()  # what was before does not count
    require_equal(play(first, 7, 400), play(second, 7, 400), "the same with one seed")
    assert (first.reset(seed=8)[0] != other.reset(seed=9)[0]).any()
    sides = set()
    for seed in range(12):
        first.reset(seed=seed)
        sides.add(first.one_starts)
    assert sides == {True, False}


def test_seed_is_for_the_next_reset(env):
    expected, _ = env.reset(seed=5)
    later, _ = env.reset()
    assert env.seed(5) == [5]
    np.testing.assert_array_equal(env.reset()[0], expected)
    np.testing.assert_array_equal(env.reset()[0], later)  # not seeded again


def test_games_without_a_seed_differ():
    assert (HockeyEnv().reset()[0] != HockeyEnv().reset()[0]).any()


@pytest.mark.parametrize("mode", [Mode.TRAIN_DEFENSE, "TRAIN_DEFENSE", 2, np.int64(2)])
def test_reset_changes_the_mode(env, mode):
    assert (env.mode, env.max_timesteps) == (Mode.NORMAL, 250)
    obs, _ = env.reset(mode=mode, seed=0)
    assert (env.mode, env.max_timesteps) == (Mode.TRAIN_DEFENSE, 80)
    assert obs[12] > 0
    assert rest(env, 1)[0][14] < -40  # the puck was shot
    env.reset()
    assert env.mode is Mode.TRAIN_DEFENSE
    env.mode = "TRAIN_SHOOTING"
    assert env.max_timesteps == 80
    obs, _ = env.reset(one_starting=False)
    assert obs[12] < 0  # player one shoots, whoever starts


def test_options_do_the_same():
    env = gymnasium.make("shoal/Hockey-v0")
    env.reset(options={"mode": Mode.TRAIN_SHOOTING, "one_starting": True})
    assert env.unwrapped.mode is Mode.TRAIN_SHOOTING
    assert env.unwrapped.one_starts
    env.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "HARD"}, r"mode: expected one of NORMAL \(0\), .* got 'HARD'"),
        ({"mode": 3}, r"mode: expected one of .* got 3"),
        ({"one_starting": "yes"}, r"one_starting: expected True, False or None, got 'yes'"),
        ({"one_starting": 2}, r"one_starting: expected True, False or None, got 2"),
        ({"options": {"side": 1}}, r"options: expected only one_starting and mode, got \['side'\]"),
        ({"seed": -1}, r"seed.*-1"),
    ],
)
def test_wrong_resets_begin_nothing(env, arguments, text):
    env.reset(seed=0)
    rest(env, 3)
    with pytest.raises(ArgumentError, match=text):
        env.reset(**arguments)
    assert (env.time, env.mode) == (3, Mode.NORMAL)


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"mode: expected one of .* got 'HARD'"):
        HockeyEnv(mode="HARD")
    with pytest.raises(
        ArgumentError, match=r"render_mode: expected 'human', 'rgb_array' or None, got 'ascii'"
    ):
        HockeyEnv(render_mode="ascii")
    with pytest.raises(ArgumentError, match=r"keep_mode: expected True or False, got 'no'"):
        HockeyEnv(keep_mode="no")
    with pytest.raises(ArgumentError, match=r"seed: expected an integer of 0 or more, or None, got -1"):
        HockeyEnv().seed(-1)


# -- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "steps"), [(Mode.NORMAL, 251), (Mode.TRAIN_SHOOTING, 81)])
def test_time_outs_are_truncated(mode, steps):
    env = HockeyEnv(mode=mode)
    env.reset(seed=0)
    assert rest(env, steps - 1)[2:4] == (False, False)
    assert not env.done
    _, reward, terminated, truncated, info = rest(env, 1)
    assert (terminated, truncated, env.done, env.winner, env.time) == (False, True, True, 0, steps)
    assert reward == info["reward_closeness_to_puck"]
    env.close()


def test_goals_terminate(env):
    env.reset(seed=0)
    env.set_state(GOAL)
    assert rest(env, 3)[1:4] == (0.0, False, False)
    obs, reward, terminated, truncated, info = rest(env, 1)
    assert (reward, terminated, truncated) == (10.0, True, False)
    assert (info["winner"], env.winner, env.get_info_agent_two()["winner"]) == (1, 1, -1)
    assert env.get_reward_agent_two(env.get_info_agent_two()) == pytest.approx(-10, abs=1)
    assert obs[12] == pytest.approx(4.596, abs=1e-3)


def test_a_finished_game_goes_on(env):
    """As in the original: done stays, and so does the result."""
    env.reset(seed=0)
    env.set_state(GOAL)
    before, *_ = rest(env, 4)
    obs, reward, terminated, truncated, _ = rest(env, 1)
    assert (reward, terminated, truncated, env.done, env.time) == (10.0, True, False, True, 5)
    assert obs[12] > before[12]  # there is nothing behind the goals
    expected = env.reset(seed=1)
    env.set_state(GOAL)
    rest(env, 7)
    require_equal(env.reset(seed=1), expected, "the same game after one that went on")
    twin = HockeyEnv()
    twin.reset(seed=1)
    require_equal(env.reset(), twin.reset(), "the same next game")


def test_possession_ends_with_the_game(env):
    env.reset(seed=0)
    env.set_state([-3, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, -2.7, 0, 0, 0, 9, 0])
    assert env.player1_has_puck == 9
    obs, _ = env.reset()
    assert (env.player1_has_puck, env.player2_has_puck) == (0, 0)
    assert obs[16:].tolist() == [0, 0]


# -- the state -----------------------------------------------------------------------------------------


def test_states_that_are_set_are_observed(env):
    rng = np.random.default_rng(0)
    for _ in range(20):
        env.reset(seed=0)
        wanted = rng.uniform(-1, 1, 18) * ([3, 3, 1, 9, 9, 9] * 2 + [4, 3, 50, 50, 0, 0])
        wanted[16:] = rng.integers(0, 16, 2)
        env.set_state(wanted)
        np.testing.assert_allclose(mirrored(env.obs_agent_two()), wanted, atol=1e-14)
        assert (env.player1_has_puck, env.player2_has_puck) == tuple(wanted[16:])


def test_set_state_is_that_of_the_engine(env):
    wanted = [-3, 0, 0.3, 8, 1, -2, 3, 1, -0.5, 0, 2, 1, -2.4, 0.1, -3, 4, 0, 0]
    with one_game() as vec:
        vec.reset(seed=0)
        put(vec, wanted, puck_spin=5.0)
        env.reset(seed=0)
        env.set_state(wanted, puck_spin=5.0)
        for _ in range(8):
            expected = vec.step(np.zeros((2, 4), np.float32))[0][0]
            np.testing.assert_allclose(env.step(NOTHING)[0], expected, atol=1e-5)


def test_spin_and_time_stay_unless_given(env):
    env.reset(seed=0)
    obs, *_ = rest(env, 5)
    env.set_state(obs, puck_spin=3.0)
    assert env.puck.angularVelocity == 3.0
    env.set_state(GOAL)
    assert (env.puck.angularVelocity, env.time, env.winner) == (3.0, 5, 0)


def test_bodies(env):
    env.reset(seed=0)
    env.set_state([-3, 1, 0.2, 4, 5, 6, 3, -1, -0.3, -4, -5, -6, 1, 2, 7, 8, 0, 0], puck_spin=9.0)
    for body, position, angle, velocity, spin in [
        (env.player1, (2, 5), 0.2, (4, 5), 6),
        (env.player2, (8, 3), -0.3, (-4, -5), -6),
        (env.puck, (6, 6), 0.0, (7, 8), 9),
    ]:
        np.testing.assert_allclose(body.position, position)
        np.testing.assert_allclose(body.linearVelocity, velocity)
        assert (body.angle, body.angularVelocity) == pytest.approx((angle, spin))


@pytest.mark.parametrize(
    ("state", "spin", "error", "text"),
    [
        (GOAL[:16], None, ArgumentError, r"obs: expected 18 numbers, got an array of shape \(16,\)"),
        (
            [np.nan, *GOAL[1:]],
            None,
            ArgumentError,
            r"obs: expected numbers from -1000 to 1000, got \[nan",
        ),
        (
            [np.inf, *GOAL[1:]],
            None,
            ArgumentError,
            r"obs: expected numbers from -1000 to 1000, got \[inf",
        ),
        (
            [*GOAL[:16], 16, 0],
            None,
            ArgumentError,
            r"obs: expected counters from 0 to 15 .* got \[16.0, 0.0\]",
        ),
        (
            [*GOAL[:16], 0, 0.5],
            None,
            ArgumentError,
            r"obs: expected counters from 0 to 15 .* got \[0.0, 0.5\]",
        ),
        ("state", None, ArgumentTypeError, r"obs: expected 18 numbers, got 'state'"),
        (GOAL, np.nan, ArgumentError, r"puck_spin: expected numbers from .* got \[nan\]"),
    ],
)
def test_wrong_states_change_nothing(env, state, spin, error, text):
    before, _ = env.reset(seed=0)
    with pytest.raises(error, match=text):
        env.set_state(state, spin)
    np.testing.assert_array_equal(env.obs_agent_two(), mirrored(before))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("kind", [HockeyEnv, HockeyEnv_BasicOpponent])
def test_copies_go_on_alike(kind, copied):
    env = kind(mode="TRAIN_SHOOTING")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        env.step(rng.uniform(-1, 1, env.action_space.shape))
    twin = copied(env)
    for _ in range(100):  # beyond the end, into the next game
        action = rng.uniform(-1, 1, env.action_space.shape)
        require_equal(env.step(action), twin.step(action), "a copy")
        if env.done:
            require_equal(env.reset(), twin.reset(), "a copy in the next game")
    assert (twin.mode, twin.max_timesteps) == (Mode.TRAIN_SHOOTING, 80)


# -- bots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weak", [True, False])
def test_bot_is_that_of_the_engine(weak):
    rng = np.random.default_rng(0)
    ours, state, chosen = BasicOpponent(weak, seed=1), Record(np.zeros(1, STATE)[0]), np.zeros(4)
    turns = np.random.default_rng(1)
    state.phases[0] = turns.uniform(0.0, np.pi)
    with one_game() as vec:
        for _ in range(300):
            obs = rng.uniform(-1, 1, 18) * ([3, 3, 1, 5, 5, 5] * 2 + [3, 3, 4, 9, 0, 0])
            obs[16:] = rng.integers(0, 16, 2)
            put(vec, obs)
            for name in ("rackets", "puck", "possession"):
                state[name][:] = vec.column_of(name)[0]
            bot(state, 0, turns, not weak, chosen)
            np.testing.assert_allclose(ours.act(obs), chosen, atol=1e-12)


def test_strong_bot_wins_on_either_side():
    env, strong, weak = HockeyEnv(), BasicOpponent(weak=False, seed=0), BasicOpponent(seed=1)
    results = []
    env.reset(seed=0)
    for game in range(40):
        obs, _ = env.reset()
        left, right = (strong, weak) if game % 2 else (weak, strong)
        while not env.done:
            obs, *_ = env.step(np.hstack([left.act(obs), right.act(env.obs_agent_two())]))
        results.append(env.winner if game % 2 else -env.winner)
    assert results.count(1) > results.count(-1)


def test_bots_have_their_own_seed(env):
    obs, _ = env.reset(seed=0)
    np.random.seed(0)  # noqa: NPY002 - the original draws from this generator
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second, other = BasicOpponent(seed=3), BasicOpponent(seed=3), BasicOpponent(seed=4)
    for _ in range(5):
        action = first.act(obs)
        np.testing.assert_array_equal(action, second.act(obs))
        assert (action != other.act(obs)).any()
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_bot_tells_where_it_goes(env, capsys):
    BasicOpponent().act(env.reset(seed=0)[0], verbose=True)
    assert "BasicOpponent: from (" in capsys.readouterr().out


def test_wrong_observations_of_a_bot():
    with pytest.raises(ArgumentError, match=r"obs: expected 18 numbers, got an array of shape \(16,\)"):
        BasicOpponent().act(np.zeros(16))
    with pytest.raises(ArgumentError, match=r"obs: expected numbers from .* got \[nan"):
        BasicOpponent().act(np.full(18, np.nan))
    with pytest.raises(ArgumentError, match=r"seed: expected an integer of 0 or more, or None, got 'x'"):
        BasicOpponent(seed="x")


@pytest.mark.parametrize("weak", [True, False])
def test_env_with_a_bot(weak):
    env, twin = HockeyEnv_BasicOpponent(weak_opponent=weak), HockeyEnv()
    assert env.action_space.shape == (4,)
    assert env.opponent.weak is weak
    require_equal(play(env, 3), play(HockeyEnv_BasicOpponent(weak_opponent=weak), 3), "the same seed")
    env.reset(seed=1)
    twin.reset(seed=1)
    bot = BasicOpponent(weak, seed=1)
    for _ in range(30):
        both = np.hstack([np.ones(4), bot.act(twin.obs_agent_two())])
        require_equal(env.step(np.ones(4)), twin.step(both), "two players, of which one is the bot")
    with pytest.raises(ActionError, match=r"action: expected 4 numbers, got an array of shape \(8,\)"):
        env.step(NOTHING)


# -- Gymnasium -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*(infinity|`seed` function|having a spec).*:UserWarning")
@pytest.mark.parametrize("kind", [HockeyEnv, HockeyEnv_BasicOpponent])
def test_gymnasium_accepts_it(kind):
    env = kind()
    check_env(env)
    env.close()


def test_gymnasium_makes_the_game():
    env = gymnasium.make("shoal/Hockey-v0", mode="TRAIN_SHOOTING", render_mode="rgb_array")
    assert type(env.unwrapped) is HockeyEnv
    env.reset(seed=0)
    obs, _, _, _, info = env.step(env.action_space.sample())
    assert obs in env.observation_space
    assert set(info) == {
        *("winner", "reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction"),
    }
    assert env.render().shape == (480, 600, 3)
    env.close()


def test_gymnasium_makes_one_player_with_infos():
    env = gymnasium.make("shoal/HockeyOne-v0")
    env.reset(seed=0)
    obs, _, _, _, info = env.step(np.zeros(4, np.float32))
    assert (obs.shape, obs.dtype) == ((18,), np.float32)
    assert {"winner", "reward_touch_puck", "mode", "opponent"} <= set(info)
    env.close()
    quiet = gymnasium.make("shoal/HockeyOne-v0", infos=False)
    quiet.reset(seed=0)
    assert quiet.step(np.zeros(4, np.float32))[4] == {}
    quiet.close()


def test_shoal_makes_a_vec_of_two_agents():
    with shoal.make("shoal/Hockey-v0", num_envs=3) as vec:
        assert (type(vec).__name__, vec.num_rows, vec.agents_per_env) == ("Native", 6, 2)


def test_vecs_of_it():
    with shoal.make(HockeyEnv_BasicOpponent, num_envs=2, backend="serial") as vec:
        obs, _ = vec.reset(seed=0)
        assert obs.shape == (2, 18)
        assert vec.step(np.zeros((2, 4), np.float32))[1].shape == (2,)


# -- to look at ----------------------------------------------------------------------------------------


@pytest.fixture
def no_screen(monkeypatch):
    """A pygame that draws into memory."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return pytest.importorskip("pygame")


def test_frames(env):
    env.reset(seed=0)
    frame = env.render(mode="rgb_array")
    assert (frame.shape, frame.dtype) == ((480, 600, 3), np.uint8)
    rest_frame = env.render("rgb_array")
    np.testing.assert_array_equal(frame, rest_frame)
    env.step([1, 1, 0, 0, 1, 1, 0, 0])
    assert (env.render("rgb_array") != frame).any()
    with pytest.raises(ArgumentError, match=r"mode: expected 'human' or 'rgb_array', got 'ascii'"):
        env.render("ascii")


def test_window(env, no_screen):
    env.reset(seed=0)
    assert env.render() is None  # a window is what the original opens
    env.step([1] * 8)
    env.render("human")
    shown = no_screen.surfarray.array3d(no_screen.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, env.render("rgb_array"))
    env.close()
    assert not no_screen.display.get_init()


def test_human_mode_shows_every_step(no_screen):
    env = HockeyEnv(render_mode="human")
    env.reset(seed=0)
    for _ in range(2):
        env.step([1] * 8)
        shown = no_screen.surfarray.array3d(no_screen.display.get_surface()).swapaxes(0, 1)
        np.testing.assert_array_equal(shown, env.render("rgb_array"))
    env.close()


@pytest.mark.parametrize(("player", "sign"), [(1, 1), (2, -1)])
def test_a_person_plays(env, no_screen, player, sign):
    person = HumanOpponent(env, player)
    pressed = set()

    class Keys:
        def __getitem__(self, key):
            return key in pressed

    with patch.object(no_screen.key, "get_pressed", Keys):
        assert person.act(None).tolist() == [0, 0, 0, 0]
        pressed |= {no_screen.K_RIGHT, no_screen.K_UP, no_screen.K_s}
        assert person.act(None).tolist() == [sign, sign, 1, 0]
        pressed.clear()
        pressed |= {no_screen.K_LEFT, no_screen.K_DOWN, no_screen.K_w, no_screen.K_SPACE}
        assert person.act(None).tolist() == [-sign, -sign, -1, 1]
        pressed |= {no_screen.K_RIGHT}
        assert person.act(None).tolist() == [0, -sign, -1, 1]


def test_a_person_is_player_one_or_two(env):
    with pytest.raises(ArgumentError, match="player: expected 1 or 2, got 3"):
        HumanOpponent(env, 3)


def test_windows_need_pygame(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    text = r'a window and its keyboard need pygame .* pip install "shoal\[hockey\]"'
    with pytest.raises(MissingExtra, match=text):
        env.render()
    with pytest.raises(MissingExtra, match=text):
        HumanOpponent(env)
    assert env.render("rgb_array").shape == (480, 600, 3)


def test_closed_envs_do_not_step():
    env = HockeyEnv()
    env.close()
    env.close()
    with pytest.raises(Closed, match="closed"):
        env.step(NOTHING)
