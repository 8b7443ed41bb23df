# The scores that the probes state (of chance, of the best constant action and of a perfect policy), each
# measured over thousands of episodes. Tolerances are five standard errors of the mean: nothing where all
# episodes have the same return. Seeds are fixed, so what has passed once passes again.

from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector.utils import iterate

import shoal
from shoal import _core
from shoal.envs import probes
from shoal.registry import OWN
from shoal.testing import check_env

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="without the core, nothing is compiled")

PROBES = {
    cls.__name__: cls
    for cls in (
        probes.Bandit,
        probes.Memory,
        probes.Password,
        probes.Stochastic,
        probes.Squared,
        probes.Continuous,
        probes.Agents,
        probes.Nested,
    )
}
LONGEST = 16  # steps of an episode
EPISODES = 30_000
STANDARD_ERRORS = 5.0

each_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)


def first_episodes(probe, policy, episodes=EPISODES, seed=0, **options):
    """The return of each row's first episode, by (policy(obs, random) -> actions)."""
    random = np.random.default_rng(seed)
    with shoal.make(probe, num_envs=episodes, **options) as vec:
        obs, _ = vec.reset(seed=seed)
        returns, going = np.zeros(vec.num_rows), np.ones(vec.num_rows, np.bool_)
        for _ in range(LONGEST):
            obs, rewards, terminations, truncations, _ = vec.step(policy(obs, random))
            returns += np.where(going, rewards, 0.0)
            going &= ~(terminations | truncations)
    assert not going.any(), "an episode is longer than it may be"
    return returns


def assert_mean(returns, stated):
    tolerance = STANDARD_ERRORS * returns.std() / np.sqrt(len(returns)) + 1e-6
    assert abs(returns.mean() - stated) <= tolerance, (returns.mean(), stated, tolerance)


# -- policies --------------------------------------------------------------------------------------------


def rows_of(obs):
    """How many rows an observation has, whatever its structure."""
    while not isinstance(obs, np.ndarray):
        obs = next(iter(obs.values())) if isinstance(obs, dict) else obs[0]
    return len(obs)


def uniform(space):
    if isinstance(space, Discrete):
        return lambda obs, random: random.integers(space.n, size=rows_of(obs))
    if isinstance(space, MultiDiscrete):
        return lambda obs, random: random.integers(space.nvec, size=(rows_of(obs), len(space.nvec)))
    assert isinstance(space, Box)
    low, high, shape = space.low, space.high, space.shape
    return lambda obs, random: random.uniform(low, high, (rows_of(obs), *shape)).astype(np.float32)


def constants(space):
    """Every action, or a grid of them."""
    if isinstance(space, Discrete):
        return np.arange(space.n)
    if isinstance(space, MultiDiscrete):
        return np.array(list(np.ndindex(*space.nvec)))
    return np.linspace(space.low, space.high, 17, dtype=np.float32)


def constant(action):
    return lambda obs, random: np.broadcast_to(action, (rows_of(obs), *np.shape(action))).copy()


def perfect_bandit():
    return constant(probes.Bandit.parameters["best"])


def perfect_memory():
    cues = []

    def act(obs, random):
        shown = obs[:, :4]
        if shown.any():  # an episode begins, and in all envs at once
            cues[:] = [shown.argmax(1)]
        return cues[0]

    return act


def perfect_password():
    digits = probes.Password.constants["password"]
    return lambda obs, random: digits[obs.argmax(1)]


def perfect_stochastic():
    return lambda obs, random: (random.random(rows_of(obs)) < 5 / 6).astype(np.int64)


def perfect_squared():
    def act(obs, random):
        flat = obs.reshape(len(obs), -1)
        row, column = np.divmod(flat.argmin(1), 5)
        to_row, to_column = np.divmod(flat.argmax(1), 5)
        up_or_down, aside = np.where(to_row < row, 0, 2), np.where(to_column > column, 1, 3)
        return np.where(to_row == row, aside, up_or_down)

    return act


def perfect_continuous():
    return lambda obs, random: obs


def perfect_agents():
    return lambda obs, random: 3 * obs[:, :3].argmax(1) + obs[:, 3:].argmax(1)


def perfect_nested():
    def act(obs, random):
        inner = obs["box"][1]
        return np.stack([inner["key"], inner["lamps"][:, 2], inner["level"][:, 0] > 0], -1).astype(np.int64)

    return act


PERFECT = {
    "Bandit": perfect_bandit,
    "Memory": perfect_memory,
    "Password": perfect_password,
    "Stochastic": perfect_stochastic,
    "Squared": perfect_squared,
    "Continuous": perfect_continuous,
    "Agents": perfect_agents,
    "Nested": perfect_nested,
}


@cache
def action_space(probe):
    with shoal.make(probe, num_envs=1) as vec:
        return vec.single_action_space


# -- the three scores ------------------------------------------------------------------------------------


@each_probe
def test_chance_is_as_stated(probe):
    assert_mean(first_episodes(probe, uniform(action_space(probe))), probe.CHANCE)


@each_probe
def test_the_best_constant_is_as_stated(probe):
    means = {}
    for action in constants(action_space(probe)):
        returns = first_episodes(probe, constant(action), episodes=EPISODES // 3)
        error = STANDARD_ERRORS * returns.std() / np.sqrt(len(returns)) + 1e-6
        assert returns.mean() <= probe.CONSTANT + error, action
        means[str(action)] = returns.mean() - probe.CONSTANT, error
    nearest, error = max(means.values())
    assert nearest >= -error, means


@each_probe
def test_perfect_play_is_as_stated(probe):
    returns = first_episodes(probe, PERFECT[probe.__name__]())
    assert_mean(returns, probe.PERFECT)
    if probe not in (probes.Bandit, probes.Stochastic):  # where luck has no part in it
        assert returns == pytest.approx(np.full_like(returns, probe.PERFECT))


@each_probe
def test_only_perfect_play_is_near_to_perfect(probe):
    assert probe.CHANCE <= 0.6 * probe.PERFECT
    if probe is probes.Bandit:
        assert probe.CONSTANT == probe.PERFECT  # the answer is a constant, and this is no secret
    else:
        assert probe.CONSTANT <= 0.6 * probe.PERFECT


def test_a_bandit_has_its_best_arm_where_it_is_told():
    best = np.arange(8).repeat(1000)  # of each env
    for arm in range(8):
        returns = first_episodes(probes.Bandit, constant(arm), len(best), env_kwargs={"best": best})
        assert_mean(returns[best == arm], 1.0)
        assert_mean(returns[best != arm], 0.1)


def test_without_memory_the_cue_cannot_be_known():
    """Whatever it does, a policy that sees the last observation only sees the same in all envs."""
    with shoal.make(probes.Memory, num_envs=100) as vec:
        obs, _ = vec.reset(seed=0)
        assert len(np.unique(obs, axis=0)) == 4
        for step in range(4):
            obs, *_ = vec.step(vec.action_space.sample())
            assert (obs == [0, 0, 0, 0, step == 3]).all()
        *_, terminations, _, _ = vec.step(vec.action_space.sample())
        assert terminations.all()


@pytest.mark.parametrize(
    ("probability", "share"), [(0.781, 0.95), (0.878, 0.95), (0.7, 0.753), (0.95, 0.578)]
)
def test_a_stochastic_policy_must_be_about_right(probability, share):
    def act(obs, random):
        return (random.random(len(obs)) < probability).astype(np.int64)

    assert_mean(first_episodes(probes.Stochastic, act), share * probes.Stochastic.PERFECT)


@pytest.mark.parametrize("who", [0, 1, 2])
def test_agents_are_rewarded_each_for_its_own_action(who):
    """One of them plays well and the others do not."""
    perfect = perfect_agents()

    def act(obs, random):
        return np.where(obs[:, who] == 1, perfect(obs, random), 3 * ((who + 1) % 3))

    returns = first_episodes(probes.Agents, act, episodes=500).reshape(-1, 3)
    assert returns[:, who] == pytest.approx(np.ones(500))
    assert returns[:, (who + 1) % 3].mean() == pytest.approx(1 / 3, abs=0.05)
    assert not returns[:, (who + 2) % 3].any()


def test_half_an_observation_is_not_enough_for_agents():
    only_identity = first_episodes(probes.Agents, lambda obs, random: 3 * obs[:, :3].argmax(1))
    only_signal = first_episodes(probes.Agents, lambda obs, random: obs[:, 3:].argmax(1))
    assert_mean(only_identity, 1 / 3)
    assert_mean(only_signal, 1 / 3)


def test_agents_leave_one_after_another():
    with shoal.make(probes.Agents, num_envs=2) as vec:
        vec.reset(seed=0)
        masks = []
        for _ in range(8):
            masks.append(vec.mask[:3].astype(int).tolist())
            vec.step(np.zeros(6, np.int64))
    assert masks == [[1, 1, 1]] * 4 + [[0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]]


# -- Squared, by its probabilities -----------------------------------------------------------------------


def expected_return(moves, radius=2, targets=4):
    """Of a policy that makes these moves, each as often, wherever it is."""
    side = 2 * radius
    cells = [(row, column) for row in range(side + 1) for column in range(side + 1)]
    rim = [cell for cell in cells if max(abs(cell[0] - radius), abs(cell[1] - radius)) == radius]
    middle = radius, radius

    def distance(place, target):
        return abs(place[0] - target[0]) + abs(place[1] - target[1])

    @cache
    def anew(left, steps):
        return sum(value(middle, target, left, steps) for target in rim) / len(rim) if left else 0.0

    @cache
    def value(place, target, left, steps):
        if steps == 0:
            return 0.0
        total = 0.0
        for move in moves:
            there = tuple(min(max(x + by, 0), side) for x, by in zip(place, move, strict=True))
            closer = distance(place, target) - distance(there, target)
            total += closer / (distance(middle, target) * targets)
            total += anew(left - 1, steps - 1) if there == target else value(there, target, left, steps - 1)
        return total / len(moves)

    return anew(targets, side * targets)


def test_scores_of_squared_follow_from_its_rules():
    moves = list(zip(probes.ROWS.tolist(), probes.COLUMNS.tolist(), strict=True))
    assert expected_return(moves) == pytest.approx(probes.Squared.CHANCE, abs=1e-5)
    assert max(expected_return([move]) for move in moves) == pytest.approx(probes.Squared.CONSTANT, abs=1e-5)


def test_targets_of_squared_are_all_over_the_rim():
    with shoal.make(probes.Squared, num_envs=4000) as vec:
        obs, _ = vec.reset(seed=0)
    counts = (obs == 1).sum(0)
    assert counts[1:4, 1:4].sum() == 0
    rim = np.delete(counts.reshape(-1), [6, 7, 8, 11, 12, 13, 16, 17, 18])
    assert rim.min() > 250 - 5 * np.sqrt(250)
    assert rim.max() < 250 + 5 * np.sqrt(250)
    assert rim.sum() == 4000


# -- as envs ---------------------------------------------------------------------------------------------


@each_probe
def test_observations_are_in_their_space_and_episodes_end(probe):
    with shoal.make(probe, num_envs=50, episode_stats=True) as vec:
        obs, _ = vec.reset(seed=3)
        assert obs in vec.observation_space
        vec.action_space.seed(3)
        ends = np.zeros(vec.num_rows, np.int64)
        for _ in range(4 * (LONGEST + 1)):
            obs, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())
            assert obs in vec.observation_space
            assert all(row in vec.single_observation_space for row in iterate(vec.observation_space, obs))
            assert np.isfinite(rewards).all()
            done = terminations | truncations
            ends += done
            if done.any():
                assert (infos["episode"]["l"][done] <= LONGEST).all()
        assert (ends >= 3).all()


@each_probe
def test_uncompiled_it_has_the_same_numbers(probe):
    runs = []
    for options in ({"num_workers": 1}, {"num_workers": 2}, {"debug": True}):
        with shoal.make(probe, num_envs=5, flat=True, **options) as vec:
            vec.action_space.seed(1)
            run = [(vec.reset(seed=1)[0],)]
            run += [vec.step(vec.action_space.sample())[:4] for _ in range(2 * LONGEST)]
            runs.append(run)
    compiled, on_two_threads, in_python = runs
    for others in (on_two_threads, in_python):
        for ours, theirs in zip(compiled, others, strict=True):
            for array, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("name", [name for name in OWN if name.startswith("shoal/Probe")])
def test_ids_lead_to_the_probes(name):
    probe = PROBES[name.removeprefix("shoal/Probe").removesuffix("-v0")]
    with shoal.make(name, num_envs=2) as vec:
        assert isinstance(vec, shoal.Native)
        assert vec.get_attr("PERFECT") == (probe.PERFECT,) * 2
    if probe is probes.Agents:
        with pytest.raises(shoal.errors.ArgumentError, match="has 3 agents, and Gymnasium's envs have one"):
            gymnasium.make(name)
        return
    with gymnasium.make(name) as env:
        obs, _ = env.reset(seed=0)
        assert obs in env.observation_space
        env.step(env.action_space.sample())


# Slow, but for the one with the most indices: each needs a checked kernel. The tests above cover what it asks
# of the others: observations in their space, finite rewards, the same numbers for the same seed and
# uncompiled, where a wrong index raises.
@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(probe, id=name, marks=() if probe is probes.Squared else pytest.mark.slow)
        for name, probe in PROBES.items()
    ],
)
def test_it_keeps_the_contract_of_envs(probe):
    check_env(probe)
