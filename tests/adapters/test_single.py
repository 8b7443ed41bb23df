from types import MappingProxyType
from unittest.mock import Mock

import gym
import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal.adapters.single import to_gymnasium_space
from shoal.errors import ArgumentError, ArgumentTypeError, ObservationError, ObservationTypeError


class OldGym(gym.Env):
    """An env as people wrote them before Gymnasium: gym's spaces, bare observations, four values."""

    observation_space = gym.spaces.Dict(
        {"x": gym.spaces.Box(-9, 9, (2,), np.float32), "n": gym.spaces.Discrete(4)}
    )
    action_space = gym.spaces.Discrete(2)
    seeds: tuple = ()

    def seed(self, seed=None):
        self.seeds = (*self.seeds, seed)

    def reset(self):
        self.count = 0
        return {"x": np.zeros(2, np.float32), "n": 0}

    def step(self, action):
        self.count += 1
        timed_out = self.count == 3
        info = {"TimeLimit.truncated": True} if timed_out else {}
        return {"x": np.full(2, self.count, np.float32), "n": int(action)}, 0.5, timed_out, info


def test_an_old_gym_env():
    with shoal.Serial(OldGym, num_envs=2) as vec:
        assert vec.single_observation_space == sp.Dict({"x": sp.Box(-9, 9, (2,)), "n": sp.Discrete(4)})
        vec.reset(seed=5)
        assert vec.get_attr("seeds") == ((5,), (6,))
        for count in range(1, 4):
            obs, rewards, terminations, truncations, _ = vec.step([1, 0])
            assert obs["x"][:, 0].tolist() == [count, count]
            assert obs["n"].tolist() == [1, 0]
            assert rewards.tolist() == [0.5, 0.5]
            assert terminations.tolist() == [False, False]
            assert truncations.tolist() == [count == 3] * 2
        obs, *_ = vec.step([1, 1])  # autoreset
        assert obs["x"].tolist() == [[0, 0], [0, 0]]


def test_a_real_old_gym_env():
    def create():
        return gym.make("CartPole-v1", disable_env_checker=True)

    with shoal.Serial(create, num_envs=2) as vec:
        obs, _ = vec.reset(seed=3)
        assert obs in vec.observation_space
        for _ in range(50):
            obs, *_ = vec.step(vec.action_space.sample())
        assert vec.stats()["episodes"] > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (gym.spaces.Box(0, 1, (2, 3), np.uint8), sp.Box(0, 1, (2, 3), np.uint8)),
        (gym.spaces.Discrete(3, start=2), sp.Discrete(3, start=2)),
        (gym.spaces.MultiDiscrete([2, 3]), sp.MultiDiscrete([2, 3])),
        (gym.spaces.MultiBinary(4), sp.MultiBinary(4)),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)]), sp.Tuple([sp.Discrete(2)])),
    ],
    ids=str,
)
def test_old_spaces_become_gymnasiums(old, new):
    assert to_gymnasium_space(old) == new


def test_an_old_space_without_counterpart():
    with pytest.raises(ArgumentTypeError, match=r"Graph of old gym cannot be converted.*gymnasium.Space"):
        to_gymnasium_space(gym.spaces.Graph(gym.spaces.Discrete(2), None))


class Plain:
    """A class of the user's own, of no library."""

    observation_space = sp.Box(0, 9, (1,))
    action_space = sp.Discrete(2)

    def __init__(self, reset=None, step=None):
        self.reset_result = (np.zeros(1, np.float32), {"new": 1}) if reset is None else reset
        self.step_result = (np.ones(1, np.float32), 1.0, False, False, {}) if step is None else step

    def reset(self, seed=None):
        return self.reset_result

    def step(self, action):
        return self.step_result


def test_a_class_of_no_library():
    with shoal.Serial(Plain, num_envs=2) as vec:
        obs, infos = vec.reset(seed=0)
        assert infos["new"].tolist() == [1, 1]
        obs, *_ = vec.step([0, 0])
        assert obs.tolist() == [[1], [1]]
        vec.set_attr("mark", 3)
        assert vec.get_attr("mark") == (3, 3)
        assert vec.render_mode is None
        with pytest.raises(ArgumentTypeError, match=r"options: reset\(\) of Plain takes none"):
            vec.reset(options={"level": 1})


@pytest.mark.parametrize(
    "result",
    [
        np.zeros(1, np.float32),
        (np.zeros(1, np.float32), None),
        (np.zeros(1, np.float32), {}),
        [np.zeros(1, np.float32), MappingProxyType({})],
        [0.0],
    ],
    ids=["bare", "None", "empty", "list of both", "list"],
)
def test_resets_with_and_without_info(result):
    with shoal.Serial(lambda: Plain(reset=result)) as vec:
        obs, infos = vec.reset()
        assert (obs.tolist(), infos) == ([[0]], {})


def test_an_observation_that_looks_like_a_pair_with_an_info():
    class Pair(Plain):
        observation_space = sp.Tuple((sp.Discrete(3), sp.Dict({"a": sp.Discrete(3)})))

    cases = [
        ((1, {"a": 2}), {}),
        (((1, {"a": 2}), {"b": 3}), {"b": 3}),
        (((1, {"a": 2}), {"a": 3}), {"a": 3}),
    ]
    for result, infos in cases:
        with shoal.Serial(lambda result=result: Pair(reset=result)) as vec:
            obs, got = vec.reset()
            assert obs[0].tolist() == [1]
            assert obs[1]["a"].tolist() == [2]
            assert {key: got[key].tolist() for key in infos} == {key: [value] for key, value in infos.items()}


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (
            None,
            ObservationTypeError,
            r"step\(\): expected 5 values .* got a NoneType, from step\(\) of env 1",
        ),
        ((0, 1, 2), ObservationTypeError, r"step\(\): expected 5 values .*got 3 values"),
        (
            (np.zeros(1), None, False, False, {}),
            ObservationTypeError,
            r"reward: expected a number, got a NoneType",
        ),
        (
            (np.zeros(1), "a lot", False, False, {}),
            ObservationTypeError,
            r"reward: expected a number, got 'a lot'",
        ),
        ((np.zeros(2), 0.0, False, False, {}), ObservationError, r"observation: expected shape \(1,\)"),
        (({}, 0.0, False, False, {}), ObservationTypeError, r"observation: .* got a dict"),
    ],
    ids=["nothing", "three values", "no reward", "a word as reward", "shape", "dict"],
)
def test_steps_that_make_no_sense(result, error, text):
    def broken():
        return Plain(step=() if result is None else result)

    class Nothing(Plain):
        def step(self, action):
            return None

    with shoal.Serial([Plain, Nothing if result is None else broken]) as vec:
        vec.reset()
        with pytest.raises(error, match=text) as caught:
            vec.step([0, 0])
        assert "env 1" in str(caught.value)


def test_the_error_says_where_in_the_observation():
    class Nested(gymnasium.Env):
        observation_space = sp.Dict({"map": sp.Tuple((sp.Box(0, 1, (3,)),))})
        action_space = sp.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"map": (np.zeros(4, np.float32),)}, {}

    text = (
        r'observation\["map"\]\[0\]: expected shape \(3,\) and dtype float32, got an array of shape \(4,\) '
        r"and dtype float32, from reset\(\) of env 0. Correct the env's observation_space or what its "
        r"reset\(\) returns"
    )
    with shoal.Serial(Nested) as vec, pytest.raises(ObservationError, match=text):
        vec.reset()


def test_an_info_that_is_no_dict():
    with shoal.Serial([Plain, lambda: Plain(step=(np.zeros(1), 0.0, False, False, 7))]) as vec:
        vec.reset()
        with pytest.raises(
            ObservationTypeError, match=r"info: expected a dict, got 7 \(int\), from step\(\) of env 1"
        ):
            vec.step([0, 0])


def test_old_gym_without_an_info():
    with shoal.Serial(lambda: Plain(step=(np.zeros(1), 0.0, True, None))) as vec:
        vec.reset()
        assert vec.step([0])[2].tolist() == [True]


def test_a_seed_that_nobody_takes_is_not_lost_in_silence():
    class Deaf(Plain):
        def reset(self):
            return self.reset_result

    with shoal.Serial(Deaf) as vec:
        with pytest.warns(UserWarning, match="Deaf takes no seed"):
            vec.reset(seed=1)
        vec.reset(seed=1)  # said once


class PassesOn:
    """A wrapper that passes on whatever it gets, as Monitor of Stable-Baselines3 does."""

    def __init__(self, env):
        self.env, self.given = env, []
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.step = env.step

    def get_wrapper_attr(self, name):
        return getattr(self if name in self.__dict__ else self.env, name)

    def reset(self, **kwargs):
        self.given.append(kwargs)
        return self.env.reset(**kwargs)


def test_a_wrapper_passes_on_only_what_was_set():
    with shoal.Serial(lambda: PassesOn(PassesOn(Plain()))) as vec:
        vec.reset()
        vec.reset(seed=0)
        vec.reset(seed=5, options={"reset_mask": np.array([True])})
        assert vec.get_attr("given") == ([{}, {"seed": 0}, {"seed": 5}],)
        with pytest.raises(TypeError, match="unexpected keyword argument 'options'"):
            vec.reset(options={"level": 1})


def test_a_wrapper_that_passes_on_all_around_an_old_env():
    class Old(Plain):
        seeds = ()

        def seed(self, seed=None):
            self.seeds += (seed,)

        def reset(self):
            return self.reset_result[0]

    with shoal.Serial(lambda: PassesOn(Old())) as vec:
        vec.reset()
        vec.reset(seed=3)
        assert vec.get_attr("seeds") == ((3,),)
        assert vec.get_attr("given") == ([{}, {}],)


def test_a_wrapper_may_take_what_the_env_inside_does_not():
    class Sees(PassesOn):
        def reset(self, **kwargs):
            self.given.append(dict(kwargs))
            return self.env.reset(**{key: value for key, value in kwargs.items() if key == "no such word"})

    class Deaf(Plain):
        def reset(self):
            return self.reset_result

    with shoal.Serial(lambda: Sees(Deaf())) as vec:
        vec.reset(seed=3, options={"level": 1})
        assert vec.get_attr("given") == ([{"seed": 3, "options": {"level": 1}}],)


def test_a_mock_of_an_env():
    mock = Mock(spec=["reset", "step", "env", "observation_space", "action_space"])
    mock.observation_space, mock.action_space = Plain.observation_space, Plain.action_space
    mock.reset.return_value = (np.zeros(1, np.float32), {})
    with shoal.Serial(lambda: mock) as vec:
        vec.reset(seed=1)
    mock.reset.assert_called_once_with(seed=1)


def test_an_env_may_change_the_options_it_gets():
    class Greedy(gymnasium.Env):
        observation_space = sp.Discrete(2)
        action_space = sp.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {"got": options.pop("level")}

    options = {"level": 3}
    with shoal.Serial(Greedy, 2) as vec:
        assert vec.reset(options=options)[1]["got"].tolist() == [3, 3]
    assert options == {"level": 3}


@pytest.mark.parametrize(
    ("env", "error", "text"),
    [
        (Plain(), ArgumentTypeError, r"env: expected something that makes envs, got one Plain.*lambda"),
        ([Plain, Plain()], ArgumentTypeError, r"got one Plain that is made already"),
        ([], ArgumentError, r"expected at least one creator"),
        (
            "CartPole-v1",
            ArgumentTypeError,
            r"got 'CartPole-v1'. Names are for shoal.make\('CartPole-v1', ...\)",
        ),
        (object, ArgumentTypeError, r"got object without reset, step, observation_space, action_space"),
    ],
    ids=["instance", "instance in list", "empty", "name", "no env"],
)
def test_what_is_no_creator(env, error, text):
    with pytest.raises(error, match=text):
        shoal.Serial(env)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, "2", True])
def test_num_envs_must_be_a_positive_integer(num_envs):
    with pytest.raises(ArgumentError, match="num_envs: expected a positive integer"):
        shoal.Serial(Plain, num_envs)
    with pytest.raises(ArgumentError, match="num_envs: expected 2, the length of the list"):
        shoal.Serial([Plain, Plain], 3)


def test_nan_is_outside_of_every_space():
    with shoal.Serial(lambda: Plain(step=(np.array([np.nan]), 0.0, False, False, {}))) as vec:
        vec.reset()
        with pytest.warns(UserWarning, match="is outside its space") as caught:
            vec.step([0])
        assert caught[0].filename == __file__


class NoSpace(Plain):
    observation_space = (2, 3)


def test_a_space_that_is_none():
    with pytest.raises(
        shoal.errors.SpaceError, match=r"observation_space of NoSpace: expected a gymnasium.Space"
    ):
        shoal.Serial(NoSpace)


def test_a_creator_that_returns_a_class():
    with pytest.raises(ArgumentTypeError, match=r"got the class Plain. .* call it: lambda: Plain\(\)"):
        shoal.Serial(lambda: Plain)


def test_a_space_that_is_a_method():
    class Forgot(Plain):
        def observation_space(self):
            return sp.Box(0, 9, (1,))

    text = r"observation_space of Forgot: expected a gymnasium.Space, got a method. .* put @property above"
    with pytest.raises(shoal.errors.SpaceError, match=text):
        shoal.Serial(Forgot)


def test_bounds_warn_once():
    class Outside(Plain):
        observation_space = sp.Box(0, 0.5, (1,))

    with shoal.Serial(Outside, num_envs=2) as vec:
        vec.reset()
        with pytest.warns(UserWarning, match=r"observation of env 0, from step\(\), is outside its space"):
            obs, *_ = vec.step([0, 0])
        assert obs.tolist() == [[1], [1]]  # passed on as it is
        vec.step([0, 0])  # a second warning would be an error here
