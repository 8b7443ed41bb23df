"""What `set_attr` may write: parameters, and fields of the state within the bounds that a class declares."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import ArgumentError, ArgumentTypeError, NativeError

OPTIONS = [{"debug": True}]
if shoal._core.NAME == "native":
    OPTIONS += [{}, {"batch_size": 2}]
each_backend = pytest.mark.parametrize("options", OPTIONS, ids=str)


class Shelf(shoal.NativeEnv):
    """Takes from a place of its shelf."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(2)
    state = np.dtype(
        [
            ("place", np.int16),
            ("things", np.float32, 4),
            ("open", np.bool_, 2),
            ("hidden", np.int64),
            ("free", np.float64),
        ]
    )
    constants = {"highest": 3}
    parameters = {"price": 1.0, "count": 2, "shelf": np.int8(1)}
    bounds = staticmethod(
        lambda config: {
            "place": (0, config.highest),
            "things": (np.zeros(4), [1.0, 1.0, 1.0, 9.0]),
            "open": (False, True),
            "free": (-np.inf, np.inf),
            "count": (1, 5),
        }
    )

    @staticmethod
    def reset(obs):
        obs[0] = 0.0

    @staticmethod
    def step(state, obs, config):
        obs[0] = state.things[state.place] * config.count
        return config.price, False


def begin(vec):
    vec.async_reset(seed=0)
    vec.recv()


@each_backend
def test_values_within_their_bounds_are_set(options):
    with shoal.make(Shelf, 4, **options) as vec:
        begin(vec)
        vec.set_attr("place", [0, 1, 2, 3])
        vec.set_attr("things", [[1, 0.5, 0, 9]] * 4)
        vec.set_attr("open", [[True, False]] * 4)
        vec.set_attr("free", -1e300)
        vec.set_attr("count", 5)
        vec.set_attr("price", np.inf)  # without bounds: any of its dtype
        assert vec.get_attr("place") == (0, 1, 2, 3)
        assert vec.get_attr("open")[3].tolist() == [True, False]
        vec.send(np.zeros(vec.batch_size, np.int64))


WRONG = [
    ("place", 4, "place: expected values from 0 to 3, got 4"),
    ("place", -1, "place: expected values from 0 to 3, got -1"),
    ("place", [0, 1, 2, 1000], "place: expected values from 0 to 3, got 1000"),
    ("place", 1 << 16, "place: expected values that int16 can hold, got 65536"),
    ("place", np.uint64(1 << 63), "place: expected"),
    ("place", 10**30, "place: expected int16"),
    ("place", 1.0, "place: expected int16"),
    (
        "things",
        [[0, 0, 0, 9.5]] * 4,
        "things: expected values within .* from 0.0 to 9.0, got 9.5",
    ),
    ("things", [[0, 1.5, 0, 0]] * 4, "things: expected values within its bounds"),
    ("things", [[0, np.nan, 0, 0]] * 4, "things: expected values within .*got nan"),
    ("things", [[0, 1e300, 0, 0]] * 4, "things: expected values that float32 can hold, got 1e"),
    ("things", [[0, 0, 0]] * 4, r"things: expected float32 of shape \(4,\)"),
    ("free", np.nan, "free: expected values from -inf to inf, got nan"),
    ("free", np.inf, "free: expected values from -inf to inf, got inf"),
    ("count", 6, "count: expected values from 1 to 5, got 6"),
    ("shelf", 128, "shelf: expected values that int8 can hold, got 128"),
    ("hidden", 1, "hidden: this field of the state of Shelf can be read only.*bounds = {'hidden': "),
]


@each_backend
def test_all_else_is_refused_and_nothing_changes(options):
    with shoal.make(Shelf, 4, **options) as vec:
        begin(vec)
        before = {name: vec.get_attr(name) for name in {name for name, _, _ in WRONG}}
        for name, value, text in WRONG:
            with pytest.raises((ArgumentError, ArgumentTypeError), match=text):
                vec.set_attr(name, value)
        for name, values in before.items():
            assert np.array_equal(vec.get_attr(name), values)


def test_parameters_are_checked_when_a_vec_is_made():
    for name, value, text in [
        ("count", [1, 9], "count: expected values from 1 to 5, got 9"),
        ("shelf", 300, "int8"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            shoal.make(Shelf, 2, env_kwargs={name: value}, debug=True)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (3, "Mine.bounds: expected a dict"),
        (
            {"plaice": (0, 1)},
            r"Mine.bounds\['plaice'\]: expected a field .* or a parameter: price, ",
        ),
        ({"highest": (0, 1)}, r"Mine.bounds\['highest'\]: expected a field of the state or a parameter"),
        ({"place": (3, 1)}, r"Mine.bounds\['place'\]: expected the lowest and the highest value"),
        ({"place": 3}, r"Mine.bounds\['place'\]: expected the lowest and the highest value"),
        ({"place": (np.nan, 1)}, r"Mine.bounds\['place'\]: expected the lowest"),
        ({"place": ("a", "b")}, r"Mine.bounds\['place'\]: expected the lowest"),
        ({"place": (None, 1)}, r"Mine.bounds\['place'\]: expected the lowest"),
        ({"things": ([0, 0], 1)}, r"Mine.bounds\['things'\]: .* or arrays of shape \(4,\)"),
        ({"count": (3, 5)}, "count: expected values from 3 to 5, got 2"),  # its default
    ],
    ids=str,
)
def test_bounds_that_are_none(bounds, text):
    with pytest.raises((NativeError, ArgumentError), match=text):
        type("Mine", (Shelf,), {"bounds": bounds})


OWN = [
    "shoal/Snake-v0",
    "shoal/Breakout-v0",
    "shoal/CartPole-v1",
    "shoal/MountainCar-v0",
    "shoal/Pendulum-v1",
    "shoal/Acrobot-v1",
]


@pytest.mark.parametrize("name", OWN)
def test_our_own_envs_bear_whatever_they_accept(name):
    """Uncompiled, where every wrong index raises."""
    with shoal.make(name, 4, seed=0, debug=True) as vec:
        spec = vec._engine.spec
        vec.action_space.seed(0)
        choose = np.random.default_rng(0)
        for _ in range(20 if spec.bounds else 2):
            vec.reset(seed=0)
            for field in (*spec.state.names, *spec.parameters):
                dtype = spec.declared[field] if field in spec.state.names else spec.parameter_dtype[field]
                shape = (4, *dtype.shape)
                if dtype.base.kind == "f":
                    scale = 10.0 ** choose.integers(-3, 300, shape)
                    values = choose.choice([-1.0, 0.0, 1.0], shape) * np.minimum(
                        scale, np.finfo(dtype.base).max
                    )
                else:
                    limits = np.iinfo(dtype.base)
                    wild = choose.choice([limits.min, -1, 0, 1, 2, 100, limits.max], shape)
                    values = np.clip(wild, limits.min, limits.max).astype(dtype.base)
                bounds = spec.bounds.get(field)
                if bounds is not None and choose.random() < 0.8:
                    values = np.clip(values, bounds.low, bounds.high).astype(dtype.base)
                try:
                    vec.set_attr(field, values)
                except (ArgumentError, ArgumentTypeError):
                    assert bounds is None or not ((bounds.low <= values) & (values <= bounds.high)).all()
            for _ in range(20):
                vec.step(vec.action_space.sample())


def test_what_was_a_crash():
    with shoal.make("shoal/Snake-v0", 2, debug=shoal._core.NAME != "native") as vec:
        vec.reset(seed=0)
        for name in ("length", "tail", "head", "cells", "body"):
            values = np.full_like(np.array(vec.get_attr(name)), 100)
            with pytest.raises(ArgumentError, match=f"{name}: this field of .* Snake can be read only"):
                vec.set_attr(name, values)
        vec.step(vec.action_space.sample())
