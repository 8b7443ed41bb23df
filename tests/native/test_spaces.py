"""Observations and actions of every kind of space, in compiled code and in debug mode."""

import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

import shoal
from shoal import layout
from shoal.native.spec import Spec
from shoal.native.straight import is_straight
from shoal.testing.contract import difference

# One process of pytest's, so that each kernel is compiled and loaded once.
pytestmark = pytest.mark.xdist_group("native spaces")

BACKENDS = [pytest.param({"debug": True}, id="debug")]
if shoal._core.NAME == "native":
    BACKENDS.append(pytest.param({}, id="compiled"))

SPACE = Dict(
    {
        "map": Box(0, 255, (2, 3), np.uint8),
        "goal": Discrete(5, start=-1),
        "inner": Dict({"speed": Box(-9, 9, (), np.float64), "keys": MultiBinary(2)}),
        "pair": Tuple((MultiDiscrete([3, 4]), Box(-1, 1, (1,), np.float32))),
        "word": Text(4, charset="abc"),
        "flag": Box(0, 1, (2,), np.bool_),
        "size": Discrete(9),  # a name that NumPy's records have too, as the next
        "shape": Box(0, 9, (1,), np.float64),
    }
)


class Mirror(shoal.NativeEnv):
    """Shows the last action, part by part; and fields whose names NumPy's records have too."""

    observation_space = SPACE
    action_space = Dict({"steer": Box(-1, 1, (2,), np.float32), "gear": Discrete(4), "on": MultiBinary(2)})
    state = np.dtype([("size", np.int64), ("flags", np.int64), ("doors", np.bool_, (3,))])
    metadata = {"render_modes": ["rgb_array"]}

    @staticmethod
    def reset(state, obs):
        obs.goal = -1
        obs.word[0] = 2
        state.size = 5
        state.doors[1] = True
        obs.size = 0

    @staticmethod
    def step(state, action, obs):
        state.flags = state.size + 1
        obs.size = state.flags
        obs.shape[0] = state["size"]
        obs.map[1, 2] = 10 * action.gear
        obs.goal = action.gear - 1
        obs.inner.speed = action.steer[0] + action.steer[1]
        obs.inner.keys[0] = action.on[0]
        obs.pair.f0[1] = action.gear
        obs.pair.f1[0] = action.steer[0]
        obs.word[1] = 3
        obs.flag[1] = action.on[1] == 1
        return action.gear, False

    @staticmethod
    def render(state):
        frame = np.zeros((1, 3, 3), np.uint8)
        frame[0, state.doors] = state.size
        return frame


@pytest.mark.parametrize("options", BACKENDS)
def test_nested_spaces(options):
    actions = {
        "steer": np.array([[0.5, 0.25], [-0.5, 1.0]], np.float32),
        "gear": np.array([3, 1]),
        "on": np.array([[1, 1], [0, 0]], np.int8),
    }
    with shoal.make(Mirror, 2, **options) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs["goal"].tolist() == [-1, -1]
        assert obs["word"] == ("b", "b")
        obs, rewards, *_ = vec.step(actions)
        assert obs in vec.observation_space
    assert rewards.tolist() == [3, 1]
    assert obs["map"][:, 1, 2].tolist() == [30, 10]
    assert obs["goal"].tolist() == [2, 0]
    assert obs["inner"]["speed"].tolist() == [0.75, 0.5]
    assert obs["inner"]["keys"].tolist() == [[1, 0], [0, 0]]
    assert obs["pair"][0].tolist() == [[0, 3], [0, 1]]
    assert obs["pair"][1].tolist() == [[0.5], [-0.5]]
    assert obs["word"] == ("bc", "bc")
    assert obs["flag"].tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("options", BACKENDS)
def test_any_name_will_do(options):
    with shoal.make(Mirror, 2, render_mode="rgb_array", **options) as vec:
        vec.reset(seed=0)
        obs, *_ = vec.step(vec.action_space.sample())
        assert obs["size"].tolist() == [6, 6]
        assert obs["shape"].tolist() == [[5], [5]]
        assert vec.get_attr("flags") == (6, 6)
        assert vec.get_attr("doors")[0].dtype == np.bool_
        assert vec.render()[0][0, :, 0].tolist() == [0, 5, 0]


@pytest.mark.parametrize("options", BACKENDS)
def test_flat_rows(options):
    with shoal.make(Mirror, 2, flat=True, **options) as vec:
        obs, _ = vec.reset(seed=0)
        value = layout(SPACE).value(obs[0])
        assert value["goal"] == -1
        obs, *_ = vec.step(vec.action_space.sample())
        assert layout(SPACE).value(obs[1])["word"] == "bc"


class Count(shoal.NativeEnv):
    """A Discrete observation, and a float as action."""

    observation_space = Discrete(100)
    action_space = Box(0, 10, (), np.float64)

    @staticmethod
    def reset(obs):
        obs[0] = 7

    @staticmethod
    def step(action, obs):
        obs[0] = int(action)
        return action, action > 5


@pytest.mark.parametrize("options", BACKENDS)
def test_single_numbers(options):
    with shoal.make(Count, 3, **options) as vec:
        assert vec.reset(seed=0)[0].tolist() == [7, 7, 7]
        obs, rewards, terminations, *_ = vec.step(np.array([1.5, 6.0, 9.9]))
    assert obs.tolist() == [1, 6, 9]
    assert rewards.tolist() == [1.5, 6.0, 9.9]
    assert terminations.tolist() == [False, True, True]


class Sized(shoal.NativeEnv):
    """Spaces and state that follow from the constants; a table, and parameters of each env."""

    observation_space = lambda config: Box(-100, 100, (config.size,), np.float64)  # noqa: E731
    action_space = lambda config: Discrete(config.size)  # noqa: E731
    state = lambda config: np.dtype([("cells", np.float64, (config.size,))])  # noqa: E731
    max_episode_steps = lambda config: 2 * config.size  # noqa: E731
    constants = {"size": 2, "table": np.array([1.0, 10.0]), "double": False}
    parameters = {"wind": 0.0, "level": 1, "calm": False}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state, action, obs, config):
        state.cells[action] += config.table[action % 2] * (2 if config.double else 1) + config.wind
        for cell in range(config.size):
            obs[cell] = state.cells[cell]
        return config.level, config.calm


THREE = {"size": 3, "double": True, "max_episode_steps": 3}  # constants, so that one kernel does


@pytest.mark.parametrize("options", BACKENDS)
def test_config(options):
    kwargs = {**THREE, "wind": [0.0, 0.5], "level": np.array([4, 5])}
    with shoal.make(Sized, 2, env_kwargs=kwargs, **options) as vec:
        assert vec.single_observation_space.shape == (3,)
        assert vec.single_action_space.n == 3
        vec.reset(seed=0)
        obs, rewards, *_ = vec.step(np.array([1, 2]))
        assert obs.tolist() == [[0, 20, 0], [0, 0, 2.5]]
        assert rewards.tolist() == [4, 5]
        assert vec.get_attr("wind") == (0.0, 0.5)
        assert vec.get_attr("size") == (3, 3)
        vec.set_attr("level", np.array([7, 8]))
        vec.set_attr("calm", [False, True])
        _, rewards, terminations, truncations, _ = vec.step(np.array([1, 2]))
        assert rewards.tolist() == [7, 8]
        assert terminations.tolist() == [False, True]
        assert not truncations.any()
        assert vec.get_attr("cells")[0].tolist() == [0, 40, 0]
        with pytest.raises(AttributeError, match="size: this is a constant of Sized, compiled in"):
            vec.set_attr("size", 4)
        with pytest.raises(TypeError, match="level: expected int64 of shape"):
            vec.set_attr("level", ["a", "b"])
        assert vec.step(np.array([1, 2]))[3].tolist() == [True, False]  # the other has begun anew


def test_the_limit_may_follow_from_the_constants():
    assert Spec.of(Sized).max_steps == 4
    assert Spec.of(Sized, {"size": 7}).max_steps == 14
    with shoal.make(Sized, 1, debug=True) as vec:
        vec.reset(seed=0)
        assert [vec.step(np.array([0]))[3].tolist() for _ in range(4)] == [[False]] * 3 + [[True]]


@pytest.mark.parametrize("options", BACKENDS)
def test_classes_and_tables_that_are_nearly_the_same_are_told_apart(options):
    def made(constants, parameters):
        def reset(obs):
            obs[0] = 0.0

        def step(obs, config):
            obs[0] = config.table[600]
            return config.first + 10 * config.second, False

        body = {
            "observation_space": Box(-100, 100, (1,), np.float64),
            "action_space": Discrete(2),
            "constants": constants,
            "parameters": parameters,
            "reset": staticmethod(reset),
            "step": staticmethod(step),
        }
        return type("Same", (shoal.NativeEnv,), body)

    table = np.zeros(2000)
    other = table.copy()
    other[600] = 5.0
    cases = [
        ({"table": table}, {"first": 1.0, "second": 2.0}, 21.0, 0.0),
        ({"table": table}, {"second": 2.0, "first": 1.0}, 21.0, 0.0),  # in another order in memory
        ({"table": other}, {"first": 1.0, "second": 2.0}, 21.0, 5.0),
    ]
    for constants, parameters, reward, seen in cases:
        with shoal.make(made(constants, parameters), 2, **options) as vec:
            vec.reset(seed=0)
            obs, rewards, *_ = vec.step(np.zeros(2, np.int64))
            assert rewards.tolist() == [reward] * 2
            assert obs.tolist() == [[seen]] * 2


def test_both_give_the_same():
    if len(BACKENDS) < 2:
        pytest.skip("needs the compiled core")
    found = []
    for options in ({"debug": True}, {}):
        with shoal.make(Sized, 5, env_kwargs={**THREE, "wind": 0.1}, episode_stats=True, **options) as vec:
            vec.action_space.seed(0)
            steps = [vec.reset(seed=3)]
            for _ in range(20):
                steps.append(vec.step(vec.action_space.sample()))
                steps[-1][4].get("episode", {}).pop("t", None)
            found.append(steps)
    assert difference(*found) is None


TABLE = np.arange(5.0)


def look(place):
    return TABLE[place]


def by_a_function(action):
    return look(action), False


def by_a_method(action):
    return TABLE.take(action), False


def by_size(action):
    return np.zeros(action + 1).sum(), False


def by_a_draw(rng):
    return rng.uniform(), False


def by_sine(action):
    return np.sqrt(math.sin(action) + 1.0), abs(float(action)) > 3


@pytest.mark.parametrize(
    ("step", "expected"),
    [(by_a_function, False), (by_a_method, False), (by_size, False), (by_a_draw, False), (by_sine, True)],
    ids=["function", "method", "size", "draw", "sine"],
)
def test_what_may_be_stepped_for_nothing(step, expected):
    def reset(obs):
        obs[0] = 0.0

    spaces = {"observation_space": Box(0, 9, (1,), np.float64), "action_space": Discrete(2)}
    body = {**spaces, "reset": staticmethod(reset), "step": staticmethod(step)}
    assert is_straight(Spec.of(type("Any", (shoal.NativeEnv,), body))) is expected
