"""Breakout: its rules one by one, and how its games run in a vec.

A kernel takes seconds to compile. So what is compiled here has the default constants; rules one by one, frame
by frame, run uncompiled, and that both give the same is a test of its own.
"""

import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.envs.breakout import (
    ABOVE,
    BALL,
    BELOW,
    BRICK_HEIGHT,
    BRICK_WIDTH,
    FASTER,
    FLATTEST,
    LEVELS,
    NUMBERS,
    PADDLE,
    PADDLE_DEPTH,
    PADDLE_SPEED,
    SLOWEST,
)
from shoal.errors import ArgumentError

needs_core = pytest.mark.skipif(_core.NAME != "native", reason="without the core, nothing is compiled")

STAY, LEFT, RIGHT = range(3)
ROWS, COLUMNS, LIVES, WALLS, STEPS = 4, 6, 2, 2, 150
SMALL = {
    "rows": ROWS,
    "columns": COLUMNS,
    "lives": LIVES,
    "walls": WALLS,
    "frame_skip": 1,
    "max_episode_steps": STEPS,
}
BRICKS, WIDTH = ROWS * COLUMNS, BRICK_WIDTH * COLUMNS
BOTTOM = ABOVE + BRICK_HEIGHT * ROWS  # of the wall
GROUND = BOTTOM + BELOW
TOP = GROUND - PADDLE_DEPTH  # of the paddle
FIELDS = (
    *("paddle", "half", "x", "y", "vx", "vy", "level", "hits", "lives_left", "score", "walls_cleared"),
    *("bricks_left", "bricks"),
)


def compiled(num_envs, **options):
    """Of games as they are by default."""
    return shoal.make("shoal/Breakout-v0", num_envs=num_envs, **options)


def small(num_envs=1, **options):
    """Of small games, frame by frame."""
    return shoal.make("shoal/Breakout-v0", num_envs=num_envs, env_kwargs=SMALL, debug=True, **options)


def following(obs):
    """Actions that seldom lose the ball."""
    distance = obs[:, 2] - obs[:, 0]
    return np.where(distance > 0.03, RIGHT, np.where(distance < -0.03, LEFT, STAY))


class Game:
    """A single game whose state can be set and read."""

    def __init__(self, **fields):
        self.vec = small()
        self.vec.reset(seed=0)
        self.set(paddle=WIDTH / 2, x=WIDTH / 2, y=100.0, vx=0.0, vy=1.0)
        self.set(**fields)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.vec.close()

    def set(self, **fields):
        for name, value in fields.items():
            self.vec.set_attr(name, [value])

    def leave(self, *bricks):
        """All others are gone."""
        standing = np.zeros(BRICKS, np.uint8)
        standing[list(bricks)] = 1
        self.set(bricks=standing, bricks_left=len(bricks))

    def step(self, action=STAY):
        obs, rewards, terminations, truncations, _ = self.vec.step(np.array([action]))
        self.obs = obs[0]
        self.reward, self.terminated, self.truncated = rewards[0], terminations[0], truncations[0]

    def __getattr__(self, name):
        return self.vec.get_attr(name)[0]

    @property
    def speed(self):
        return np.hypot(self.vx, self.vy)


# -- the paddle and the ball ---------------------------------------------------------------------------


def test_the_paddle_goes_where_it_is_sent_and_stops_at_the_walls():
    with Game(y=60.0, vy=0.0) as game:
        for action, expected in ((RIGHT, WIDTH / 2 + PADDLE_SPEED), (LEFT, WIDTH / 2), (STAY, WIDTH / 2)):
            game.step(action)
            assert game.paddle == expected
        for action, end in ((LEFT, PADDLE), (RIGHT, WIDTH - PADDLE)):
            for _ in range(30):
                game.step(action)
            assert game.paddle == end


def test_the_ball_flies_straight():
    with Game(x=10.0, y=60.0, vx=0.75, vy=1.0) as game:
        for frame in range(1, 20):
            game.step()
            assert (game.x, game.y) == (10 + 0.75 * frame, 60 + frame)
        assert game.reward == 0


def test_side_walls_throw_it_back():
    with Game(x=BALL + 0.25, vx=-1.0) as game:
        game.step()
        assert (game.x, game.vx, game.vy) == (BALL + 0.75, 1, 1)
        game.set(x=WIDTH - BALL - 0.25)
        game.step()
        assert (game.x, game.vx, game.vy) == (WIDTH - BALL - 0.75, -1, 1)


def test_the_ceiling_throws_it_back_and_the_paddle_shrinks():
    with Game(y=BALL + 0.25, vy=-1.0) as game:
        assert game.half == PADDLE
        game.step()
        assert (game.y, game.vy, game.half) == (BALL + 0.75, 1, PADDLE / 2)
        assert game.obs[1] == 0.5


def test_a_ball_that_just_touches_the_ceiling_flies_on():
    with Game(y=BALL + 1.0, vy=-1.0) as game:
        game.step()
        assert (game.y, game.vy, game.half) == (BALL, -1, PADDLE)


@pytest.mark.parametrize("offset", [-1.0, -0.5, 0.0, 0.25, 1.0])
def test_where_it_hits_the_paddle_is_where_it_goes(offset):
    reach = PADDLE + BALL
    with Game(x=WIDTH / 2 + offset * reach, y=TOP - BALL - 0.5) as game:
        game.step()
        assert game.y == TOP - BALL
        assert game.vx == pytest.approx(SLOWEST * FLATTEST * offset)
        assert game.vy < 0
        assert game.speed == pytest.approx(SLOWEST)
        assert game.hits == 1
        game.step()
        assert game.y < TOP - BALL


def test_a_ball_beside_the_paddle_passes():
    with Game(x=WIDTH / 2 + PADDLE + BALL + 0.1, y=TOP - BALL - 0.5) as game:
        game.step()
        assert (game.vy, game.hits) == (1, 0)
        game.step(RIGHT)  # too late: the ball is beside it, not above
        assert (game.vy, game.hits) == (1, 0)


def test_the_paddle_returns_a_ball_that_goes_below_its_top():
    with Game(y=TOP - BALL - 1.0) as game:
        game.step()
        assert (game.y, game.vy, game.hits) == (TOP - BALL, 1, 0)  # it touches the top
        game.step()
        assert (game.y, game.hits) == (TOP - BALL, 1)
        assert game.vy < 0


def test_the_ball_can_be_put_anywhere_in_the_field_and_nowhere_else():
    with Game() as game:
        for name, end in {"x": WIDTH, "y": GROUND}.items():
            for inside in (0.0, end):
                game.set(**{name: inside})
                assert getattr(game, name) == inside
            for outside in (-0.25, end + 0.25):
                with pytest.raises(ArgumentError, match=f"{name}: expected values from 0.0 to {end}, got"):
                    game.set(**{name: outside})


@pytest.mark.parametrize(
    ("hits", "before", "level"),
    [
        (0, 0, 0),
        (2, 0, 0),
        (3, 0, 1),
        (10, 1, 1),
        (11, 1, 2),
        (40, 2, 2),
        (3, LEVELS, LEVELS),
        (11, LEVELS, LEVELS),
    ],
)
def test_hits_make_it_faster(hits, before, level):
    with Game(y=TOP - BALL - 0.5, hits=hits, level=before) as game:
        game.step()
        assert game.level == level
        assert game.speed == pytest.approx(SLOWEST + FASTER * level)


# -- bricks --------------------------------------------------------------------------------------------


def test_a_brick_breaks_once_from_below():
    lowest = (ROWS - 1) * COLUMNS + 2
    with Game(x=2.5 * BRICK_WIDTH, y=BOTTOM + BALL + 0.5, vy=-1.0) as game:
        game.step()
        assert game.reward == game.score == 1
        assert np.flatnonzero(game.bricks == 0).tolist() == [lowest]
        assert np.flatnonzero(game.obs[NUMBERS:] == 0).tolist() == [lowest]
        assert game.bricks_left == BRICKS - 1
        assert (game.vx, game.vy, game.level) == (0, 1, 0)
        game.step()
        assert (game.reward, game.score, game.vy) == (0, 1, 1)
        game.set(y=BOTTOM + BALL + 0.5, vy=-1.0)  # again: now it flies into the gap
        game.step()
        assert (game.reward, game.vy, game.y) == (0, -1, BOTTOM + BALL - 0.5)


def test_a_brick_in_the_upper_half_makes_it_as_fast_as_can_be():
    with Game(x=20.0, y=ABOVE - BALL - 0.5, vx=0.5, vy=1.0) as game:
        game.step()
        assert game.reward == 4
        assert game.level == LEVELS
        ratio = (SLOWEST + FASTER * LEVELS) / SLOWEST
        assert (game.vx, game.vy) == (0.5 * ratio, -ratio)
        game.set(y=ABOVE - BALL - 0.5, vx=0.0, vy=1.0, x=36.0)
        game.step()
        assert (game.reward, game.vy) == (4, -1)


@pytest.mark.parametrize(("row", "points", "level"), [(0, 4, LEVELS), (1, 4, LEVELS), (2, 1, 0), (3, 1, 0)])
def test_rows_differ(row, points, level):
    with Game() as game:
        game.leave(row * COLUMNS, BRICKS - 1)
        game.set(x=BRICK_WIDTH / 2, y=ABOVE + (row + 1) * BRICK_HEIGHT + BALL + 0.5, vy=-1.0)
        game.step()
        assert (game.reward, game.level) == (points, level)


@pytest.mark.parametrize("velocity", [1.0, -1.0])
def test_a_brick_that_is_hit_from_its_side_throws_the_ball_back_to_it(velocity):
    row, column = ROWS - 1, 2
    with Game() as game:
        game.leave(row * COLUMNS + column, 0)
        edge = (column + (velocity < 0)) * BRICK_WIDTH
        game.set(x=edge - velocity * (BALL + 0.5), y=BOTTOM - 3, vx=velocity, vy=0.0)
        game.step()
        assert game.reward == 1
        assert game.bricks_left == 1
        assert (game.vx, game.vy) == (-velocity, 0)


@needs_core
def test_points_are_those_of_the_classic():
    """Each brick of its wall, alone in a game of its own."""
    rows, columns = 6, 18
    with compiled(rows * columns) as vec:
        vec.reset(seed=0)
        row, column = np.divmod(np.arange(rows * columns), columns)
        vec.set_attr("bricks", list(np.eye(rows * columns, dtype=np.uint8)))
        vec.set_attr("bricks_left", [2] * rows * columns)
        vec.set_attr("x", list((column + 0.5) * BRICK_WIDTH))
        vec.set_attr("y", list(ABOVE + (row + 1) * BRICK_HEIGHT + BALL + 0.5))
        vec.set_attr("vx", [0.0] * rows * columns)
        vec.set_attr("vy", [-1.0] * rows * columns)
        _, rewards, *_ = vec.step(np.zeros(rows * columns, np.int64))
        assert rewards.reshape(rows, columns)[:, 0].tolist() == [7, 7, 4, 4, 1, 1]
        assert rewards.sum() == 432
        assert not np.any(vec.get_attr("bricks"))


# -- lives and walls -----------------------------------------------------------------------------------


def test_a_ball_that_passes_costs_a_life():
    lost = {"x": 2.0, "y": GROUND - BALL - 0.5, "vx": 0.0, "vy": 2.0}
    with Game(**lost, hits=20, level=2, half=PADDLE / 2) as game:
        game.step()
        assert (game.lives_left, game.reward, game.terminated) == (LIVES - 1, 0, False)
        assert game.obs[6] == pytest.approx((LIVES - 1) / LIVES)
        # The next ball.
        assert BOTTOM < game.y < TOP
        assert WIDTH / 4 <= game.x <= WIDTH * 3 / 4
        assert game.vy > 0
        assert game.speed == pytest.approx(SLOWEST)
        assert (game.hits, game.level, game.half) == (0, 0, PADDLE)
        game.set(**lost)
        game.step()
        assert (game.lives_left, game.terminated, game.truncated) == (0, True, False)
        assert game.obs in game.vec.single_observation_space
        game.step()  # resets
        assert (game.lives_left, game.score, game.bricks_left) == (LIVES, 0, BRICKS)


@pytest.mark.parametrize(("above", "lives"), [(1.25, LIVES), (1.0, LIVES - 1), (0.5, LIVES - 1)])
def test_a_ball_is_lost_as_soon_as_it_touches_the_ground(above, lives):
    with Game(x=2.0, y=GROUND - BALL - above) as game:
        game.step()
        assert game.lives_left == lives


def test_the_last_ball_is_seen_lying_on_the_ground():
    with Game(x=2.0, y=GROUND - BALL - 0.5, lives_left=1) as game:
        game.step()
        assert game.terminated
        assert game.y == GROUND - BALL
        assert game.obs[3] == np.float32((GROUND - BALL) / GROUND)


@pytest.mark.parametrize("how", ["paddle", "lost"])
def test_the_next_wall_stands_when_the_ball_is_back(how):
    with Game() as game:
        game.leave((ROWS - 1) * COLUMNS)
        game.set(x=BRICK_WIDTH / 2, y=BOTTOM + BALL + 0.5, vy=-1.0)
        game.step()
        assert (game.reward, game.bricks_left, game.walls_cleared, game.terminated) == (1, 0, 1, False)
        assert game.obs[7] == pytest.approx(1 / WALLS)
        game.step()
        assert not game.bricks.any()
        if how == "paddle":
            game.set(x=game.paddle, y=TOP - BALL - 0.5)
        else:
            game.set(y=GROUND - BALL - 0.5)
        game.step()
        assert game.bricks.all()
        assert (game.bricks_left, game.walls_cleared) == (BRICKS, 1)


def test_the_last_wall_ends_the_game():
    with Game(walls_cleared=WALLS - 1) as game:
        game.leave((ROWS - 1) * COLUMNS)
        game.set(x=BRICK_WIDTH / 2, y=BOTTOM + BALL + 0.5, vy=-1.0)
        game.step()
        assert (game.reward, game.terminated, game.walls_cleared) == (1, True, WALLS)
        assert game.obs[7] == 1
        assert game.lives_left == LIVES


def test_a_long_game_is_cut_off():
    with small(3) as vec:
        vec.reset(seed=0)
        for step in range(1, STEPS + 1):
            vec.set_attr("lives_left", [LIVES] * 3)  # whatever happens
            _, _, terminations, truncations, _ = vec.step(np.zeros(3, np.int64))
            assert not terminations.any()
            assert (truncations == (step == STEPS)).all()


# -- in a vec ------------------------------------------------------------------------------------------


def test_a_step_is_as_many_frames_as_are_skipped():
    once, four = ({**SMALL, "frame_skip": frames} for frames in (1, 4))
    with (
        shoal.make("shoal/Breakout-v0", num_envs=2, env_kwargs=once, debug=True) as slow,
        shoal.make("shoal/Breakout-v0", num_envs=2, env_kwargs=four, debug=True) as quick,
    ):
        slow.reset(seed=0)
        quick.reset(seed=0)
        for action in ([STAY, LEFT], [RIGHT, LEFT], [RIGHT, RIGHT], [LEFT, STAY]):
            expected = sum(slow.step(np.array(action))[1] for _ in range(4))
            assert np.array_equal(quick.step(np.array(action))[1], expected)
            for name in FIELDS:
                assert np.array_equal(slow.get_attr(name), quick.get_attr(name))


@needs_core
def test_observations_are_the_state_and_in_their_space():
    with compiled(32) as vec:
        obs, _ = vec.reset(seed=0)
        vec.action_space.seed(0)
        scores, broken = np.zeros(32), 0
        for _ in range(400):
            state = {name: np.array(vec.get_attr(name)) for name in FIELDS}
            width, height, fastest = 18 * BRICK_WIDTH, 160, SLOWEST + LEVELS * FASTER
            numbers = [
                state["paddle"] / width,
                state["half"] / PADDLE,
                state["x"] / width,
                state["y"] / height,
                state["vx"] / fastest,
                state["vy"] / fastest,
                state["lives_left"] / 5,
                state["walls_cleared"] / 2,
            ]
            assert np.array_equal(obs[:, :NUMBERS], np.stack(numbers, 1).astype(np.float32))
            assert np.array_equal(obs[:, NUMBERS:], state["bricks"])
            assert np.array_equal(state["bricks"].sum(1), state["bricks_left"])
            assert np.array_equal(state["score"], scores)
            assert obs in vec.observation_space
            acting = vec.mask.copy()
            obs, rewards, *_ = vec.step(following(obs))
            scores = np.where(acting, scores + rewards, 0)
            broken += int((rewards > 0).sum())
    assert broken > 300


def trajectory(steps, seed=3, **options):
    """All that a vec returns when the last wall is nearly cleared, and its last states."""
    with compiled(6, **options) as vec:
        obs, _ = vec.reset(seed=seed)
        few = np.zeros((6, 18), np.uint8)
        few[5, 4:16:2] = 1
        vec.set_attr("bricks", [few.reshape(-1)] * 6)
        vec.set_attr("bricks_left", [int(few.sum())] * 6)
        vec.set_attr("walls_cleared", [0, 1, 1, 1, 1, 1])
        rows = []
        for _ in range(steps):
            obs, rewards, terminations, truncations, _ = vec.step(following(obs))
            rows.append([each.copy() for each in (obs, rewards, terminations, truncations, vec.mask)])
        states = [np.array(vec.get_attr(name)) for name in FIELDS]
    return [*map(np.stack, zip(*rows, strict=True)), *states]


def same(ours, theirs):
    return all(np.array_equal(mine, yours) for mine, yours in zip(ours, theirs, strict=True))


@needs_core
def test_debug_and_any_number_of_threads_give_the_same():
    expected = trajectory(700, debug=True)
    speed, lives, walls = (expected[0][..., place] for place in (5, 6, 7))
    assert (walls == 1).any()  # a game was won
    assert ((lives > 0) & (lives < 1)).any()
    assert speed.max() > SLOWEST / (SLOWEST + LEVELS * FASTER)
    for num_workers in (1, 2, 7):
        assert same(trajectory(700, num_workers=num_workers), expected)
    assert not same(trajectory(700, seed=4), expected)


@needs_core
def test_a_snapshot_goes_on_the_same_way():
    with compiled(5) as vec:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        actions = [vec.action_space.sample() for _ in range(400)]
        for action in actions[:100]:
            vec.step(action)
        snapshot = vec.snapshot()

        def rest():
            return [each.copy() for action in actions[100:] for each in vec.step(action)[:4]]

        first = rest()
        vec.restore(snapshot)
        assert same(rest(), first)


def test_frames_show_bricks_paddle_and_ball():
    with small(render_mode="rgb_array") as vec:
        vec.reset(seed=0)
        (before,) = vec.render()
        assert before.dtype == np.uint8
        assert before.shape == (3 * (16 + 8 + 148), 3 * (16 + 48), 3)
        field = before[3 * 24 :, 3 * 8 : -3 * 8]
        wall = field[3 * int(ABOVE) : 3 * int(BOTTOM)].reshape(ROWS, 18, COLUMNS, 24, 3)
        colours = wall[:, 6, :, 6]
        assert (colours == colours[:, :1]).all()
        assert len(np.unique(colours[:, 0], axis=0)) == ROWS
        bricks = np.ones(BRICKS, np.uint8)
        bricks[7] = 0
        vec.set_attr("bricks", [bricks])
        vec.set_attr("x", [40.0])
        vec.set_attr("y", [100.0])
        vec.set_attr("paddle", [10.0])
        (after,) = vec.render()
        field = after[3 * 24 :, 3 * 8 : -3 * 8]
        dark = field[0, 0]
        gap = field[3 * int(ABOVE) : 3 * int(BOTTOM)].reshape(ROWS, 18, COLUMNS, 24, 3)[1, :, 1]
        assert (gap == dark).all()
        assert (field[300, 120] > 200).all()
        assert (field[-12, 3 * 10] != dark).any()
        assert (field[-12, 3 * 30] == dark).all()


@pytest.mark.parametrize("name", ["rows", "lives", "walls", "frame_skip"])
def test_constants_that_cannot_work(name):
    with pytest.raises(ArgumentError, match=f"{name}: expected an integer from 1, got 0"):
        shoal.make("shoal/Breakout-v0", num_envs=1, env_kwargs={name: 0}, debug=True)
