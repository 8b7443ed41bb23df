"""Advantages: the compiled ones agree with their twins in Python, and both with sums written out."""

import numpy as np
import pytest

from shoal._core import _reference

pytestmark = [pytest.mark.core, pytest.mark.twins]

_native = pytest.importorskip("shoal._core._native")
CORES = [_reference, _native]


def tables(rng, steps, columns):
    """Entries of all kinds, in any order."""
    flag = lambda p: rng.random((steps, columns)) < p  # noqa: E731
    number = lambda: rng.normal(size=(steps, columns)).astype(np.float32)  # noqa: E731
    return {
        "rewards": number(),
        "values": number(),
        "last_values": rng.normal(size=columns).astype(np.float32),
        "terminations": flag(0.1),
        "truncations": flag(0.1),
        "acts": flag(0.8),
        "carries": flag(0.9),
    }


def advantages(core, given, gamma, lam):
    found = np.full(given["rewards"].shape, np.nan, np.float32)
    core.gae(**given, gamma=gamma, lam=lam, advantages=found)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_twins_agree(seed):
    rng = np.random.default_rng(seed)
    given = tables(rng, int(rng.integers(1, 40)), int(rng.integers(1, 9)))
    ours, theirs = (advantages(core, given, 0.97, 0.9) for core in CORES)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert not ours[~given["acts"]].any()


def one(core, rewards, values, last, gamma, lam, **flags):
    """The advantages of one row."""
    steps = len(rewards)
    column = lambda name, default: np.array(flags.get(name, [default] * steps), bool)[:, None]  # noqa: E731
    given = {
        "rewards": np.array(rewards, np.float32)[:, None],
        "values": np.array(values, np.float32)[:, None],
        "last_values": np.array([last], np.float32),
        "terminations": column("terminations", False),
        "truncations": column("truncations", False),
        "acts": column("acts", True),
        "carries": column("carries", True),
    }
    return advantages(core, given, gamma, lam)[:, 0].tolist()


@pytest.mark.parametrize("core", CORES)
class TestByHand:
    """Each rule alone."""

    def test_with_lambda_one_it_is_the_discounted_sum(self, core):
        found = one(core, [1, 2, 4], [0, 0, 0], 8, 0.5, 1.0)
        assert found == [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4]

    def test_with_lambda_zero_it_is_one_step(self, core):
        assert one(core, [1, 2], [10, 20], 40, 0.5, 0.0) == [1 + 10 - 10, 2 + 20 - 20]

    def test_a_terminated_step_has_no_future(self, core):
        # The entry after it is being reset, and begins nothing.
        found = one(
            core,
            [1, 5, 0, 2],
            [0, 0, 100, 0],
            8,
            0.5,
            1.0,
            terminations=[0, 1, 0, 0],
            acts=[1, 1, 0, 1],
            carries=[1, 1, 0, 1],
        )
        assert found == [1 + 2.5, 5, 0, 2 + 4]

    def test_a_truncated_step_has_the_value_of_the_last_observation(self, core):
        found = one(
            core,
            [1, 5, 0, 2],
            [0, 0, 100, 0],
            8,
            0.5,
            1.0,
            truncations=[0, 1, 0, 0],
            acts=[1, 1, 0, 1],
            carries=[1, 1, 0, 1],
        )
        assert found == [1 + 0.5 * 55, 55, 0, 2 + 4]
        assert one(core, [5], [0], 100, 0.5, 1.0, truncations=[1]) == [55]

    @pytest.mark.parametrize(("end", "future"), [("terminations", 0), ("truncations", 0.5 * 4)])
    def test_no_advantage_goes_past_an_end(self, core, end, future):
        # The next entry acts at once, in the next episode, and has an advantage of its own: 2.
        found = one(core, [1, 2], [0, 4], 8, 0.5, 1.0, **{end: [1, 0]})
        assert found == [1 + future, 2 + 4 - 4]
        # The end comes while the agent waits.
        found = one(core, [1, 3, 2], [0, 99, 4], 8, 0.5, 1.0, **{end: [0, 1, 0]}, acts=[1, 0, 1])
        assert found == [1 + 3 + future, 0, 2 + 4 - 4]
        # The agent waits after the end: that reward is not of the action before.
        found = one(core, [1, 3, 2], [0, 4, 0], 8, 0.5, 1.0, **{end: [1, 0, 0]}, acts=[1, 0, 1])
        assert found == [1 + future, 0, 2 + 4]

    def test_of_both_the_end_counts(self, core):
        assert one(core, [5], [0], 100, 0.5, 1.0, terminations=[1], truncations=[1]) == [5]

    def test_rewards_while_waiting_are_of_the_last_action(self, core):
        # Between two of its turns others move; what it sees meanwhile is of no account.
        found = one(core, [1, 3, 2], [0, 99, 0], 8, 0.5, 1.0, acts=[1, 0, 1])
        assert found == [1 + 3 + 0.5 * 6, 0, 6]

    def test_an_end_while_waiting_is_of_the_last_action(self, core):
        found = one(
            core,
            [1, 3, 0, 2],
            [0, 99, 50, 0],
            8,
            0.5,
            1.0,
            terminations=[0, 1, 0, 0],
            acts=[1, 0, 0, 1],
            carries=[1, 1, 0, 1],
        )
        assert found == [4, 0, 0, 6]


def test_shapes_that_do_not_fit_are_refused():
    given = tables(np.random.default_rng(0), 4, 3)
    with pytest.raises(ValueError, match="gae: expected arrays of one shape"):
        advantages(_native, {**given, "last_values": np.zeros(2, np.float32)}, 1, 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        advantages(_native, {**given, "rewards": given["rewards"].astype(np.float64)}, 1, 1)
