"""Copies of objects: equal, of the same types, and nothing shared that can change."""

from collections import namedtuple
from copy import deepcopy

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance

from shoal.rows.copies import copied, copied_column
from shoal.testing import OBJECT_SPACES
from shoal.testing.contract import require_equal

pytestmark = pytest.mark.core

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("space", OBJECT_SPACES, ids=str)
def test_samples_are_copied_as_deepcopy_does(space):
    for _ in range(5):
        value = space.sample()
        require_equal(copied(value), deepcopy(value), "a copy")


def test_nothing_is_shared():
    value = {
        "list": [1, [2]],
        "point": Point([1], 2),
        "array": np.zeros(2),
        "objects": np.array([[1], None], object),
    }
    value["graph"] = GraphInstance(np.zeros((1, 2)), None, None)
    copy = copied(value)
    copy["list"][1].append(3)
    copy["point"].x.append(3)
    copy["array"][:] = 1
    copy["objects"][0].append(3)
    copy["graph"].nodes[:] = 1
    assert value["list"] == [1, [2]]
    assert type(copy["point"]) is Point
    assert value["point"].x == [1]
    assert (value["array"] == 0).all()
    assert value["objects"][0] == [1]
    assert (value["graph"].nodes == 0).all()


def test_what_contains_itself():
    value = [1]
    value.append(value)
    copy = copied(value)
    assert copy is not value
    assert copy[1] is copy


def test_a_column_keeps_arrays_whole():
    column = np.full((2, 2), None, object)
    column[0, 0], column[0, 1], column[1, 0] = np.zeros(3), np.array(5), (1, 2)
    copy = copied_column(column[:, 0])
    assert copy[0].shape == (3,)
    assert copy[0] is not column[0, 0]
    assert copy[1] == (1, 2)
    assert copied_column(column)[0, 1].shape == ()
