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

# In pixels of the Atari 2600, y from the top, and its frames, 60 a second.
BRICK_WIDTH, BRICK_HEIGHT = 8.0, 6.0
ABOVE, BELOW = 24.0, 100.0  # the wall of bricks
BALL = 1.0  # half of it, as it is square
PADDLE, PADDLE_SPEED, PADDLE_DEPTH = 8.0, 2.5, 6.0  # half of its width; how far its top is above the ground
SLOWEST, FASTER, LEVELS = 1.25, 0.25, 3  # the ball's speed, and what it gains LEVELS times
FLATTEST = 0.9  # of its speed goes sideways, from the edge of the paddle
FIRST_HITS, SECOND_HITS = 4, 12  # of the paddle, after which the ball is faster
NUMBERS = 8  # of an observation, before the bricks

# Of a frame.
SCALE, SIDE, BAR = 3, 8, 16  # pixels of one of the above; the walls around the field; the score above
# Digits of 3 x 5 bits.
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
            ("paddle", np.float64),  # its middle
            ("half", np.float64),  # of its width
            ("x", np.float64),  # the ball
            ("y", np.float64),
            ("vx", np.float64),
            ("vy", np.float64),
            ("level", np.int32),  # of its speed
            ("hits", np.int32),  # of the paddle, by this ball
            ("lives_left", np.int32),  # this ball counted
            ("score", np.int32),
            ("walls_cleared", np.int32),
            ("bricks_left", np.int32),
            # 1 where there is one, row by row from the top.
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
    """A new ball, from below the bricks down."""
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
    """The brick there, or -1."""
    if not (ABOVE <= y < ABOVE + BRICK_HEIGHT * config.rows and 0 <= x < BRICK_WIDTH * config.columns):
        return -1
    brick = math.floor((y - ABOVE) / BRICK_HEIGHT) * config.columns + math.floor(x / BRICK_WIDTH)
    return brick if state.bricks[brick] else -1


def _break(state, brick, config):
    """Take a brick away: its points."""
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
    """The ball is on the paddle: up again, the more to a side the farther it is from the middle."""
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
    """A frame of the ball: its points. It hits bricks with the middle of the side that goes ahead."""
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
    """A paddle at the ground plays a ball against a wall of bricks, which break, and must not let it pass.

    The rules are those of the classic game. Actions: 0 stay, 1 left, 2 right; each lasts `frame_skip`
    frames. A brick that is hit breaks, throws the ball back, and gives points, which are the reward: 1 in
    the two lowest rows, 4 in the next two, 7 in those above, and so on. From the paddle the ball goes up,
    the more to a side the farther from the middle it came down. It gets faster with its 4th and its 12th
    hit of the paddle, and has its highest speed from its first brick in the upper half of the wall on. When
    it reaches the ceiling, the paddle shrinks to a half.

    A ball that passes the paddle costs a life. The next one comes at once from below the wall, as slow as
    the first, to a whole paddle. The episode ends with the last life, or when `walls` are cleared. Until
    then the next wall stands as soon as the ball is back on the paddle.

    An observation is numbers from 0 to 1: the paddle's middle, its width (1, or 0.5), the ball's x and y
    (from the top), its velocity in both directions (from -1; of the highest speed), the lives that are
    left, and the walls that are cleared; then 1 for each brick that stands and 0 for each that does not,
    row by row from the top.

    Attributes:
        constants: They are compiled in.

            - ``rows``, ``columns``: Of bricks. The field is as wide as they are.
            - ``lives``: Balls of an episode.
            - ``walls``: To clear, one after the other.
            - ``frame_skip``: Frames of a step.

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
        """The field, with the score and the balls that are left above it."""
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
            fill(field, x, y, BRICK_WIDTH - thin, BRICK_HEIGHT - thin, colour * 0.72)  # its shadow below
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
