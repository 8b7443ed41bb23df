"""Side by side with Gymnasium's own SyncVectorEnv: the same in, the same out."""

from copy import deepcopy
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.testing import SPACES, SampleEnv, SentinelEnv, random_space
from shoal.testing.contract import require_equal

pytestmark = pytest.mark.twins

IDS = [
    "CartPole-v1",  # Box observations, Discrete actions
    "Pendulum-v1",  # Box actions
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "FrozenLake-v1",  # Discrete observations, infos
    "Taxi-v4",  # infos with arrays
    "CliffWalking-v1",
    "Blackjack-v1",  # Tuple observations
]


def side_by_side(creators, steps, *, seed=7, mode=AutoresetMode.NEXT_STEP, **options):
    """Run both with the same actions and compare everything they return."""
    ours = shoal.Serial(creators, autoreset_mode=mode, **options)
    theirs = SyncVectorEnv(creators, autoreset_mode=mode, **options)
    with ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.action_space == theirs.action_space
        assert ours.single_action_space == theirs.single_action_space
        assert ours.metadata == theirs.metadata
        require_equal(ours.reset(seed=seed), theirs.reset(seed=seed), "reset")
        theirs.action_space.seed(seed)
        done = np.zeros(len(creators), bool)
        for number in range(steps):
            if mode is AutoresetMode.DISABLED and done.any():
                mine = ours.reset(options={"reset_mask": done})
                require_equal(mine, theirs.reset(options={"reset_mask": done}), f"partial reset {number}")
            actions = theirs.action_space.sample()
            mine, reference = ours.step(actions), theirs.step(actions)
            require_equal(mine, reference, f"step {number}")
            done = reference[2] | reference[3]
        require_equal(ours.reset(), theirs.reset(), "reset without a seed")
    theirs.close()


class WithoutProbability(gymnasium.Wrapper):
    """Drops an info of the toy-text envs, int at a reset and float at a step: Gymnasium truncates it."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return obs, {key: info[key] for key in info if key != "prob"}

    def step(self, action):
        *moment, info = self.env.step(action)
        return *moment, {key: info[key] for key in info if key != "prob"}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", IDS)
def test_gymnasium_envs(name, mode):
    def create():
        return WithoutProbability(gymnasium.make(name, max_episode_steps=40))

    side_by_side([create] * 3, 120, mode=mode)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_space_as_observation_and_action(space, mode):
    def create():
        return SampleEnv(deepcopy(space), deepcopy(space))

    side_by_side([create] * 3, 12, mode=mode)


@pytest.mark.parametrize("first", [sp.MultiBinary(2), sp.MultiDiscrete([2, 3]), sp.Box(0, 1, (2,))], ids=str)
def test_an_observation_that_is_a_pair_with_a_dict(first):
    space = sp.Tuple((first, sp.Dict(a=sp.Discrete(2))))

    def create():
        return SampleEnv(deepcopy(space), deepcopy(space))

    side_by_side([create] * 2, 8, mode=AutoresetMode.SAME_STEP)


def test_a_box_without_dimensions_inside_a_choice_stays_an_array():
    space = sp.OneOf([sp.Box(-1, 1, ()), sp.Dict(x=sp.Box(-1, 1, ()))])
    with shoal.Serial(lambda: SampleEnv(deepcopy(space), deepcopy(space)), 4) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs in vec.observation_space  # Gymnasium warns of a scalar
        actions = vec.action_space.sample()
        vec.step(actions)
        for own, action in zip(vec.get_attr("actions"), actions, strict=True):
            assert own[0] in space
            require_equal(own[0], action, "action")


@pytest.mark.parametrize("seed", range(25))
def test_random_spaces(seed):
    def create():
        return SampleEnv(random_space(seed), random_space(seed + 1000))

    side_by_side([create] * 2, 8, mode=list(AutoresetMode)[seed % 3])


class Careful(SentinelEnv):
    """Gives a new array each time: Gymnasium's final_obs is wrong for an env that reuses one."""

    def _observe(self, action):
        return super()._observe(action).copy()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_of_every_kind(mode):
    side_by_side([partial(Careful, i) for i in range(4)], 60, mode=mode)


@pytest.mark.parametrize("seed", [None, 3, [5, 6, 9], (1, None, 2)])
def test_seeds(seed):
    def create(index):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=index)  # so that seed=None is the same for both
        return env

    creators = [partial(create, i) for i in range(3)]
    ours, theirs = shoal.Serial(creators), SyncVectorEnv(creators)
    for _ in range(2):
        require_equal(ours.reset(seed=deepcopy(seed)), theirs.reset(seed=deepcopy(seed)), "reset")
    assert ours.np_random_seed == theirs.np_random_seed
    ours.close()


def test_a_step_before_any_reset_is_the_envs_business():
    creators = [partial(gymnasium.make, "CartPole-v1")]
    with shoal.Serial(creators) as vec, pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        vec.step([0])

    def already_reset():
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=1)
        return env

    with shoal.Serial(already_reset) as vec:
        require_equal(vec.step([0]), SyncVectorEnv([already_reset]).step([0]), "step")


class Colour(sp.Space):
    """A space of the user's own."""

    def sample(self, mask=None, probability=None):
        return ["red", "green"][self.np_random.integers(2)]

    def contains(self, x):
        return x in ("red", "green")

    def __eq__(self, other):
        return isinstance(other, Colour)


@pytest.mark.parametrize(
    "space", [Colour(), sp.Dict({"a": Colour(), "b": sp.Discrete(2)})], ids=["bare", "in Dict"]
)
def test_custom_spaces_are_carried_as_objects(space):
    def create():
        return SampleEnv(deepcopy(space), Colour())

    side_by_side([create] * 3, 8, mode=AutoresetMode.SAME_STEP)
    with pytest.raises(shoal.errors.SpaceError, match="Colour is not a space Shoal knows"):
        shoal.Serial(create, flat=True)


# -- observation modes -------------------------------------------------------------------------------------


def boxes(*highs, shape=(2,)):
    return [lambda high=high: SampleEnv(sp.Box(0, high, shape), sp.Discrete(2)) for high in highs]


def test_observation_mode_different():
    side_by_side(boxes(1, 2, 3), 8, observation_mode="different")


def test_observation_mode_pair():
    pair = (sp.Box(0, 3, (3, 2)), sp.Box(0, 3, (2,)))
    side_by_side(boxes(1, 2, 3), 8, observation_mode=pair)


@pytest.mark.parametrize(
    ("creators", "mode", "error", "text"),
    [
        (boxes(1, 2), "same", RuntimeError, "env 1 has another observation space.*'different'"),
        (boxes(1) + boxes(1, shape=(3,)), "different", ValueError, "another shape or dtype"),
        (
            [*boxes(1), lambda: SampleEnv(sp.Discrete(3), sp.Discrete(2))],
            "different",
            TypeError,
            "another kind",
        ),
        (boxes(1) + boxes(1, shape=(3,)), (sp.Box(0, 1, (2, 2)), sp.Box(0, 1, (2,))), RuntimeError, "env 1"),
        (boxes(1), "neither", ValueError, "observation_mode: expected 'same'"),
        (boxes(1), (1, 2), TypeError, "observation_mode: expected a pair of spaces, got int and int"),
        (
            [*boxes(1), partial(SampleEnv, sp.Box(0, 1, (2,)), sp.Discrete(3))],
            "same",
            RuntimeError,
            "env 1 has another action space",
        ),
    ],
)
def test_envs_that_do_not_belong_together(creators, mode, error, text):
    with pytest.raises(error):
        SyncVectorEnv(creators, observation_mode=mode)
    with pytest.raises(error, match=text):
        shoal.Serial(creators, observation_mode=mode)


# -- errors are of Gymnasium's types ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        pytest.param(
            lambda vec: vec.reset(seed=[1]), "seed: expected one for each of 2 envs, got 1", id="few seeds"
        ),
        pytest.param(
            lambda vec: vec.reset(options={"reset_mask": [True, True]}),
            "reset_mask: expected a NumPy array",
            id="mask list",
        ),
        pytest.param(
            lambda vec: vec.reset(options={"reset_mask": np.ones(2)}),
            "reset_mask: .* got float64",
            id="mask floats",
        ),
        pytest.param(
            lambda vec: vec.reset(options={"reset_mask": np.ones(3, bool)}),
            r"expected shape \(2,\), got \(3,\)",
            id="mask long",
        ),
        pytest.param(
            lambda vec: vec.reset(options={"reset_mask": np.zeros(2, bool)}),
            "expected at least one True",
            id="mask empty",
        ),
        pytest.param(
            lambda vec: vec.set_attr("x", [1]),
            "values: expected one for each of 2 envs, got 1",
            id="set_attr",
        ),
        pytest.param(lambda vec: vec.get_attr("typo"), "typo", id="get_attr"),
        pytest.param(lambda vec: vec.step([0]), r"action: expected shape \(2,\)", id="few actions"),
        pytest.param(lambda vec: vec.step([0, 0, 0]), r"action: expected shape \(2,\)", id="many actions"),
        pytest.param(lambda vec: vec.step(0), "action: expected shape", id="one action"),
        pytest.param(lambda vec: vec.step(None), "action: expected shape", id="no actions"),
        pytest.param(lambda vec: vec.call("step"), "action", id="call"),
    ],
)
def test_errors_have_the_type_of_gymnasiums(verb, text):
    creators = [partial(SentinelEnv, i) for i in range(2)]
    theirs = SyncVectorEnv(creators)
    theirs.reset()
    with pytest.raises(Exception) as reference:  # noqa: PT011 - its type is what is compared
        verb(theirs)
    with shoal.Serial(creators) as ours:
        ours.reset()
        with pytest.raises(reference.type, match=text):
            verb(ours)


class Misbehaved(SampleEnv):
    def __init__(self, space, observation):
        super().__init__(space, sp.Discrete(2))
        self.observation = observation

    def reset(self, *, seed=None, options=None):
        return self.observation, {}


PAIR = sp.Tuple((sp.Discrete(3), sp.Box(0, 1, (2,))))


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (sp.Box(0, 1, (2,)), np.zeros(3, np.float32)),
        (sp.Box(0, 255, (2,), np.uint8), np.zeros(2)),
        (sp.Dict({"a": sp.Discrete(2), "b": sp.Discrete(2)}), {"a": 1}),
        (PAIR, (1,)),
        (PAIR, (1, np.zeros(5, np.float32))),
    ],
    ids=["shape", "dtype", "missing key", "short tuple", "shape inside"],
)
def test_observations_that_do_not_fit_raise_gymnasiums_type(space, observation):
    def create():
        return Misbehaved(space, observation)

    with pytest.raises(Exception) as reference:  # noqa: PT011 - its type is what is compared
        SyncVectorEnv([create]).reset()
    with (
        shoal.Serial(create) as vec,
        pytest.raises(reference.type, match=r"^observation.* from reset\(\) of env 0"),
    ):
        vec.reset()


def test_a_tuple_may_come_as_an_array_and_creators_as_a_generator():
    def create():
        return Misbehaved(sp.Tuple((sp.Discrete(3), sp.Discrete(3))), np.array([1, 2]))

    ours, theirs = shoal.Serial(create for _ in range(2)), SyncVectorEnv([create, create])
    require_equal(ours.reset(), theirs.reset(), "reset")
    ours.close()


@pytest.mark.parametrize("mode", ["nonsense", None, 3])
def test_an_unknown_autoreset_mode(mode):
    with pytest.raises(ValueError):  # noqa: PT011
        SyncVectorEnv([SentinelEnv], autoreset_mode=mode)
    with pytest.raises(ValueError, match="autoreset_mode: expected one of 'NextStep'"):
        shoal.Serial(SentinelEnv, autoreset_mode=mode)


@pytest.mark.parametrize("mode", ["SameStep", "SAME_STEP", AutoresetMode.SAME_STEP])
def test_a_mode_may_be_given_by_its_value_or_name(mode):
    with shoal.Serial(SentinelEnv, autoreset_mode=mode) as vec:
        assert vec.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_the_metadata_of_the_env_class_is_not_touched():
    with shoal.Serial(partial(gymnasium.make, "CartPole-v1")) as vec:
        assert vec.metadata["render_fps"] == 50
        assert "autoreset_mode" not in vec.envs[0].metadata


def test_the_action_space_samples_what_the_envs_would():
    def create():
        env = gymnasium.make("CartPole-v1")
        env.action_space.seed(123)
        return env

    ours, theirs = shoal.Serial([create] * 3), SyncVectorEnv([create] * 3)
    for _ in range(20):
        np.testing.assert_array_equal(ours.action_space.sample(), theirs.action_space.sample())
    ours.close()


def test_rendering():
    creators = [partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")] * 2
    theirs = SyncVectorEnv(creators)
    with shoal.Serial(creators) as ours:
        assert ours.render_mode == theirs.render_mode == "rgb_array"
        ours.reset(seed=0)
        theirs.reset(seed=0)
        require_equal(ours.render(), theirs.render(), "frames")
        require_equal(ours.call("render"), theirs.call("render"), "frames by call")
    theirs.close()


def test_make_vec_takes_serial_as_its_entry_point():
    spec = deepcopy(gymnasium.spec("CartPole-v1"))
    spec.vector_entry_point = lambda num_envs, **kw: shoal.Serial(
        lambda: gymnasium.make("CartPole-v1", **kw), num_envs
    )
    vec = gymnasium.make_vec(spec, num_envs=3, vectorization_mode="vector_entry_point")
    assert repr(vec) == "Serial(CartPole-v1, num_envs=3)"
    vec.close()
