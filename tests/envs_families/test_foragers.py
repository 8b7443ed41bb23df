"""Foragers: its rules one by one, all of them against a slow world written with loops, its rows in a vec."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.utils import seeding

import shoal
from shoal import _core
from shoal.envs.foragers import STAY, Foragers
from shoal.errors import ArgumentError
from shoal.testing import check_env
from shoal.testing.contract import difference
from tests.backends import BACKENDS

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")

LEFT, RIGHT = 3, 5
MODES = ["NextStep", "SameStep"]


class Slow:
    """The same rules for one agent and one cell at a time. Takes the arguments of Foragers."""

    def __init__(self, seed, num_agents, size, vision, pellets, regrowth, meal, energy, max_steps, respawn):
        self.random, _ = seeding.np_random(seed)
        self.agents, self.size, self.vision = range(num_agents), size, vision
        self.pellets, self.regrowth, self.meal, self.first_energy = pellets, regrowth, meal, energy
        self.max_steps, self.respawn = max_steps, respawn

    def anywhere(self):
        return divmod(int(self.random.random() * self.size**2), self.size)

    def reset(self):
        self.food = {self.anywhere() for _ in range(self.pellets)}
        self.at = [self.anywhere() for _ in self.agents]
        self.energy = [self.first_energy for _ in self.agents]
        self.died = [None for _ in self.agents]
        self.count = 0

    def alive(self):
        return [died is None for died in self.died]

    def step(self, actions):
        """Rewards, terminations and truncations."""
        living = [agent for agent in self.agents if self.died[agent] is None]
        rewards, terminations, truncations = (np.zeros(len(self.agents), t) for t in (float, bool, bool))
        self.count += 1
        for agent in living:
            (row, column), (down, right) = self.at[agent], divmod(int(actions[agent]), 3)
            self.at[agent] = (row + down - 1) % self.size, (column + right - 1) % self.size
        for agent in living:
            here = [other for other in living if self.at[other] == self.at[agent]]
            self.energy[agent] -= 1
            if self.at[agent] in self.food:
                rewards[agent] = 1 / len(here)
                self.energy[agent] = min(self.energy[agent] + self.meal // len(here), 255)
        self.food -= {self.at[agent] for agent in living}
        self.food |= {self.anywhere() for _ in range(self.regrowth)}
        last = self.count == self.max_steps
        for agent in living:
            terminations[agent] = self.energy[agent] == 0
            truncations[agent] = last and not terminations[agent]
            if terminations[agent] or last:
                self.died[agent] = self.count
        for agent in self.agents:
            if not last and self.died[agent] is not None and self.count - self.died[agent] == self.respawn:
                self.at[agent], self.energy[agent], self.died[agent] = (
                    self.anywhere(),
                    self.first_energy,
                    None,
                )
        return rewards, terminations, truncations

    def sees(self, agent):
        strongest = {}
        for place, energy in zip(self.at, self.energy, strict=True):
            strongest[place] = max(energy, strongest.get(place, 0))
        cells = np.zeros((self.vision, self.vision, 2), np.uint8)
        row, column = self.at[agent]
        for down in range(self.vision):
            for right in range(self.vision):
                seen = (
                    (row + down - self.vision // 2) % self.size,
                    (column + right - self.vision // 2) % self.size,
                )
                cells[down, right] = 255 * (seen in self.food), strongest.get(seen, 0)
        return cells


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "world",
    [
        {"size": 9, "vision": 5, "pellets": 15, "regrowth": 2, "max_steps": 60, "respawn": None},
        {"size": 9, "vision": 5, "pellets": 15, "regrowth": 2, "max_steps": 60, "respawn": 4},
        {"size": 3, "vision": 3, "pellets": 3, "regrowth": 1, "max_steps": 25, "respawn": 1},
        {"size": 7, "vision": 7, "pellets": 9, "regrowth": 0, "max_steps": 90, "respawn": None},
        {"size": 6, "vision": 1, "pellets": 90, "regrowth": 40, "max_steps": 40, "respawn": None},
    ],
)
def test_it_is_the_slow_world(world, mode):
    """Every value of every row, over several episodes."""
    world = {"num_agents": 20, "meal": 8, "energy": 12, **world}
    slow = Slow(3, **world)
    slow.reset()
    episodes = deaths = returns = 0
    with shoal.Serial(partial(Foragers, **world), autoreset_mode=mode) as vec:
        vec.action_space.seed(0)
        vec.async_reset(seed=3)
        batch = vec.recv()
        for _ in range(200):
            alive = slow.alive()
            assert batch.mask.tolist() == alive
            # Also what the dead see, who stay where they fell.
            assert difference(batch.obs, np.array([slow.sees(agent) for agent in slow.agents])) is None
            actions = vec.action_space.sample()
            if any(alive):
                expected = slow.step(actions)
            else:  # under NEXT_STEP the step after the last one only resets
                slow.reset()
                expected = np.zeros(20), np.zeros(20, bool), np.zeros(20, bool)
            vec.send(actions)
            batch = vec.recv()
            assert difference((batch.rewards, batch.terminations, batch.truncations), expected) is None
            deaths += int(batch.terminations.sum())
            returns += sum(now and not before for now, before in zip(slow.alive(), alive, strict=True))
            if not any(slow.alive()):
                episodes += 1
                ended = np.flatnonzero(batch.terminations | batch.truncations)
                last = batch.obs if mode == "NextStep" else batch.infos["final_obs"]
                assert all(np.array_equal(last[agent], slow.sees(agent)) for agent in ended)
                if mode == "SameStep":
                    slow.reset()
    assert episodes >= 2
    assert (deaths > 0) == (world["regrowth"] < 40)
    assert (returns > 0) == (world["respawn"] is not None or mode == "NextStep")


def barren(places, *, food=(), **arguments):
    """A vec of one world of 6x6 where agents and pellets are where we want them; and the env."""
    arguments = {"meal": 20, "energy": 10, **arguments}
    creator = partial(Foragers, len(places), size=6, vision=3, pellets=0, regrowth=0, **arguments)
    vec = shoal.Serial(creator, episode_stats=True)
    vec.reset(seed=0)
    (env,) = vec.envs
    env.place[:] = places
    env.cells[list(food), 0] = 255
    return vec, env


def test_agents_walk_over_the_edges():
    vec, env = barren([0] * 9)
    with vec:
        vec.step(np.arange(9))
        assert env.place.tolist() == [35, 30, 31, 5, 0, 1, 11, 6, 7]
        vec.step(8 - np.arange(9))
        assert env.place.tolist() == [0] * 9


def test_a_pellet_is_eaten_once():
    vec, env = barren([0, 9], food=[1])
    with vec:
        obs, rewards, *_ = vec.step([RIGHT, STAY])
        assert rewards.tolist() == [1, 0]
        assert env.energy.tolist() == [29, 9]
        assert obs[0, :, :, 0].tolist() == [[0, 0, 0]] * 3
        assert obs[0, 1, 1].tolist() == [0, 29]
        assert obs[1, 0, 0].tolist() == [0, 0]
        assert vec.step([STAY, STAY])[1].tolist() == [0, 0]


def test_those_who_meet_on_a_pellet_share_it():
    """Whatever their order; the dead have no part in it."""
    vec, env = barren([0, 1, 2, 1, 20], food=[1, 20])
    with vec:
        env.energy[3] = 1
        env.place[3] = 8
        vec.step([STAY, STAY, STAY, STAY, STAY])  # the fourth starves, the second and fifth eat
        env.cells[1, 0] = 255
        env.place[3] = 1
        _, rewards, *_ = vec.step([RIGHT, STAY, LEFT, 999, STAY])
        assert rewards.tolist() == [1 / 3, 1 / 3, 1 / 3, 0, 0]
        assert env.energy.tolist() == [8 + 6, 28 + 6, 8 + 6, -1, 28]


def test_nobody_has_more_energy_than_a_byte():
    vec, env = barren([0], food=[0], meal=250)
    with vec:
        assert vec.step([STAY])[0][0, 1, 1].tolist() == [0, 255]
        assert vec.step([STAY])[0][0, 1, 1].tolist() == [0, 254]
        assert env.energy.tolist() == [254]


def test_the_strongest_on_a_cell_is_seen():
    vec, env = barren([0, 1, 1, 1])
    with vec:
        env.energy[1:] = 5, 9, 7
        obs, *_ = vec.step([STAY] * 4)
        assert obs[0, 1, :, 1].tolist() == [0, 9, 8]
        env.energy[2] = 1
        obs, *_ = vec.step([STAY] * 4)
        assert obs[0, 1, :, 1].tolist() == [0, 8, 5]  # the dead are not


def test_pellets_grow_again():
    with shoal.Serial(partial(Foragers, 1, size=6, vision=3, pellets=0, regrowth=3, energy=100)) as vec:
        vec.reset(seed=0)
        (env,) = vec.envs
        counts = [0]
        for _ in range(99):
            vec.step([STAY])
            counts.append(np.count_nonzero(env.cells[:, 0]))
        assert 0 < counts[1] <= 3
        assert all(after <= before + 3 for before, after in pairwise(counts))
        assert max(counts) >= 34


def test_who_starves_terminates_and_the_world_ends_with_the_last():
    vec, env = barren([0, 7, 14])
    with vec:
        env.energy[:] = 2, 3, 3
        moments = [vec.step([STAY] * 3) for _ in range(5)]
    assert [terminations.tolist() for _, _, terminations, _, _ in moments] == [
        [False, False, False],
        [True, False, False],
        [False, True, True],
        [False, False, False],  # autoreset
        [False, False, False],
    ]
    assert not any(truncations.any() for _, _, _, truncations, _ in moments)
    assert moments[3][0][:, 1, 1, 1].tolist() == [10, 10, 10]
    assert moments[1][4]["episode"]["l"].tolist() == [2, 0, 0]
    assert moments[2][4]["episode"]["l"].tolist() == [0, 3, 3]


def test_time_cuts_off_those_who_are_left():
    vec, env = barren([0, 7, 14], max_steps=3, respawn=1)
    with vec:
        env.energy[:] = 2, 3, 10
        vec.step([STAY] * 3)
        assert vec.step([STAY] * 3)[2].tolist() == [True, False, False]
        # The first would return in this step, which is the last one.
        _, _, terminations, truncations, _ = vec.step([STAY] * 3)
        assert (terminations.tolist(), truncations.tolist()) == ([False, True, False], [False, False, True])
        assert not vec.mask.any()
        assert vec.step([STAY] * 3)[0][:, 1, 1, 1].tolist() == [10, 10, 10]


def test_the_starved_return():
    vec, env = barren([0, 7], respawn=3)
    with vec:
        env.energy[:] = 1, 90
        masks, lengths = [], []
        for _ in range(14):
            obs, _, terminations, _, infos = vec.step([STAY, STAY])
            masks.append(bool(vec.mask[0]))
            if terminations[0]:
                lengths.append(int(infos["episode"]["l"][0]))
            if len(masks) == 4:
                assert obs[0, 1, 1, 1] == 10
                assert vec.mask.all()
    # Dead in the 1st step, back in the 4th; then ten steps of life.
    assert masks == [False] * 3 + [True] * 10 + [False]
    assert lengths == [1, 10]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_the_last_transition_of_an_agent_is_reported_once_and_nothing_later(backend, mode):
    creator = partial(Foragers, 64, size=24, energy=20, pellets=60, regrowth=1, max_steps=80)
    with backend(creator, 4, autoreset_mode=mode) as vec:
        vec.action_space.seed(0)
        vec.async_reset(seed=0)
        batch = vec.recv()
        finished = np.zeros(256, bool)
        terminated = truncated = begun = 0
        for _ in range(300):
            acting = batch.mask
            assert not (acting & finished).any()
            actions = np.where(acting, vec.action_space.sample(), -7)  # which is no action
            vec.send(actions)
            batch = vec.recv()
            ends = batch.terminations | batch.truncations
            assert not (ends & ~acting).any()
            assert not batch.rewards[~acting].any()
            assert np.array_equal(batch.resets, ~acting)
            finished |= ends
            terminated += int(batch.terminations.sum())
            truncated += int(batch.truncations.sum())
            anew = finished & batch.mask  # all agents of a world at once
            assert np.array_equal(anew, np.repeat(anew[::64], 64))
            begun += int(anew.sum()) // 64
            finished &= ~anew
            assert np.array_equal(finished, ~batch.mask)
        assert begun >= 8
        assert terminated > 300
        assert truncated > 0
        assert terminated + truncated == begun * 64 + int(finished.sum())


@needs_processes
@pytest.mark.parametrize(
    ("backend", "respawn"), [("one worker", 7), ("two workers", 7), ("parent steps", None)]
)
def test_workers_give_the_same(backend, respawn):
    traces = []
    creator = partial(Foragers, 100, size=32, energy=25, max_steps=120, respawn=respawn)
    for make in (shoal.Serial, BACKENDS[backend]):
        with make(creator, 4) as vec:
            vec.action_space.seed(1)
            traces.append([vec.reset(seed=1)])
            traces[-1] += [(*vec.step(vec.action_space.sample()), vec.mask) for _ in range(250)]
    assert difference(*traces) is None


def test_another_seed_is_another_world():
    with shoal.Serial(Foragers, 2) as vec:
        (first, _), (again, _), (other, _) = (vec.reset(seed=seed) for seed in (0, 0, 5))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:256], first[256:])


def test_a_snapshot_brings_the_world_back():
    with shoal.Serial(partial(Foragers, 50, size=16, energy=15, respawn=5), 2) as vec:
        vec.action_space.seed(0)
        vec.reset(seed=0)
        plan = [vec.action_space.sample() for _ in range(80)]
        for actions in plan[:30]:
            vec.step(actions)
        saved = vec.snapshot()
        futures = []
        for _ in range(2):
            futures.append([(*vec.step(actions), vec.mask) for actions in plan[30:]])
            vec.restore(saved)
    assert difference(*futures) is None


@pytest.mark.parametrize("arguments", [{}, {"respawn": 3, "max_steps": 70}, {"num_agents": 1, "vision": 9}])
def test_it_keeps_the_promises_of_an_env(arguments):
    check_env(partial(Foragers, energy=30, **arguments))


def test_observations_are_written_into_the_rows():
    with shoal.Serial(Foragers, 2, copy=False) as vec:
        obs, _ = vec.reset(seed=0)
        assert all(np.shares_memory(obs, env.observations) for env in vec.envs)
        assert vec.envs[1].observations.flags.c_contiguous  # or `take` would copy behind our back


def test_what_agents_see_is_enough_to_live_on():
    """Whoever goes for the pellets in sight eats more, and lives longer, than who walks at random."""

    def towards_food(obs, random):
        food = obs[:, 1:4, 1:4, 0].reshape(len(obs), 9)
        return np.where(food.any(1), food.argmax(1), random)

    outcomes = []
    for policy in (towards_food, lambda obs, random: random):
        with shoal.Serial(Foragers) as vec:
            vec.action_space.seed(0)
            obs, _ = vec.reset(seed=0)
            eaten = 0.0
            for _ in range(200):
                obs, rewards, *_ = vec.step(policy(obs, vec.action_space.sample()))
                eaten += rewards.sum()
            outcomes.append((eaten, vec.mask.sum()))
    (eaten, alive), (by_chance, alive_by_chance) = outcomes
    assert eaten > 1.2 * by_chance
    assert alive > alive_by_chance > 0


def test_a_picture():
    with shoal.make(Foragers, 2, backend="serial", render_mode="rgb_array") as vec:
        vec.action_space.seed(0)
        vec.reset(seed=0)
        for _ in range(60):
            vec.step(vec.action_space.sample())
        first, second = vec.render()
        assert (first.shape, first.dtype) == ((512, 512, 3), np.uint8)
        assert not np.array_equal(first, second)
        env = vec.envs[0]
        colours = first[::8, ::8].reshape(-1, 3)
        assert 0 < vec.mask[:256].sum() < 256
        assert np.array_equal(np.flatnonzero(colours[:, 0] > 100), np.unique(env.place[vec.mask[:256]]))
        assert np.array_equal((colours == 24).all(1), ~env.cells.any(1))
    with shoal.Serial(Foragers) as vec:
        vec.reset(seed=0)
        assert vec.render() == (None,)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"vision": 4}, r"vision: expected an odd number from 1 to size \(64\), got 4"),
        ({"vision": 65}, r"vision: expected an odd number from 1 to size \(64\), got 65"),
        ({"energy": 0}, "energy: expected a number from 1 to 255, got 0"),
        ({"energy": 256}, "energy: expected a number from 1 to 255, got 256"),
        ({"respawn": 0}, "respawn: expected None or a number of steps from 1, got 0"),
    ],
)
def test_arguments_that_cannot_work(arguments, says):
    with pytest.raises(ArgumentError, match=says):
        Foragers(**arguments)
