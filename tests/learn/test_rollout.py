"""The experience buffer: what belongs to an action, and what goes on from column to column."""

from types import SimpleNamespace

import numpy as np
import pytest

from shoal.learn.rollout import discounted_sums, without_unfinished

YES, NO = True, False


@pytest.mark.parametrize(
    ("acts", "carries", "ends", "learnt"),
    [
        # It acts last: all is known but what the next observation is worth.
        ([YES, NO, YES], [YES, YES, YES], [NO, NO, NO], [YES, NO, YES]),
        # It waits at the end: what it is paid for its last action comes in the next column too.
        ([YES, NO, YES, NO, NO], [YES] * 5, [NO] * 5, [YES, NO, NO, NO, NO]),
        # ... unless its episode ended while it waited, or by the action.
        ([YES, NO, NO], [YES] * 3, [NO, YES, NO], [YES, NO, NO]),
        ([YES, NO, NO], [YES] * 3, [YES, NO, NO], [YES, NO, NO]),
        # It was being reset, and waits since: the action before belongs to another episode.
        ([YES, NO, NO], [YES, NO, YES], [NO, NO, NO], [YES, NO, NO]),
        # It waits all the time.
        ([NO, NO], [YES, YES], [NO, NO], [NO, NO]),
    ],
)
def test_actions_that_are_paid_for_later_are_not_learnt_from(acts, carries, ends, learnt):
    acts, carries, ends = (np.array([column, column]).T.copy() for column in (acts, carries, ends))
    acts[:, 1], carries[:, 1] = True, True  # a row that always acts
    before = acts.copy(), carries.copy()
    found, _ = without_unfinished(acts, carries, ends)
    assert found[:, 0].tolist() == learnt
    assert found[:, 1].all()
    assert (acts == before[0]).all()
    assert (carries == before[1]).all()


def test_discounted_sums_go_on_from_column_to_column_of_a_row():
    ends = np.zeros((2, 3), np.bool_)
    ends[1, 1] = True
    experience = SimpleNamespace(
        rewards=np.array([[1, 1, 1], [1, 1, 1]], np.float32),
        terminations=ends,
        truncations=np.zeros_like(ends),
        rows=np.array([1, 0, 1]),  # row 1 twice, the second time later
    )
    sums = np.array([8, 4], np.float32)
    found = discounted_sums(experience, 0.5, sums)
    assert found.T.tolist() == [[3, 2.5], [5, 3.5], [2.25, 2.125]]
    assert sums.tolist() == [0, 2.125]
