"""Sets of discrete actions, and the mirror image of each."""

import numpy as np
import pytest

from shoal.errors import ArgumentError
from shoal.hockey import fine_actions
from shoal.hockey.actions import (
    BASIC,
    COMBINED_20,
    COMBINED_24,
    SETS,
    mirror_actions,
    mirror_observations,
    mirrored_places,
)

EVERY_SET = {**SETS, "fine-2": fine_actions(2), "fine-3": fine_actions(3), "fine-6": fine_actions(6)}


def test_basic_actions_are_those_of_the_course_in_its_order():
    assert [list(each) for each in BASIC] == [
        [0, 0, 0, 0],
        *([-1, 0, 0, 0], [1, 0, 0, 0]),
        *([0, -1, 0, 0], [0, 1, 0, 0]),
        *([0, 0, -1, 0], [0, 0, 1, 0]),
        [0, 0, 0, 1],
    ]


@pytest.mark.parametrize("name", EVERY_SET)
def test_a_set_has_different_actions_within_the_bounds(name):
    actions = EVERY_SET[name]
    assert len(set(actions)) == len(actions)
    assert np.abs(actions).max() == 1
    assert actions[0] == (0, 0, 0, 0)
    assert sum(each[3] == 1 for each in actions) == 1  # shoot


def test_sizes_of_sets():
    assert {name: len(actions) for name, actions in EVERY_SET.items()} == {
        "basic": 8,
        "combined-20": 20,
        "combined-24": 24,
        "fine-2": 8,
        "fine-3": 14,
        "fine-6": 32,
    }
    assert COMBINED_24[:20] == COMBINED_20
    assert COMBINED_20[:8] == BASIC == fine_actions(2)


def test_fine_actions_have_several_strengths():
    # As in the course's project: nothing; -x, +x, -y, +y, -turn, +turn, weak ones first; shoot.
    actions = fine_actions(3)
    assert actions[1:5] == ((-0.5, 0, 0, 0), (-1, 0, 0, 0), (0.5, 0, 0, 0), (1, 0, 0, 0))
    assert actions[5:7] == ((0, -0.5, 0, 0), (0, -1, 0, 0))
    assert actions[11:] == ((0, 0, 0.5, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    assert fine_actions(5)[1:5] == tuple((-strength, 0, 0, 0) for strength in (0.25, 0.5, 0.75, 1))


@pytest.mark.parametrize("fineness", [1, 0, -3])
def test_too_few_strengths(fineness):
    with pytest.raises(ArgumentError, match=f"fineness: expected at least 2, got {fineness}"):
        fine_actions(fineness)


@pytest.mark.parametrize("name", EVERY_SET)
def test_every_action_has_its_mirror_image_in_the_set(name):
    actions = np.array(EVERY_SET[name], np.float32)
    places = mirrored_places(EVERY_SET[name])
    np.testing.assert_array_equal(actions[places], actions * [1, -1, -1, 1])
    assert places[places].tolist() == list(range(len(actions)))


def test_mirrored_places_of_basic_actions():
    # Up and down change places, and left and right turns; the defect to avoid changed left and right too.
    assert mirrored_places(BASIC).tolist() == [0, 1, 2, 4, 3, 6, 5, 7]


def test_a_set_without_mirror_images():
    with pytest.raises(ArgumentError, match="actions: expected a set with the mirror image of each, got"):
        mirrored_places(((0, 0, 0, 0), (0, 1, 0, 0)))


def test_mirroring_twice_changes_nothing():
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(9, 18)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_array_equal(mirror_observations(mirror_observations(obs)), obs)
    np.testing.assert_array_equal(mirror_actions(mirror_actions(actions)), actions)
    assert (mirror_observations(obs) != obs).any(0).nonzero()[0].tolist() == [
        1,
        2,
        4,
        5,
        7,
        8,
        10,
        11,
        13,
        15,
    ]
    assert (mirror_actions(actions) != actions).any(0).nonzero()[0].tolist() == [1, 2]
