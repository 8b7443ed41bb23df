"""Draws follow the numbers, whatever the number of levels."""

import numpy as np
import pytest
import torch

from shoal.learn.priorities import Priorities
from tests.learn.replay.batches import batch, content, play, small


@pytest.mark.parametrize("capacity", [1, 100, 5000, 300_000])
def test_a_share_falls_into_the_place_that_it_is_in(capacity):
    random = np.random.default_rng(0)
    values = random.random(capacity) * (random.random(capacity) < 0.7)
    values[capacity // 2] = 1.0
    priorities = Priorities(capacity)
    priorities.set(np.arange(capacity), values)
    shares = np.concatenate([random.random(1000), [0.0, np.nextafter(1, 0)]])
    found = priorities.draw(shares)
    assert (values[found] > 0).all()
    sums = np.cumsum(values)
    expected = np.searchsorted(sums, shares * sums[-1], "right").clip(0, capacity - 1)
    near = np.abs(sums[found] - sums[expected]) <= 1e-9 * sums[-1]
    assert ((found == expected) | near).all()
    assert priorities.total == pytest.approx(values.sum())


def test_sums_follow_every_change():
    random = np.random.default_rng(1)
    priorities = Priorities(50_000)
    values = np.zeros(50_000)
    for _ in range(50):
        places = random.integers(0, 50_000, 64)
        now = random.random(64)
        priorities.set(places, now)
        values[places] = now
    assert priorities.values == pytest.approx(values)
    assert priorities.total == pytest.approx(values.sum())
    counts = np.bincount(priorities.draw(random.random(200_000)), minlength=50_000)
    large = values > 0.5
    assert counts[large].sum() / 200_000 == pytest.approx(values[large].sum() / values.sum(), abs=0.01)
    assert counts[values == 0].sum() == 0


def test_new_transitions_have_the_largest_priority_so_far():
    replay = small(prioritized=True)
    play(replay, batch([1], begins=[0]), batch([2], 1.0), batch([3], 2.0))
    replay.set_errors(np.array([0, 1]), np.array([8.0, 2.0], np.float32), exponent=1.0)
    play(replay, batch([4], 3.0))
    values = replay._priorities.values
    assert values[:4] == pytest.approx([8, 2, 8, 0], rel=1e-5)


def test_transitions_are_drawn_by_priority_and_weighted_against_it():
    replay = small(prioritized=True, seed=4)
    play(replay, batch([1], begins=[0]), *(batch([number], 1.0) for number in range(2, 6)))
    errors = np.array([0.1, 1.0, 2.0, 4.0], np.float32)
    replay.set_errors(np.arange(4), errors, exponent=0.6)
    found = replay.sample(40_000, gamma=0.9, correction=0.4)
    chances = (errors + 1e-6) ** 0.6
    chances /= chances.sum()
    counts = np.bincount(found.places, minlength=4) / 40_000
    assert counts == pytest.approx(chances, abs=0.01)
    weights = (4 * chances) ** -0.4
    expected = (weights / weights.max())[found.places]
    assert torch.allclose(found.weights, torch.from_numpy(expected.astype(np.float32)), rtol=1e-5)


def test_what_has_no_outcome_is_never_drawn():
    replay = small(capacity=6, prioritized=True)
    play(replay, batch([1], begins=[0]), *(batch([number], 1.0) for number in range(2, 20)))
    play(replay, batch([20], 1.0, cuts=[0]), batch([21], begins=[0]))
    assert [row[0] for row in content(replay)] == [16, 17, 18, 19]
