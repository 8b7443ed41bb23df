"""shoal/Snake-v0: many snakes in one world, compiled."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.errors import ArgumentError
from shoal.native import NativeEnv

# The values of a cell in an observation. The snake's own head, in the middle, is HEAD plus its heading.
EMPTY, FOOD, WALL, OWN, OTHER, OTHER_HEAD, HEAD = range(7)
UP, RIGHT, DOWN, LEFT = range(4)  # headings, which are also the actions; opposite headings differ by 2
# The values of a cell of the world: EMPTY, FOOD, WALL, BODY + 2 * agent for a body, or one more for a head.
BODY = 4

ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # of a step in each heading
TRIES, FIRST_TRIES = 8, 64  # random cells that are tried, in a step and when an episode begins
TILE, THICK = 14, 5  # the size of a cell and half the thickness of a body, in pixels


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
            # Row by row. The wall is as thick as `vision`, so that no view leaves the array.
            ("cells", code, cells),
            ("sight", np.uint8, BODY + 2 * agents),  # maps a value of a cell to the value that a snake sees
            ("pellets", np.int32),
            # For each snake.
            ("head", place, agents),
            ("heading", np.int8, agents),
            ("length", np.int32, agents),
            ("tail", np.int32, agents),  # the index of the tail in the ring `body`
            ("body", place, (agents, config.max_length)),  # a ring buffer of cells, from the tail to the head
            ("away", np.int32, agents),  # the number of steps since its death
            # For the current step: the cell the head moves to, and whether the snake eats and grows.
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
    """Put a snake into free cells. Return whether there was room."""
    cells, stride = state.cells, config.width + 2 * config.vision
    for _ in range(tries):
        tail, heading = _anywhere(rng, config), rng.integers(4)
        ahead = ROWS[heading] * stride + COLUMNS[heading]
        free = 0
        while free <= config.start_length and cells[tail + free * ahead] == EMPTY:  # a wall ends it
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
    """Add missing pellets at random cells, if the cells are empty."""
    for _ in range(tries):
        if state.pellets >= config.food:
            break
        place = _anywhere(rng, config)
        if state.cells[place] == EMPTY:
            state.cells[place] = FOOD
            state.pellets += 1


def _remove(state, agent, config):
    """Remove a dead snake from the world and leave the pellets that it had eaten."""
    parts = state.length[agent]  # without the head, which has no cell
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
            # Unsigned, because Numba would test each signed index for being negative.
            view[row, column] = sight[cells[np.uint64(corner + row * stride + column)]]
    sight[BODY + 2 * agent] = OTHER
    view[vision, vision] = HEAD + state.heading[agent]


class Snake(NativeEnv):
    """Snakes in one world with walls. They eat, grow, and die when they run into something.

    An action is a heading: 0 up, 1 right, 2 down, 3 left. A snake cannot reverse: it keeps its heading
    instead.

    All snakes move at the same time, so their order does not matter. First each tail moves on. But if the
    head reaches food, the tail stays and the snake grows by a cell (up to `max_length`). Then a snake dies if
    its head reaches a wall or a body. The body may be its own, or that of a snake that dies in the same step.
    Snakes whose heads reach the same cell die too. So a snake may follow a tail closely, unless that snake
    eats; two snakes that would pass through each other die; and food at which heads meet is not eaten.

    Dead snakes are removed at the end of the step. Each leaves as many pellets in its cells as it had grown
    by. `respawn` steps later, or as soon as there is room, the snake returns in another place. Its new
    episode begins while the other snakes go on. After `max_episode_steps`, or when no snake is left, the
    world is reset.

    An observation is the ``2 * vision + 1`` rows and columns of cells around the head. It is not rotated with
    the heading. Its values are: 0 empty, 1 food, 2 wall, 3 own body, 4 body of another snake, 5 head of
    another snake; in the middle 6 plus the heading. A snake that has died sees the world without itself. The
    reward is `food_reward` for a pellet and `death_reward` for a death, which terminates the agent.

    Attributes:
        constants: Numbers that are compiled in.

            - ``num_agents``: The number of snakes.
            - ``height``, ``width``: The size of the world in cells, without the walls.
            - ``food``: The number of pellets. Missing pellets are added at random. Dead snakes leave more.
            - ``vision``: The number of cells that a snake sees in each direction.
            - ``start_length``: The length of a new snake; at least 2.
            - ``max_length``: The length at which a snake stops growing.
            - ``respawn``: The number of steps after its death when a snake returns; at least 1.
            - ``food_reward``, ``death_reward``: The rewards for a pellet and for a death.

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
        # Tails move on and old heads become body. The new heads follow in the next loop.
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
        # The first head that reaches a cell is written there, so that later heads can see which snake it is.
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
                _remove(state, agent, config)
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
            if alive[agent]:  # still set for snakes that died in this step
                _observe(state, agent, obs[agent], config)

    @staticmethod
    def render(state: Any, config: Any) -> NDArray[np.uint8]:
        """Draw the world from above: each snake has its own colour, darker towards the tail."""
        rim = config.vision - 1  # one cell of the wall is drawn
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
                continue  # the snake is dead
            parts = state.tail[agent] + np.arange(state.length[agent])
            places = state.body[agent, parts % config.max_length].astype(np.int64)
            middles = np.stack((places // stride - rim, places % stride - rim), 1) * TILE + TILE // 2
            hue = agent * 0.618 % 1  # neighbours differ for any number of snakes
            for index in reversed(range(len(middles))):
                ends = middles[max(index - 1, 0) : index + 1]  # long enough to cover the gap to the next part
                (top, left), (bottom, right) = ends.min(0) - THICK, ends.max(0) + THICK
                light = 0.55 + 0.4 * (index + 1) / len(middles)
                frame[top:bottom, left:right] = np.multiply(colorsys.hsv_to_rgb(hue, 0.62, light), 255)
            ahead = np.array((ROWS[state.heading[agent]], COLUMNS[state.heading[agent]]))
            for side in (ahead[::-1], -ahead[::-1]):  # eyes
                row, column = middles[-1] + ahead * 2 + side * 3 - 1
                frame[row : row + 2, column : column + 2] = 16, 18, 24
        return frame
