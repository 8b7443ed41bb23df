"""shoal/Snake-v0: many snakes in one world, compiled."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.native import NativeEnv

# What a snake sees. Of its own head, in the middle, it sees HEAD plus its heading.
EMPTY, FOOD, WALL, OWN, OTHER, OTHER_HEAD, HEAD = range(7)
UP, RIGHT, DOWN, LEFT = range(4)  # headings, and the actions that ask for them: opposite ones differ by 2
# What stands in a cell of the world: the first three, or BODY + 2 * agent, and one more if it is the head.
BODY = 4

ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # by heading
TRIES, FIRST_TRIES = 8, 64  # random places that are looked at, in a step and when the world begins
TILE, THICK = 14, 5  # pixels of a cell, and of half a body


def _observation_space(config: Any) -> Box:
    least = {
        "num_agents": 1,
        "height": 1,
        "width": 1,
        "food": 0,
        "vision": 1,
        "start_length": 2,
        "respawn": 1,
    }
    for name, lowest in least.items():
        if getattr(config, name) < lowest:
            raise ArgumentError(f"{name}: expected an integer from {lowest}, got {getattr(config, name)}")
    if config.max_length < config.start_length:
        raise ArgumentError(
            f"max_length: expected at least start_length, {config.start_length}, got {config.max_length}"
        )
    if max(config.height, config.width) <= config.start_length:
        raise ArgumentError(
            f"height, width: expected room for a snake of length {config.start_length} and a cell before it, "
            f"got {config.height} x {config.width}"
        )
    side = 2 * config.vision + 1
    return Box(0, HEAD + LEFT, (side, side), np.uint8)


def _state(config: Any) -> np.dtype[Any]:
    agents = config.num_agents
    cells = (config.height + 2 * config.vision) * (config.width + 2 * config.vision)
    code = np.uint8 if BODY + 2 * agents <= 256 else np.int32
    place = np.int16 if cells < 1 << 15 else np.int32
    return np.dtype(
        [
            # Row by row. The wall is as thick as a snake sees, so that no view leaves it.
            ("cells", code, cells),
            ("sight", np.uint8, BODY + 2 * agents),  # what a snake sees where it stands in a cell
            ("pellets", np.int32),
            # For each snake.
            ("head", place, agents),
            ("heading", np.int8, agents),
            ("length", np.int32, agents),
            ("tail", np.int32, agents),  # where in its ring the body begins
            ("body", place, (agents, config.max_length)),  # a ring: cells from the tail to the head
            ("away", np.int32, agents),  # steps since it died
            # Of the step that is being made.
            ("aim", place, agents),
            ("eats", np.uint8, agents),
            ("grows", np.uint8, agents),
        ]
    )


def _anywhere(rng, config):
    place = rng.integers(config.height * config.width)
    row, column = place // config.width + config.vision, place % config.width + config.vision
    return row * (config.width + 2 * config.vision) + column


def _settle(state, agent, rng, config, tries):
    """Put a snake where there is room: whether that was found."""
    cells, stride = state.cells, config.width + 2 * config.vision
    for _ in range(tries):
        tail, heading = _anywhere(rng, config), rng.integers(4)
        ahead = ROWS[heading] * stride + COLUMNS[heading]
        free = 0
        while free <= config.start_length and cells[tail + free * ahead] == EMPTY:  # a wall is not far
            free += 1
        if free > config.start_length:
            for part in range(config.start_length):
                cells[tail + part * ahead] = BODY + 2 * agent
                state.body[agent, part] = tail + part * ahead
            head = tail + (config.start_length - 1) * ahead
            cells[head] = BODY + 2 * agent + 1
            state.head[agent] = head
            state.heading[agent] = heading
            state.length[agent] = config.start_length
            state.tail[agent] = 0
            return True
    return False


def _feed(state, rng, config, tries):
    """Throw the pellets that are missing, as far as they fall on empty cells."""
    for _ in range(tries):
        if state.pellets >= config.food:
            break
        place = _anywhere(rng, config)
        if state.cells[place] == EMPTY:
            state.cells[place] = FOOD
            state.pellets += 1


def _bury(state, agent, config):
    """Take a snake from the world, and leave there what it had eaten."""
    parts = state.length[agent]  # without the head, which found no place
    eaten = parts + (0 if state.grows[agent] else 1) - config.start_length
    place = state.tail[agent]
    for part in range(parts):
        state.cells[state.body[agent, place]] = FOOD if part < eaten else EMPTY
        place = place + 1 if place + 1 < config.max_length else 0
    state.pellets += eaten
    state.away[agent] = 0


def _observe(state, agent, view, config):
    cells, sight, vision = state.cells, state.sight, config.vision
    stride = config.width + 2 * vision
    corner = state.head[agent] - vision * (stride + 1)
    sight[BODY + 2 * agent] = OWN
    for row in range(2 * vision + 1):
        for column in range(2 * vision + 1):
            # Unsigned: Numba would ask of each index whether it counts from the end.
            view[row, column] = sight[cells[np.uint64(corner + row * stride + column)]]
    sight[BODY + 2 * agent] = OTHER
    view[vision, vision] = HEAD + state.heading[agent]


class Snake(NativeEnv):
    """Snakes in one world with walls around, who eat, grow, and die of what they run into.

    An action is a heading: 0 up, 1 right, 2 down, 3 left. A snake cannot turn back: it goes on instead.

    All snakes move at once, and no order among them matters. First all tails move on, but for those whose
    head comes to food: they grow by a cell (up to `max_length`). Then a head that comes to a wall or to a
    body, be it its own, or of one who dies in the same step, is dead; and so are all heads that come to the
    same cell. So a snake may follow a tail closely, unless its owner eats; two who would pass through each
    other die; and nobody eats where heads meet.

    The dead are taken from the world at the end of the step, and leave as many pellets where they lay as
    they had grown by. `respawn` steps later, or as soon as there is room, they return somewhere else and
    begin an episode of their own, while the others go on. When `max_episode_steps` are over, or nobody is
    left, the world begins anew.

    An observation is the cells around the head, ``2 * vision + 1`` rows and columns, up is up: 0 empty,
    1 food, 2 wall, 3 own body, 4 another's body, 5 another's head; in the middle 6 plus the heading. Those
    who have died see the world as it is without them. The reward is `food_reward` for a pellet and
    `death_reward` for a death, which terminates the agent.

    Attributes:
        constants: They are compiled in.

            - ``num_agents``: Snakes.
            - ``height``, ``width``: Of the world, in cells, without the walls.
            - ``food``: Pellets. What is missing is thrown anew, at random; what the dead leave may be more.
            - ``vision``: Cells that a snake sees in each direction.
            - ``start_length``: Of a snake that begins, from 2 on.
            - ``max_length``: From which on a snake eats without growing.
            - ``respawn``: Steps after its death in which a snake returns, from 1 on.
            - ``food_reward``, ``death_reward``: See above.

    Example:
        >>> import shoal
        >>> with shoal.make("shoal/Snake-v0", num_envs=8) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())
        >>> obs.shape, rewards.shape
        ((128, 11, 11), (128,))
    """

    observation_space = staticmethod(_observation_space)
    action_space = Discrete(4)
    state = staticmethod(_state)
    num_agents = staticmethod(lambda config: config.num_agents)
    max_episode_steps = 1000
    constants = {
        "num_agents": 16,
        "height": 32,
        "width": 32,
        "food": 32,
        "vision": 5,
        "start_length": 3,
        "max_length": 128,
        "respawn": 1,
        "food_reward": 1.0,
        "death_reward": -1.0,
    }
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    @staticmethod
    def reset(state, rng, obs, alive, config):  # noqa: D102
        stride = config.width + 2 * config.vision
        for code in range(BODY + 2 * config.num_agents):
            state.sight[code] = code if code < BODY else OTHER + code % 2
        for place in range(state.cells.size):
            row, column = place // stride - config.vision, place % stride - config.vision
            inside = 0 <= row < config.height and 0 <= column < config.width
            state.cells[place] = EMPTY if inside else WALL
        for agent in range(config.num_agents):
            alive[agent] = _settle(state, agent, rng, config, FIRST_TRIES)
        _feed(state, rng, config, FIRST_TRIES * config.food)
        for agent in range(config.num_agents):
            if alive[agent]:
                _observe(state, agent, obs[agent], config)

    @staticmethod
    def step(state, actions, rng, obs, rewards, terminated, alive, config):  # noqa: D102
        cells, stride = state.cells, config.width + 2 * config.vision
        # Tails leave, and heads become body, but for those that are still to come.
        for agent in range(config.num_agents):
            if not alive[agent]:
                continue
            heading = state.heading[agent]
            if actions[agent] != heading ^ 2:
                heading = actions[agent] & 3
                state.heading[agent] = heading
            head = state.head[agent]
            aim = head + ROWS[heading] * stride + COLUMNS[heading]
            eats = cells[aim] == FOOD
            grows = eats and state.length[agent] < config.max_length
            cells[head] = BODY + 2 * agent
            if not grows:
                tail = state.tail[agent]
                cells[state.body[agent, tail]] = EMPTY
                state.tail[agent] = tail + 1 if tail + 1 < config.max_length else 0
                state.length[agent] -= 1
            state.aim[agent], state.eats[agent], state.grows[agent] = aim, eats, grows
        # The first head at a cell stands there, so that others know whom they meet.
        for agent in range(config.num_agents):
            if not alive[agent]:
                continue
            aim = state.aim[agent]
            there = cells[aim]
            if there < WALL:
                cells[aim] = BODY + 2 * agent + 1
            else:
                terminated[agent] = True
                if there & 1:
                    terminated[(there - BODY) >> 1] = True
        for agent in range(config.num_agents):
            if not alive[agent]:
                continue
            aim = state.aim[agent]
            if terminated[agent]:
                if cells[aim] == BODY + 2 * agent + 1:
                    cells[aim] = FOOD if state.eats[agent] else EMPTY
                _bury(state, agent, config)
                rewards[agent] = config.death_reward
            else:
                place = state.tail[agent] + state.length[agent]
                state.body[agent, place if place < config.max_length else place - config.max_length] = aim
                state.length[agent] += 1
                state.head[agent] = aim
                if state.eats[agent]:
                    state.pellets -= 1
                    rewards[agent] = config.food_reward
        for agent in range(config.num_agents):
            if not alive[agent]:
                state.away[agent] += 1
                if state.away[agent] >= config.respawn:
                    alive[agent] = _settle(state, agent, rng, config, TRIES)
        _feed(state, rng, config, TRIES)
        for agent in range(config.num_agents):
            if alive[agent]:  # those who have just died are among them
                _observe(state, agent, obs[agent], config)

    @staticmethod
    def render(state: Any, config: Any) -> NDArray[np.uint8]:
        """The world from above: each snake in a colour of its own, darker towards the tail."""
        rim = config.vision - 1  # of the wall, one cell is drawn
        rows, columns = config.height + 2, config.width + 2
        stride = config.width + 2 * config.vision
        cells = state.cells.reshape(-1, stride)[rim : rim + rows, rim : rim + columns]
        tiles = np.where(np.indices((rows, columns)).sum(0)[..., None] % 2, (24, 28, 38), (28, 33, 44))
        tiles[cells == WALL] = 74, 82, 100
        frame = tiles.astype(np.uint8).repeat(TILE, 0).repeat(TILE, 1)
        across = np.arange(TILE) - (TILE - 1) / 2
        pellet = np.hypot(across, across[:, None]) < TILE / 3.2
        for row, column in np.argwhere(cells == FOOD):
            frame[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE][pellet] = 250, 92, 84
        for agent in range(config.num_agents):
            if state.cells[state.head[agent]] != BODY + 2 * agent + 1:
                continue  # it is away
            parts = state.tail[agent] + np.arange(state.length[agent])
            places = state.body[agent, parts % config.max_length].astype(np.int64)
            middles = np.stack((places // stride - rim, places % stride - rim), 1) * TILE + TILE // 2
            hue = agent * 0.618 % 1  # however many there are, neighbours differ
            for index in reversed(range(len(middles))):
                ends = middles[max(index - 1, 0) : index + 1]  # so far that it covers where the next is drawn
                (top, left), (bottom, right) = ends.min(0) - THICK, ends.max(0) + THICK
                light = 0.55 + 0.4 * (index + 1) / len(middles)
                frame[top:bottom, left:right] = np.multiply(colorsys.hsv_to_rgb(hue, 0.62, light), 255)
            ahead = np.array((ROWS[state.heading[agent]], COLUMNS[state.heading[agent]]))
            for side in (ahead[::-1], -ahead[::-1]):  # eyes
                row, column = middles[-1] + ahead * 2 + side * 3 - 1
                frame[row : row + 2, column : column + 2] = 16, 18, 24
        return frame
