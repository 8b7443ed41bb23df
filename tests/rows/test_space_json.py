"""Spaces as JSON."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SpaceError
from shoal.rows.flat_actions import MixedBox
from shoal.rows.layout import layout
from shoal.rows.space_json import space_from_json, space_to_json
from shoal.testing import SPACES, random_space


def again(space):
    return space_from_json(json.loads(json.dumps(space_to_json(space))))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back(space):
    assert again(space) == space
    assert layout(again(space)).fields == layout(space).fields


@given(st.integers(0, 2**32 - 1))
def test_any_space_comes_back(seed):
    space = random_space(np.random.default_rng(seed))
    assert again(space) == space


def test_bounds_come_back_bit_for_bit():
    low = np.array([-np.inf, -1 / 3, 0.1], np.float32)
    space = spaces.Box(low, np.array([np.inf, 7e30, 0.2], np.float32))
    assert again(space).low.tobytes() == space.low.tobytes()
    assert again(space).high.tobytes() == space.high.tobytes()
    large = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert len(json.dumps(space_to_json(large))) < 300


def test_whole_entries_come_back():
    space = MixedBox(np.array([0.0, -1.0]), np.array([4.0, 1.0]), np.array([True, False]))
    assert again(space).whole.tolist() == [True, False]
    assert type(again(space)) is MixedBox


def test_a_space_without_a_size_is_refused():
    with pytest.raises(SpaceError, match="expected a space that has a layout"):
        space_to_json(spaces.Sequence(spaces.Discrete(3)))


@pytest.mark.parametrize(
    "described",
    [
        *(None, 3, {}, {"kind": "nothing"}, {"kind": "discrete"}),
        {"kind": "box", "low": {"dtype": "O", "shape": [1], "values": [0]}, "high": 0},
        {"kind": "box", "low": {"dtype": "<f4", "shape": [2], "values": [0, 1, 2]}, "high": 0},
    ],
)
def test_anything_else_is_refused(described):
    with pytest.raises((KeyError, TypeError, ValueError, AssertionError), match=r"."):
        space_from_json(described)
