"""shoal/Breakout-v0: the arcade game, compiled."""

from __future__ import annotations

import colorsys
import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.native import NativeEnv

# Lengths are in pixels of the Atari 2600, with y from the top. Times are in its frames, 60 per second.
BRICK_WIDTH, BRICK_HEIGHT = 8.0, 6.0
ABOVE, BELOW = 24.0, 100.0  # the space above and below the wall of bricks
BALL = 1.0  # half the side of the ball, which is square
PADDLE, PADDLE_SPEED, PADDLE_DEPTH = 8.0, 2.5, 6.0  # half its width; its speed; the height of its top
SLOWEST, FASTER, LEVELS = 1.25, 0.25, 3  # the first speed of the ball, and how much it gains, LEVELS times
FLATTEST = 0.9  # the part of the speed that goes sideways after a hit at the edge of the paddle
FIRST_HITS, SECOND_HITS = 4, 12  # hits of the paddle after which the ball is faster
NUMBERS = 8  # the numbers of an observation before the bricks

# For frames: the scale, the thickness of the walls around the field, and the height of the score above it.
SCALE, SIDE, BAR = 3, 8, 16
# Each digit as a picture of 3 x 5 bits.
DIGITS = np.array([0x7B6F, 0x2C97, 0x73E7, 0x73CF, 0x5BC9, 0x79CF, 0x79EF, 0x7249, 0x7BEF, 0x7BCF])


def _observation_space(config: Any) -> Box:
    for name, lowest in {"rows": 1, "columns": 4, "lives": 1, "walls": 1, "frame_skip": 1}.items():
        if getattr(config, name) < lowest:
            raise ArgumentError(f"{name}: expected an integer from {lowest}, got {getattr(config, name)}")
    low = np.zeros(NUMBERS + config.rows * config.columns, np.float32)
    low[4:6] = -1
    return Box(low, 1, dtype=np.float32)


def _state(config: Any) -> np.dtype[Any]:
    return np.dtype(
        [
            ("paddle", np.float64),  # x of its middle
            ("half", np.float64),  # half the width of the paddle
            ("x", np.float64),  # the middle of the ball
            ("y", np.float64),
            ("vx", np.float64),
            ("vy", np.float64),
            ("level", np.int32),  # of the ball's speed
            ("hits", np.int32),  # how often this ball has hit the paddle
            ("lives_left", np.int32),  # with the current ball
            ("score", np.int32),
            ("walls_cleared", np.int32),
            ("bricks_left", np.int32),
            # 1 for a brick, 0 for a gap; row by row from the top.
            ("bricks", np.uint8, config.rows * config.columns),
        ]
    )


def _bounds(config: Any) -> dict[str, tuple[float, float]]:
    width, height = BRICK_WIDTH * config.columns, ABOVE + BRICK_HEIGHT * config.rows + BELOW
    fastest, many = SLOWEST + FASTER * LEVELS, 1 << 30
    return {
        "paddle": (0.0, width),
        "half": (PADDLE / 2, PADDLE),
        "x": (0.0, width),
        "y": (0.0, height),
        "vx": (-fastest, fastest),
        "vy": (-fastest, fastest),
        "level": (0, LEVELS),
        "hits": (0, many),
        "lives_left": (1, config.lives),
        "score": (0, many),
        "walls_cleared": (0, config.walls - 1),
        "bricks_left": (0, config.rows * config.columns),
        "bricks": (0, 1),
    }


def _build(state, config):
    for brick in range(config.rows * config.columns):
        state.bricks[brick] = 1
    state.bricks_left = config.rows * config.columns


def _serve(state, rng, config):
    """Put a new ball below the bricks. It moves down."""
    width = BRICK_WIDTH * config.columns
    state.x = rng.uniform(0.25 * width, 0.75 * width)
    state.y = ABOVE + BRICK_HEIGHT * (config.rows + 2)
    state.vx = rng.uniform(-0.7, 0.7) * SLOWEST
    state.vy = math.sqrt(SLOWEST * SLOWEST - state.vx * state.vx)
    state.level = state.hits = 0
    state.half = PADDLE
    if state.bricks_left == 0:
        _build(state, config)


def _brick_at(state, x, y, config):
    """Return the number of the brick at this point; -1 if there is none."""
    if not (ABOVE <= y < ABOVE + BRICK_HEIGHT * config.rows and 0 <= x < BRICK_WIDTH * config.columns):
        return -1
    brick = math.floor((y - ABOVE) / BRICK_HEIGHT) * config.columns + math.floor(x / BRICK_WIDTH)
    return brick if state.bricks[brick] else -1


def _break(state, brick, config):
    """Remove a brick and return its points."""
    row = brick // config.columns
    points = 1 + 3 * ((config.rows - 1 - row) // 2)
    state.bricks[brick] = 0
    state.bricks_left -= 1
    state.score += points
    if row < config.rows // 2 and state.level < LEVELS:
        ratio = (SLOWEST + FASTER * LEVELS) / (SLOWEST + FASTER * state.level)
        state.vx *= ratio
        state.vy *= ratio
        state.level = LEVELS
    return points


def _return(state, config):
    """Return the ball from the paddle. The farther from the middle it hits, the flatter it leaves."""
    state.hits += 1
    if state.hits >= SECOND_HITS:
        state.level = max(state.level, 2)
    elif state.hits >= FIRST_HITS:
        state.level = max(state.level, 1)
    speed = SLOWEST + FASTER * state.level
    state.vx = speed * FLATTEST * (state.x - state.paddle) / (state.half + BALL)
    state.vy = -math.sqrt(speed * speed - state.vx * state.vx)
    if state.bricks_left == 0:
        _build(state, config)


def _fly(state, config):
    """Move the ball by one frame and return the points. Its front side hits bricks with its middle."""
    width, top = BRICK_WIDTH * config.columns, ABOVE + BRICK_HEIGHT * config.rows + BELOW - PADDLE_DEPTH
    points = 0
    x = state.x + state.vx
    if x < BALL or x > width - BALL:
        state.x = (2 * BALL if x < BALL else 2 * (width - BALL)) - x
        state.vx = -state.vx
    else:
        brick = _brick_at(state, x + BALL if state.vx > 0 else x - BALL, state.y, config)
        if brick < 0:
            state.x = x
        else:
            state.vx = -state.vx
            points += _break(state, brick, config)
    y = state.y + state.vy
    if y < BALL:
        state.y = 2 * BALL - y
        state.vy = -state.vy
        state.half = PADDLE / 2
    else:
        brick = _brick_at(state, state.x, y + BALL if state.vy > 0 else y - BALL, config)
        if brick >= 0:
            state.vy = -state.vy
            points += _break(state, brick, config)
        elif state.y + BALL <= top < y + BALL and abs(state.x - state.paddle) <= state.half + BALL:
            state.y = top - BALL
            _return(state, config)
        else:
            state.y = y
    return points


def _observe(state, obs, config):
    width, height = BRICK_WIDTH * config.columns, ABOVE + BRICK_HEIGHT * config.rows + BELOW
    fastest = SLOWEST + FASTER * LEVELS
    obs[0] = state.paddle / width
    obs[1] = state.half / PADDLE
    obs[2] = state.x / width
    obs[3] = state.y / height
    obs[4] = state.vx / fastest
    obs[5] = state.vy / fastest
    obs[6] = state.lives_left / config.lives
    obs[7] = state.walls_cleared / config.walls
    for brick in range(config.rows * config.columns):
        obs[NUMBERS + brick] = state.bricks[brick]


class Breakout(NativeEnv):
    """A paddle plays a ball against a wall of bricks, which break. The ball must not pass the paddle.

    The rules are those of the classic game. Actions: 0 stay, 1 left, 2 right; each lasts `frame_skip`
    frames. A brick that is hit breaks and reflects the ball. It gives points, which are the reward: 1 in the
    two lowest rows, 4 in the next two, 7 in the next two, and so on. The paddle returns the ball. The farther
    from the middle the ball hits the paddle, the flatter it leaves. The ball gets faster at its 4th and its
    12th hit of the paddle. From its first brick in the upper half of the wall on it has its highest speed.
    When the ball reaches the ceiling, the paddle shrinks to half its width.

    A ball that passes the paddle costs a life. The next ball starts at once below the wall, at the lowest
    speed, and the paddle has its full width again. The episode ends with the last life, or when `walls` walls
    are cleared. Before that, a new wall appears when the ball next hits the paddle after a wall was cleared.

    An observation is numbers from 0 to 1: the paddle's middle, its width (1 or 0.5), the ball's x and y
    (from the top), its velocity in x and y (from -1 to 1, relative to the highest speed), the lives that are
    left, and the walls that are cleared; then one number for each brick, 1 if it stands and 0 if not, row by
    row from the top.

    Attributes:
        constants: Numbers that are compiled in.

            - ``rows``, ``columns``: The rows and columns of bricks. The field is as wide as the bricks.
            - ``lives``: The number of balls of an episode.
            - ``walls``: The number of walls to clear, one after another.
            - ``frame_skip``: The number of frames of a step.

    Example:
        >>> import shoal
        >>> with shoal.make("shoal/Breakout-v0", num_envs=8) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())
        >>> obs.shape
        (8, 116)
    """

    observation_space = staticmethod(_observation_space)
    action_space = Discrete(3)
    state = staticmethod(_state)
    bounds = staticmethod(_bounds)
    max_episode_steps = 20_000
    constants = {"rows": 6, "columns": 18, "lives": 5, "walls": 2, "frame_skip": 4}
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    @staticmethod
    def reset(state, rng, obs, config):  # noqa: D102
        state.paddle = BRICK_WIDTH * config.columns / 2
        state.lives_left = config.lives
        _serve(state, rng, config)
        _observe(state, obs, config)

    @staticmethod
    def step(state, action, rng, obs, config):  # noqa: D102
        width, ground = BRICK_WIDTH * config.columns, ABOVE + BRICK_HEIGHT * config.rows + BELOW
        push = PADDLE_SPEED if action == 2 else -PADDLE_SPEED if action == 1 else 0.0
        reward, over = 0.0, False
        for _ in range(config.frame_skip):
            state.paddle = min(max(state.paddle + push, state.half), width - state.half)
            points = _fly(state, config)
            reward += points
            if points > 0 and state.bricks_left == 0:
                state.walls_cleared += 1
                over = state.walls_cleared == config.walls
                if over:
                    break
            if state.y + BALL >= ground:
                state.y = ground - BALL
                state.lives_left -= 1
                over = state.lives_left == 0
                if not over:
                    _serve(state, rng, config)
                break
        _observe(state, obs, config)
        return reward, over

    @staticmethod
    def render(state: Any, config: Any) -> NDArray[np.uint8]:
        """Draw the field, with the score and the remaining balls above it."""
        width, height = int(BRICK_WIDTH) * config.columns, int(ABOVE + BRICK_HEIGHT * config.rows + BELOW)
        frame = np.full(
            ((BAR + SIDE + height) * SCALE, (width + 2 * SIDE) * SCALE, 3), (14, 16, 22), np.uint8
        )
        frame[BAR * SCALE :] = 124, 128, 138
        field = frame[(BAR + SIDE) * SCALE :, SIDE * SCALE : -SIDE * SCALE]
        field[:] = 14, 16, 22

        def fill(
            target: NDArray[np.uint8], x: float, y: float, wide: float, high: float, colour: Any
        ) -> None:
            left, top = round(x * SCALE), round(y * SCALE)
            target[max(top, 0) : round((y + high) * SCALE), max(left, 0) : round((x + wide) * SCALE)] = colour

        thin = 1 / SCALE
        for brick in np.flatnonzero(state.bricks).tolist():
            row, column = divmod(brick, config.columns)
            x, y = column * BRICK_WIDTH, ABOVE + row * BRICK_HEIGHT
            colour = np.multiply(colorsys.hsv_to_rgb(0.66 * row / config.rows, 0.72, 0.86), 255)
            fill(field, x, y, BRICK_WIDTH - thin, BRICK_HEIGHT - thin, colour * 0.72)  # with its shadow
            fill(field, x, y, BRICK_WIDTH - thin, BRICK_HEIGHT - 3 * thin, colour)
        top = height - PADDLE_DEPTH
        fill(field, state.paddle - state.half, top, 2 * state.half, 4, (214, 84, 76))
        fill(field, state.paddle - state.half, top, 2 * state.half, 1, (240, 128, 116))
        fill(field, state.x - BALL, state.y - BALL, 2 * BALL, 2 * BALL, (245, 245, 245))
        for place, digit in enumerate(f"{state.score:03d}"):
            bits = DIGITS[int(digit)] >> np.arange(14, -1, -1) & 1
            for row, column in np.argwhere(bits.reshape(5, 3)):
                fill(frame, SIDE + 8 * place + 2 * column, 3 + 2 * row, 2, 2, (200, 204, 212))
        for ball in range(state.lives_left - 1):
            fill(frame, SIDE + width - 4 * (ball + 1), 6, 2 * BALL, 2 * BALL, (245, 245, 245))
        return frame
