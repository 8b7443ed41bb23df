"""One stream per env: the same in Python and compiled, and random enough."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import ArgumentError
from shoal.native.rng import Rng, draw, fresh_keys, keys_of

needs_core = pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core")

COUNT = 3 << 30


class Dice(shoal.NativeEnv):
    """Shows draws of every kind, some of which have no number to choose from; or ends at once.

    Action 1 draws one integer below COUNT.
    """

    observation_space = Box(-np.inf, np.inf, (9,), np.float64)
    action_space = Discrete(2)
    parameters = {"ends": False}

    @staticmethod
    def reset(rng, obs):
        obs[:] = 0.0
        obs[0] = rng.uniform()

    @staticmethod
    def step(action, rng, obs, config):
        if config.ends:
            return 0.0, True
        if action == 1:
            obs[0] = rng.integers(COUNT)
            return 0.0, False
        obs[0] = rng.uniform()
        obs[1] = rng.uniform(-3.0, 5.0)
        obs[2] = rng.normal()
        obs[3] = rng.normal(10.0, 0.5)
        obs[4] = rng.integers(6)
        obs[5] = rng.integers(-4, 3)
        obs[6] = rng.integers(0)
        obs[7] = rng.integers(3, 1)
        obs[8] = rng.integers(2, 2)
        return 0.0, False


EXACT = [0, 1, 4, 5, 6, 7, 8]  # columns without a normal number, which needs cos and log


def draws(steps, num_envs=50, **options):
    with shoal.make(Dice, num_envs, **options) as vec:
        vec.reset(seed=7)
        actions = np.zeros(num_envs, np.int64)
        return np.stack([vec.step(actions)[0] for _ in range(steps)])


@needs_core
def test_python_and_compiled_code_draw_the_same():
    compiled, plain = draws(20), draws(20, debug=True)
    assert np.array_equal(compiled[..., EXACT], plain[..., EXACT])
    assert np.allclose(compiled, plain, rtol=0, atol=1e-12)  # of two libraries


@needs_core
def test_draws_are_spread_as_they_should_be():
    found = draws(2000)[..., :6].reshape(-1, 6)
    count = len(found)
    uniform, wide, normal, shifted, dice, signed = found.T
    assert abs(uniform.mean() - 0.5) < 5 * 0.289 / np.sqrt(count)
    assert (uniform >= 0.0).all()
    assert (uniform < 1.0).all()
    assert (wide >= -3.0).all()
    assert (wide < 5.0).all()
    assert abs(normal.mean()) < 5 / np.sqrt(count)
    assert abs(normal.std() - 1) < 5 / np.sqrt(2 * count)
    assert abs(shifted.mean() - 10) < 2.5 / np.sqrt(count)
    assert abs(shifted.std() - 0.5) < 2.5 / np.sqrt(2 * count)
    for numbers, expected in ((dice, range(6)), (signed, range(-4, 3))):
        values, counts = np.unique(numbers, return_counts=True)
        assert values.tolist() == list(expected)
        squared = ((counts - count / len(values)) ** 2 / (count / len(values))).sum()
        assert squared < 30  # of 5 or 6 degrees of freedom: once in tens of thousands


def test_neighbouring_streams_and_places_have_nothing_in_common():
    keys, _ = keys_of(range(1000))
    first = np.array([draw(int(key), 0) for key in keys], np.uint64)
    second = np.array([draw(int(key), 1) for key in keys], np.uint64)
    for numbers in (first, second, first ^ second, first[1:] ^ first[:-1]):
        bits = np.unpackbits(numbers.view(np.uint8)).reshape(-1, 64)
        assert (abs(bits.mean(0) - 0.5) < 5 * 0.5 / np.sqrt(len(bits))).all()


def test_every_seed_has_a_key_of_its_own():
    seeds = [0, 1, 2**31, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**200]
    keys, given = keys_of(seeds)
    assert len(set(keys.tolist())) == len(seeds)
    assert given.all()
    assert keys_of([None, 5])[1].tolist() == [False, True]
    assert len(set(fresh_keys(100).tolist())) == 100
    with pytest.raises(ArgumentError, match="seed: expected integers from 0 on, got -1"):
        keys_of([-1])


def test_a_stream_goes_on_where_its_counter_stands():
    place = np.array([3, 0], np.uint64)
    rng = Rng(place)
    first = [rng.uniform() for _ in range(5)]
    assert place[1] == 5
    place[1] = 2
    assert rng.uniform() == first[2]


@needs_core
def test_an_autoreset_does_not_repeat_a_seed():
    with shoal.make(Dice, 4, env_kwargs={"ends": True}, autoreset_mode="SameStep") as vec:
        begun = [vec.reset(seed=1)[0], *(vec.step(np.zeros(4, np.int64))[0] for _ in range(20))]
    assert len(np.unique(np.concatenate(begun)[:, 0])) == 84


@pytest.mark.parametrize("debug", [True, pytest.param(False, marks=needs_core)])
def test_of_no_numbers_the_lowest_is_drawn(debug):
    assert draws(1, num_envs=1, debug=debug)[0, :, 6:].tolist() == [[0, 3, 2]]


@pytest.mark.parametrize("debug", [True, pytest.param(False, marks=needs_core)])
def test_a_draw_that_would_make_a_number_more_likely_is_drawn_again(debug):
    """There are four words of 32 bits for every three numbers: each fourth word must not count."""
    keys, _ = keys_of(range(7, 57))
    words = [[draw(int(key), place) >> 32 for place in range(1, 20)] for key in keys]
    counted = [next(word for word in own if word % 4) for own in words]
    assert {own[0] % 4 for own in words} == {0, 1, 2, 3}  # some first words do not count
    with shoal.make(Dice, len(keys), debug=debug) as vec:
        vec.reset(seed=7)  # takes the word before these
        found = vec.step(np.ones(len(keys), np.int64))[0][:, 0]
    assert found.tolist() == [word // 4 * 3 + word % 4 - 1 for word in counted]
