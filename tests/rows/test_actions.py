import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal.testing import SampleEnv

pytestmark = pytest.mark.core


def test_flat_actions_of_integers_that_have_no_common_type():
    space = sp.Tuple((sp.Box(0, 9, (1,), np.uint64), sp.Box(-9, 9, (1,), np.int64)))
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space, length=99), flat=True) as vec:
        vec.reset(seed=0)
        for _ in range(10):
            vec.step(vec.action_space.sample())
        received = vec.get_attr("actions")[0]
        assert len(received) == 10
        assert all(action in space for action in received)


def test_an_env_may_keep_its_actions():
    class Keeper(gymnasium.Env):
        observation_space = sp.Box(-1, 1, (2,))
        action_space = sp.Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            self.kept = []
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.kept.append(action)
            return action, 0.0, False, False, {}

    with shoal.Serial(Keeper, 2) as vec:
        vec.reset()
        sent = [np.full((2, 2), x, np.float32) for x in (0.1, 0.2, 0.3)]
        for actions in sent:
            vec.step(actions)
        kept = vec.get_attr("kept")
        np.testing.assert_array_equal(np.array(kept[1]), np.array(sent)[:, 1])


def test_discrete_actions_are_numpy_integers():
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), sp.Discrete(3)), 2) as vec:
        vec.reset(seed=0)
        vec.step([1, 2])
        vec.step(np.array([0, 1], np.uint8))
        assert [type(a) for a in vec.get_attr("actions")[0]] == [np.int64, np.int64]


@pytest.mark.parametrize("flat", [False, True], ids=["as it is", "flat"])
@pytest.mark.parametrize(
    ("space", "wrong", "text"),
    [
        (sp.Discrete(3), 3, "env 1: expected integers from 0 to 2, got 3"),
        (sp.Discrete(3), -1, "env 1: expected integers from 0 to 2, got -1"),
        (sp.MultiDiscrete([2, 3]), [1, 3], r"env 1: expected integers from \[0 0\] to \[1 2\], got \[1 3\]"),
        (sp.Box(-1, 1, (2,)), [0, np.nan], r"env 1: expected numbers, got \[ 0. nan\]"),
    ],
    ids=["above", "below", "of several", "no number"],
)
def test_arrays_with_a_wrong_action_are_refused_before_any_env_moves(space, wrong, text, flat):
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 3, flat=flat) as vec:
        vec.reset(seed=0)
        good = np.zeros((3, *space.shape), space.dtype)
        vec.step(good)
        bad = good.copy()
        bad[1] = wrong
        with pytest.raises(ValueError, match=text):
            vec.step(bad)
        vec.step(good)
        assert [len(actions) for actions in vec.get_attr("actions")] == [2, 2, 2]
        assert all(np.array_equal(each, good[0]) for actions in vec.get_attr("actions") for each in actions)


@pytest.mark.parametrize(
    ("space", "flat"),
    [
        (sp.Discrete(3, start=4), sp.Discrete(3)),
        (sp.Box(-1, 1, (2, 2)), sp.Box(-1, 1, (2, 2))),
        (sp.MultiDiscrete([3, 4]), sp.MultiDiscrete([3, 4])),
        (sp.MultiBinary(3), sp.MultiDiscrete([2, 2, 2])),
        (sp.Dict({"a": sp.Discrete(3, start=-1), "b": sp.MultiBinary(2)}), sp.MultiDiscrete([3, 2, 2])),
        (
            sp.Tuple((sp.Box(-1, 1, (2,)), sp.Box(0, 5, ()))),
            sp.Box(np.float32([-1, -1, 0]), np.float32([1, 1, 5])),
        ),
        (sp.OneOf([sp.Discrete(3), sp.Discrete(2)]), sp.MultiDiscrete([2, 3, 2])),
    ],
    ids=str,
)
def test_flat_action_spaces(space, flat):
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), flat=True) as vec:
        assert vec.single_action_space == flat


def test_flat_actions_count_from_zero():
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), sp.Discrete(3, start=4)), 2, flat=True) as vec:
        vec.reset()
        vec.step([0, 2])
        assert vec.get_attr("actions") == ([4], [6])
        with pytest.raises(ValueError, match=r"expected integers from 4 to 6, got 7"):
            vec.step([0, 3])


def test_mixed_flat_actions_check_their_integers():
    space = sp.Dict({"force": sp.Box(-1, 1, (2,)), "move": sp.Discrete(3)})
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 2, flat=True) as vec:
        vec.reset()
        assert vec.single_action_space.shape == (3,)
        vec.step(np.array([[0.5, -0.5, 2], [0, 0, 0]], np.float32))
        assert vec.get_attr("actions")[0][0]["move"] == 2
        for wrong, text in [
            (1.5, "expected integers, got 1.5"),
            (3, "from 0 to 2, got 3"),
            (np.nan, "got nan"),
        ]:
            with pytest.raises(ValueError, match=rf'action\["move"\].*{text}'):
                vec.step([[0, 0, wrong], [0, 0, 0]])
        with pytest.raises(ValueError, match=r'action\["force"\] of env 1: expected numbers'):
            vec.step([[0, 0, 0], [np.nan, 0, 0]])
        with pytest.raises(ValueError, match=r"action: expected shape \(2, 3\)"):
            vec.step([[0, 0], [0, 0]])
        assert len(vec.get_attr("actions")[0]) == 1
        for _ in range(50):
            sample = vec.action_space.sample()
            assert sample in vec.action_space
            vec.step(sample)


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ({"a": [0, 0]}, r"expected a dict with the keys \['a', 'b'\], got the keys \['a'\]"),
        ([{"a": 0}, {"a": 0}], r"expected a dict with the keys \['a', 'b'\], got a list"),
        ({"a": [0, 0], "b": ["x"]}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": "xy"}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": 3}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": ["x", "yyyy"]}, r'action\["b"\] of env 1: expected at most 3 characters'),
    ],
)
def test_structured_actions_that_do_not_fit(actions, text):
    space = sp.Dict({"a": sp.Discrete(2), "b": sp.Text(3)})
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 2) as vec:
        vec.reset()
        with pytest.raises(shoal.errors.ActionError, match=text):
            vec.step(actions)


def test_missing_parts_are_lookup_errors_as_in_gymnasium():
    for space, actions, error in (
        (sp.Dict({"a": sp.Discrete(2), "b": sp.Discrete(2)}), {"a": [0, 0]}, KeyError),
        (sp.Tuple((sp.Discrete(2), sp.Discrete(2))), ([0, 0],), IndexError),
    ):
        with shoal.Serial(lambda space=space: SampleEnv(sp.Discrete(2), space), 2) as vec:
            vec.reset()
            with pytest.raises(error, match=r"^action: expected a .* no env has moved"):
                vec.step(actions)


def test_tuple_actions_that_do_not_fit():
    space = sp.Tuple((sp.Discrete(2), sp.Discrete(2)))
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 3) as vec:
        vec.reset()
        with pytest.raises(shoal.errors.ActionError, match="expected a tuple of 2 batches"):
            vec.step([(0, 0), (0, 0), (0, 0)])


def test_flat_choices_that_are_not_taken_are_zero():
    class Chooser(shoal.Env):
        observation_space = sp.Discrete(2)
        action_space = sp.OneOf([sp.Discrete(3), sp.Box(1, 2, (2,))])

        def reset(self, seed=None, options=None):
            self.observations[:] = 0

        def step(self, actions):
            index, (number, box) = actions
            return {"index": int(index[0]), "number": int(number[0]), "box": box[0].copy()}

    with shoal.Serial(Chooser, flat=True) as vec:
        vec.reset()
        infos = vec.step([[1, 0, 1.5, 2.0]])[-1]
        assert (infos["index"][0], infos["box"].tolist()) == (1, [[1.5, 2.0]])
        infos = vec.step([[0, 2, 1.25, 1.75]])[-1]
        assert (infos["index"][0], infos["number"][0], infos["box"].tolist()) == (0, 2, [[0, 0]])
