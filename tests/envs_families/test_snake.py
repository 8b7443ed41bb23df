"""Snake: its rules one by one, all of them against slow ones written with lists, its worlds in a vec.

A kernel takes seconds to compile. So what is compiled here has the default constants; rules one by one, in a
small world, run uncompiled, and that both give the same is a test of its own.
"""

from itertools import pairwise, permutations

import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.envs.snake import (
    BODY,
    DOWN,
    EMPTY,
    FOOD,
    HEAD,
    LEFT,
    OTHER,
    OTHER_HEAD,
    OWN,
    RIGHT,
    UP,
    WALL,
)
from shoal.errors import ArgumentError

needs_core = pytest.mark.skipif(_core.NAME != "native", reason="without the core, nothing is compiled")

AGENTS, START, LONGEST, RESPAWN, STEPS, PELLETS = 4, 3, 6, 2, 60, 9
SMALL = {
    "num_agents": AGENTS,
    "height": 12,
    "width": 10,
    "food": PELLETS,
    "vision": 2,
    "start_length": START,
    "max_length": LONGEST,
    "respawn": RESPAWN,
    "max_episode_steps": STEPS,
}
MOVES = {UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}


def compiled(num_envs, **options):
    """Of worlds as they are by default."""
    return shoal.make("shoal/Snake-v0", num_envs=num_envs, **options)


def small(num_envs=1, **options):
    return shoal.make("shoal/Snake-v0", num_envs=num_envs, env_kwargs=SMALL, debug=True, **options)


def put_state(vec, name, values):
    """Write a field of the state, which has no bounds, by way of a snapshot: that is trusted."""
    saved = vec.snapshot()
    saved["envs"]["states"][name] = values
    vec.restore(saved)


class Map:
    """The worlds of a vec, in rows and columns."""

    def __init__(self, vec):
        self.vec, self.agents = vec, vec.agents_per_env
        self.height, self.width, self.vision, self.longest, self.start, self.food = (
            vec.get_attr(name)[0]
            for name in ("height", "width", "vision", "max_length", "start_length", "food")
        )
        self.stride = self.width + 2 * self.vision

    def place(self, cell):
        return (cell[0] + self.vision) * self.stride + cell[1] + self.vision

    def cell(self, place):
        return place // self.stride - self.vision, place % self.stride - self.vision

    def is_inside(self, cell):
        return 0 <= cell[0] < self.height and 0 <= cell[1] < self.width

    def put(self, worlds):
        """Make them as wanted: each is a list of bodies, from the tail to the head, and food."""
        names = ("cells", "head", "heading", "length", "tail", "body")
        columns = {name: np.array(self.vec.get_attr(name)) for name in names}
        for env, (bodies, food) in enumerate(worlds):
            cells = columns["cells"][env]
            cells[cells != WALL] = EMPTY
            cells[[self.place(each) for each in food]] = FOOD
            for agent, body in enumerate(bodies):
                places = [self.place(part) for part in body]
                cells[places] = BODY + 2 * agent
                cells[places[-1]] = BODY + 2 * agent + 1
                columns["head"][env, agent] = places[-1]
                columns["heading"][env, agent] = towards(*body[-2:])
                columns["length"][env, agent] = len(body)
                columns["tail"][env, agent] = 0
                columns["body"][env, agent, : len(body)] = places
        for name, column in columns.items():
            put_state(self.vec, name, column)
        put_state(self.vec, "pellets", [1000] * len(worlds))  # so many that no more are thrown

    def find(self, env=0):
        """The bodies of a world, None for who is away, and its food."""
        cells, tails, lengths, rings = (
            self.vec.get_attr(name)[env] for name in ("cells", "tail", "length", "body")
        )
        food = {self.cell(place) for place in np.flatnonzero(cells == FOOD).tolist()}
        bodies = [
            [self.cell(int(ring[(tail + part) % self.longest])) for part in range(length)] if lives else None
            for ring, tail, length, lives in zip(rings, tails, lengths, self.alive(env), strict=True)
        ]
        return bodies, food

    def alive(self, env=0):
        return self.vec.mask.reshape(-1, self.agents)[env]


def towards(first, second):
    """The heading from a cell to the next."""
    step = second[0] - first[0], second[1] - first[1]
    return next(heading for heading, move in MOVES.items() if move == step)


def line(row, first, last):
    """Cells of a row, to the right or to the left."""
    columns = range(first, last + 1) if first < last else range(first, last - 1, -1)
    return [(row, column) for column in columns]


def careful(obs, rng):
    """Actions of snakes who seldom die: to food if it is near, to where it is free otherwise."""
    middle = obs.shape[1] // 2
    around = np.stack([obs[:, middle + row, middle + column] for row, column in MOVES.values()], 1)
    return ((around == FOOD) * 10 - (around > FOOD) * 100 + rng.random((len(obs), 4))).argmax(1)


# -- rules, one by one ---------------------------------------------------------------------------------


class Scene:
    """A small world with the snakes we want in its upper rows; others go to the right in their own."""

    def __init__(self, *snakes, food=()):
        self.vec = small()
        self.vec.reset(seed=0)
        self.map = Map(self.vec)
        spare = [[(8 + agent, column) for column in range(START)] for agent in range(len(snakes), AGENTS)]
        self.map.put([([*map(list, snakes), *spare], food)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.vec.close()

    def step(self, *actions):
        """Who gets no action goes on."""
        wanted = self.vec.get_attr("heading")[0].astype(np.int64)
        wanted[: len(actions)] = actions
        self.obs, self.rewards, self.terminations, self.truncations, _ = self.vec.step(wanted)

    @property
    def bodies(self):
        return self.map.find()[0]

    @property
    def food(self):
        return self.map.find()[1]

    @property
    def pellets(self):
        return self.vec.get_attr("pellets")[0]


def test_head_and_tail_move_and_there_is_no_way_back():
    with Scene(line(3, 2, 4)) as scene:
        scene.step(RIGHT)
        assert scene.bodies[0] == line(3, 3, 5)
        scene.step(DOWN)
        assert scene.bodies[0] == [(3, 4), (3, 5), (4, 5)]
        scene.step(UP)
        assert scene.bodies[0] == [(3, 5), (4, 5), (5, 5)]
        scene.step(LEFT)
        assert scene.bodies[0] == [(4, 5), (5, 5), (5, 4)]
        assert not scene.rewards.any()
        assert not scene.terminations.any()


def test_food_is_eaten_and_makes_a_snake_longer_up_to_a_limit():
    with Scene(line(3, 0, 2), food=line(3, 3, 7)) as scene:
        for column in (3, 4, 5):
            scene.step(RIGHT)
            assert scene.rewards.tolist() == [1, 0, 0, 0]
            assert scene.bodies[0] == line(3, 0, column)
            assert scene.food == set(line(3, column, 7)[1:])
        scene.step(RIGHT)  # as long as may be
        assert scene.rewards[0] == 1
        assert scene.bodies[0] == line(3, 1, 6)
        assert scene.pellets == 1000 - 4


def test_missing_food_is_thrown_anew():
    with Scene(line(3, 0, 2), food=[(3, 3)]) as scene:
        put_state(scene.vec, "pellets", [PELLETS])
        scene.step(RIGHT)
        (new,) = scene.food
        assert new not in line(3, 0, 3)
        assert scene.pellets == PELLETS


def test_a_wall_kills():
    with Scene(line(0, 4, 6)) as scene:
        scene.step(UP)
        assert scene.terminations.tolist() == [True, False, False, False]
        assert scene.rewards.tolist() == [-1, 0, 0, 0]
        assert scene.vec.mask.tolist() == [False, True, True, True]
        assert not np.isin(scene.vec.get_attr("cells")[0], (BODY, BODY + 1)).any()
        assert not scene.food


def test_the_dead_leave_what_they_have_eaten():
    with Scene(line(0, 2, 7)) as scene:
        scene.step(UP)
        assert scene.terminations[0]
        assert scene.food == set(line(0, 3, 5))  # three, from where its tail had come to
        assert scene.pellets == 1003


def test_a_body_kills_who_runs_into_it():
    with Scene(line(3, 3, 5), [(6, 4), (5, 4), (4, 4)]) as scene:
        scene.step(RIGHT, UP)
        assert scene.terminations.tolist() == [False, True, False, False]
        assert scene.bodies[0] == line(3, 4, 6)


def test_a_snake_may_die_of_itself():
    with Scene([(2, 3), (3, 3), (3, 4), (4, 4), (4, 3)]) as scene:
        scene.step(UP)
        assert scene.terminations[0]


def test_a_tail_that_leaves_does_not_kill():
    ring = [(3, 3), (3, 4), (4, 4), (4, 3)]
    with Scene(ring, line(6, 4, 2), [(7, 4), (7, 5), (6, 5)]) as scene:
        scene.step(UP, LEFT, LEFT)
        assert not scene.terminations.any()
        assert scene.bodies[0] == [*ring[1:], ring[0]]
        assert scene.bodies[2][-1] == (6, 4)


def test_a_tail_that_stays_kills():
    """Its owner eats in this step, so that nothing of it leaves."""
    with Scene(line(6, 4, 2), [(5, 6), (5, 5), (6, 5)], food=[(6, 1)]) as scene:
        scene.step(LEFT, LEFT)
        assert scene.rewards.tolist() == [1, -1, 0, 0]
        assert scene.terminations.tolist() == [False, True, False, False]


@pytest.mark.parametrize("food", [(), [(3, 4)]])
def test_heads_that_meet_are_dead(food):
    with Scene(line(3, 1, 3), line(3, 7, 5), [(0, 4), (1, 4), (2, 4)], food=food) as scene:
        scene.step(RIGHT, LEFT, DOWN)
        assert scene.terminations.tolist() == [True, True, True, False]
        assert scene.rewards.tolist() == [-1, -1, -1, 0]
        assert scene.food == set(food)  # nobody has eaten it
        assert scene.pellets == 1000


def test_snakes_do_not_pass_through_each_other():
    with Scene(line(3, 1, 3), line(3, 6, 4)) as scene:
        scene.step(RIGHT, LEFT)
        assert scene.terminations.tolist() == [True, True, False, False]


def test_the_body_of_one_who_dies_in_the_same_step_kills():
    with Scene([(2, 0), (1, 0), (0, 0)], line(1, 3, 1)) as scene:
        scene.step(UP, LEFT)
        assert scene.terminations.tolist() == [True, True, False, False]


def test_the_dead_return_and_begin_an_episode():
    with Scene([(2, 5), (1, 5), (0, 5)]) as scene:
        vec, batches = scene.vec, []
        for _ in range(4):
            vec.send(np.array([UP, RIGHT, RIGHT, RIGHT]))
            batches.append([column.copy() for column in vec.recv()[:6]])
        obs, rewards, terminations, truncations, mask, resets = map(np.stack, zip(*batches, strict=True))
        assert terminations[:3, 0].tolist() == [True, False, False]
        assert mask[:3, 0].tolist() == [False, False, True]  # RESPAWN steps after the one in which it died
        assert resets[:, 0].tolist() == [False, True, True, False]
        assert rewards[:3, 0].tolist() == [-1, 0, 0]
        assert not truncations.any()
        assert mask[:3, 1:].all()  # later it may be in their way
        assert not resets[:, 1:].any()
        assert obs[2, 0, 2, 2] >= HEAD
        assert (obs[2, 0] == OWN).sum() == START - 1


def test_there_must_be_room_to_return():
    with Scene([(2, 5), (1, 5), (0, 5)]) as scene:
        scene.step(UP)
        for full in (True, True, True, True, False):
            (cells,) = scene.vec.get_attr("cells")
            cells[(cells == EMPTY) | (cells == FOOD)] = FOOD if full else EMPTY
            put_state(scene.vec, "cells", [cells])
            scene.step()
            assert scene.vec.mask.tolist() == [not full, True, True, True]


def test_when_nobody_is_left_the_world_begins_anew():
    with Scene(line(3, 1, 3), line(3, 7, 5), line(5, 1, 3), line(5, 7, 5)) as scene:
        scene.step(RIGHT, LEFT, RIGHT, LEFT)
        assert scene.terminations.all()
        assert not scene.vec.mask.any()
        scene.step()
        assert scene.vec.mask.all()
        assert not scene.terminations.any()
        assert not scene.rewards.any()
        assert [len(body) for body in scene.bodies] == [START] * AGENTS
        assert len(scene.food) == scene.pellets == PELLETS


def test_the_world_ends_after_its_steps():
    envs, elapsed, late = 4, np.zeros(4, int), 0
    with small(envs) as vec:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        for _ in range(2 * STEPS + 20):
            acting = vec.mask.reshape(envs, AGENTS).copy()
            _, _, terminations, truncations, _ = vec.step(vec.action_space.sample())
            elapsed = np.where(acting.any(1), elapsed + 1, 0)
            over = elapsed == STEPS
            # With those who die in the last step, and without those who are away.
            assert (truncations.reshape(envs, AGENTS) == (over[:, None] & acting)).all()
            assert not terminations.reshape(envs, AGENTS)[~acting].any()
            assert not vec.mask.reshape(envs, AGENTS)[over].any()
            late += int(over.sum())
    assert late >= envs


# -- all rules at once ---------------------------------------------------------------------------------


def slow_step(world, bodies, food, headings, actions):
    """The rules: bodies (None for the dead), food, rewards, deaths and headings after a step."""
    living = [agent for agent, body in enumerate(bodies) if body is not None]
    turned = {
        agent: headings[agent] if actions[agent] == (headings[agent] + 2) % 4 else actions[agent]
        for agent in living
    }
    aims = {agent: tuple(np.add(bodies[agent][-1], MOVES[turned[agent]]).tolist()) for agent in living}
    rest = {
        agent: bodies[agent][not (aims[agent] in food and len(bodies[agent]) < world.longest) :]
        for agent in living
    }
    taken = {part for body in rest.values() for part in body}
    heads = list(aims.values())
    dead = {
        agent
        for agent, aim in aims.items()
        if not world.is_inside(aim) or aim in taken or heads.count(aim) > 1
    }
    eaters = {agent for agent in living if agent not in dead and aims[agent] in food}
    left = {part for agent in dead for part in rest[agent][: len(bodies[agent]) - world.start]}
    after = [
        [*rest[agent], aims[agent]] if agent in rest and agent not in dead else None
        for agent in range(world.agents)
    ]
    rewards = [-1.0 if agent in dead else float(agent in eaters) for agent in range(world.agents)]
    return after, (food - {aims[agent] for agent in eaters}) | left, rewards, dead, turned


def slow_view(world, bodies, food, agent, head, heading):
    stands = dict.fromkeys(food, FOOD)
    for other, body in enumerate(bodies):
        for part in body or ():
            stands[part] = OWN if other == agent else OTHER_HEAD if part == body[-1] else OTHER
    side = 2 * world.vision + 1
    cells = [
        (head[0] + row - world.vision, head[1] + column - world.vision)
        for row in range(side)
        for column in range(side)
    ]
    view = np.array([stands.get(cell, EMPTY) if world.is_inside(cell) else WALL for cell in cells])
    view[len(view) // 2] = HEAD + heading
    return view.reshape(side, side)


@pytest.mark.parametrize(
    ("make", "envs", "steps"),
    [
        pytest.param(compiled, 2, 250, marks=needs_core, id="compiled"),
        pytest.param(small, 4, 200, id="small"),
    ],
)
def test_every_step_is_that_of_the_slow_rules(make, envs, steps):
    births = deaths = meals = 0
    died = {}
    with make(envs) as vec:
        world, rng = Map(vec), np.random.default_rng(0)
        obs, _ = vec.reset(seed=5)
        vec.action_space.seed(5)
        agents = range(world.agents)
        for step in range(steps):
            before = [world.find(env) for env in range(envs)]
            headings = [row.tolist() for row in vec.get_attr("heading")]
            actions = careful(obs, rng) if step % 4 else vec.action_space.sample()
            obs, rewards, terminations, _, _ = vec.step(actions)
            for env, (bodies, food) in enumerate(before):
                rows = slice(env * world.agents, (env + 1) * world.agents)
                if not any(bodies) or not world.alive(env).any():  # it begins, or ends
                    continue
                after, food, gains, dead, turned = slow_step(
                    world, bodies, food, headings[env], actions[rows].tolist()
                )
                real, pellets = world.find(env)
                assert rewards[rows].tolist() == gains
                assert np.flatnonzero(terminations[rows]).tolist() == sorted(dead)
                born = [agent for agent in agents if after[agent] is None and real[agent] is not None]
                taken = {part for body in after if body for part in body} | food
                for agent in born:
                    assert bodies[agent] is None
                    assert len(real[agent]) == world.start
                    (ahead,) = {towards(*pair) for pair in pairwise(real[agent])}
                    before_it = tuple(np.add(real[agent][-1], MOVES[ahead]).tolist())
                    assert world.is_inside(before_it)
                    assert not taken & {*real[agent], before_it}
                    assert step - died.get((env, agent), -1) >= vec.get_attr("respawn")[0]
                    taken |= set(real[agent])
                assert [real[agent] for agent in agents if agent not in born] == [
                    after[agent] for agent in agents if agent not in born
                ]
                assert food <= pellets
                assert not (pellets - food) & taken
                # No more than there were or are to be; fewer, where no random place was free.
                assert len(pellets) == vec.get_attr("pellets")[env] <= max(len(food), world.food)
                heading = vec.get_attr("heading")[env].tolist()
                for agent in (agent for agent in agents if real[agent] is not None or agent in dead):
                    assert heading[agent] == turned.get(agent, heading[agent])
                    head = (real[agent] or bodies[agent])[-1]
                    seen = slow_view(world, real, pellets, agent, head, heading[agent])
                    assert np.array_equal(obs[rows][agent], seen)
                died |= {(env, agent): step for agent in dead}
                births, deaths, meals = births + len(born), deaths + len(dead), meals + gains.count(1)
    assert min(births, deaths, meals) > 30


@needs_core
def test_no_order_among_agents_matters():
    """The same world for each order of four of its agents, who all want the same cells: the same happens."""
    orders, deaths = list(permutations(range(4))), 0
    crowd = [[(2, 5), (3, 5), (4, 5)], line(5, 2, 4), [(8, 5), (7, 5), (6, 5)], line(5, 8, 6)]
    others = [line(10 + agent, 0, 2) for agent in range(12)]
    rng = np.random.default_rng(0)
    with compiled(len(orders)) as vec:
        world = Map(vec)
        for _ in range(20):
            vec.reset(seed=0)  # everybody lives
            actions = np.array([*rng.integers(0, 4, 4), *[RIGHT] * 12])
            world.put([([*(crowd[agent] for agent in order), *others], [(5, 5)]) for order in orders])
            places = np.array([[*order, *range(4, 16)] for order in orders])
            _, rewards, terminations, _, _ = vec.step(actions[places].reshape(-1))
            assert (rewards.reshape(-1, 16) == rewards[:16][places]).all()
            assert (terminations.reshape(-1, 16) == terminations[:16][places]).all()
            deaths += int(terminations[:16].sum())
    assert deaths > 10


# -- in a vec ------------------------------------------------------------------------------------------


def trajectory(steps, seed=3, **options):
    """All that a vec returns when its snakes are careful, and its last states."""
    with compiled(2, **options) as vec:
        rng = np.random.default_rng(0)
        obs, _ = vec.reset(seed=seed)
        rows = []
        for _ in range(steps):
            obs, rewards, terminations, truncations, _ = vec.step(careful(obs, rng))
            rows.append([each.copy() for each in (obs, rewards, terminations, truncations, vec.mask)])
        states = [np.array(vec.get_attr(name)) for name in ("cells", "body", "pellets", "away", "length")]
    return [*map(np.stack, zip(*rows, strict=True)), *states]


def same(ours, theirs):
    return all(np.array_equal(mine, yours) for mine, yours in zip(ours, theirs, strict=True))


@needs_core
def test_debug_and_any_number_of_threads_give_the_same():
    expected = trajectory(300, debug=True)
    assert expected[-1].max() > 20
    for num_workers in (1, 2, 7):
        assert same(trajectory(300, num_workers=num_workers), expected)
    assert not same(trajectory(300, seed=4), expected)


@needs_core
def test_a_snapshot_goes_on_the_same_way():
    with compiled(5) as vec:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        actions = [vec.action_space.sample() for _ in range(150)]
        for action in actions[:50]:
            vec.step(action)
        snapshot = vec.snapshot()

        def rest():
            return [each.copy() for action in actions[50:] for each in vec.step(action)[:4]]

        first = rest()
        vec.restore(snapshot)
        assert same(rest(), first)


@needs_core
def test_observations_are_in_their_space():
    with compiled(16) as vec:
        obs, _ = vec.reset(seed=0)
        vec.action_space.seed(0)
        for _ in range(100):
            assert obs in vec.observation_space
            obs, *_ = vec.step(vec.action_space.sample())
        assert np.unique(obs).tolist() == list(range(HEAD + LEFT + 1))


def test_many_snakes_in_a_large_world():
    """More than a byte can tell apart, in more cells than two of them."""
    large = {"num_agents": 130, "height": 170, "width": 190, "vision": 3}
    with shoal.make("shoal/Snake-v0", num_envs=1, env_kwargs=large, debug=True) as vec:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        for _ in range(3):
            obs, *_ = vec.step(vec.action_space.sample())
            assert obs in vec.observation_space
            seen = (obs == OWN).sum((1, 2)) + 1
            assert (seen == vec.get_attr("length")[0])[vec.mask].all()


@pytest.mark.parametrize("vision", [1, 3])
def test_frames_show_who_lives(vision):
    world = {**SMALL, "vision": vision}
    options = {"debug": True, "render_mode": "rgb_array"}
    with shoal.make("shoal/Snake-v0", num_envs=2, env_kwargs=world, **options) as vec:

        def colours():
            frame = vec.render()[0]
            assert frame.dtype == np.uint8
            assert frame.shape == (14 * (12 + 2), 14 * (10 + 2), 3)
            return len(np.unique(frame.reshape(-1, 3), axis=0))

        vec.reset(seed=0)
        assert (
            colours() == AGENTS * START + 5
        )  # each part has its own; eyes, food, a wall and two of the ground
        while not vec.step(np.full(2 * AGENTS, UP))[2][:AGENTS].any():
            pass
        assert colours() <= (AGENTS - 1) * LONGEST + 5


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_agents": 0}, "num_agents: expected an integer from 1, got 0"),
        ({"start_length": 1}, "start_length: expected an integer from 2"),
        ({"vision": 0}, "vision: expected an integer from 1"),
        ({"respawn": 0}, "respawn: expected an integer from 1"),
        ({"food": -1}, "food: expected an integer from 0"),
        ({"max_length": 2}, "max_length: expected at least start_length, 3, got 2"),
        ({"height": 3, "width": 3}, "expected room for a snake of length 3"),
    ],
)
def test_constants_that_cannot_work(wrong, text):
    with pytest.raises(ArgumentError, match=text):
        shoal.make("shoal/Snake-v0", num_envs=1, env_kwargs=wrong, debug=True)
