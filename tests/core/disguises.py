"""The many forms in which an env may return the same thing, and the many ways in which it may be wrong."""

from collections import OrderedDict, UserDict, namedtuple
from fractions import Fraction
from types import MappingProxyType

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict, OneOf, Text, Tuple

STEP = namedtuple("STEP", "obs reward terminated truncated info")


class Custom(Space):
    """A space that Shoal knows nothing of; its values are carried as they are."""

    def __init__(self):
        super().__init__()

    def sample(self, mask=None, probability=None):
        return [int(self.np_random.integers(9))]

    def contains(self, x):
        return True

    def __eq__(self, other):
        return isinstance(other, Custom)

    __hash__ = None


class Word(str):
    __slots__ = ()


class Arraylike:
    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.array(self.value, dtype)

    def __eq__(self, other):
        return type(other) is Arraylike and np.array_equal(self.value, other.value)

    __hash__ = None


class Thing:
    """Nothing that belongs into an array."""

    def __deepcopy__(self, memo):
        return self


class Refuses(Thing):
    """Raises whatever one asks of it."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array of me")

    def __bool__(self):
        raise RuntimeError("neither true nor false")

    def __float__(self):
        raise RuntimeError("no number")

    def __index__(self):
        raise RuntimeError("no index")


THING, REFUSES = Thing(), Refuses()


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def disguised(space, value, rng):
    """The value in another form that means the same, or is to be refused by both cores alike."""
    if isinstance(space, Dict):
        parts = {key: disguised(space[key], value[key], rng) for key in value}
        made = pick(rng, dict, dict, dict, OrderedDict, UserDict, MappingProxyType)(parts)
        return {**made, "extra": 1} if rng.random() < 0.1 else made
    if isinstance(space, Tuple):
        parts = [disguised(each, part, rng) for each, part in zip(space, value, strict=True)]
        return pick(rng, tuple, tuple, list)(parts)
    if isinstance(space, OneOf):
        index, part = value
        index = pick(rng, int, np.int64, np.int8, np.array)(index)
        return pick(rng, tuple, tuple, list)((index, disguised(space[int(index)], part, rng)))
    if isinstance(space, Text):
        return pick(rng, str, str, Word)(value)
    if isinstance(space, Custom):
        return value
    array = np.asarray(value)
    forms = [
        lambda: value,
        lambda: value,
        lambda: value,
        array.tolist,
        lambda: np.asfortranarray(array),
        lambda: np.repeat(array[..., None], 2, -1)[..., 0],
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: np.ma.masked_array(array),
        lambda: Arraylike(value),
        lambda: array[()],
    ]
    if array.dtype == np.int64:
        forms.append(lambda: array.astype(np.longlong))
    if array.dtype.kind in "fi":
        forms.append(lambda: array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    doubtful = [
        lambda: array.astype(np.float32),
        lambda: array.astype(np.uint8),
        lambda: array.astype(np.bool_),
        lambda: array.astype(object),
        lambda: array.reshape(-1),
    ]
    with np.errstate(all="ignore"):
        return pick(rng, *(doubtful if rng.random() < 0.02 else forms))()


def corrupted(value, rng):
    """The value with one part that does not belong there, most of the time."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        key = pick(rng, *value)
        if rng.random() < 0.3:
            return {other: part for other, part in value.items() if other != key}
        return {**value, key: corrupted(value[key], rng)}
    if isinstance(value, tuple) and value and rng.random() < 0.7:
        place = int(rng.integers(len(value)))
        if rng.random() < 0.3:
            return value[:-1]
        return (*value[:place], corrupted(value[place], rng), *value[place + 1 :])
    return pick(
        rng,
        None,
        "text",
        "a-b",
        "tödlich\0",
        "far too long for any of these spaces",
        2**70,
        -1,
        300,
        7.5,
        1j,
        True,
        float("nan"),
        [[1], [2, 3]],
        [],
        {},
        (),
        (0, None),
        (5, 1),
        (1.0, 2),
        (-1, 0),
        (REFUSES, 0),
        THING,
        REFUSES,
        np.zeros((2, 2)),
        np.array(1e300),
        np.array(["a", "b"]),
        np.datetime64("2000-01-01"),
    )


def reward(rng, wrong):
    if wrong:
        return pick(rng, None, "x", [1, 2], THING, 10**400, 1j, np.zeros(2), [], REFUSES)
    number = int(rng.integers(-5, 6))
    forms = (float, float, float, int, bool, np.float64, np.float32, np.int8, np.bool_, Fraction, str)
    special = (float("nan"), float("inf"), np.array([1.5]), np.array(2), [3.5], np.float16(0.1), 2**60)
    return pick(rng, *special) if rng.random() < 0.2 else pick(rng, *forms)(number)


def flag(rng, value, wrong):
    if wrong:
        return pick(rng, np.zeros(2), REFUSES)
    if rng.random() < 0.5:
        return value
    return (
        pick(rng, "yes", 1, np.True_, np.array(True), [0]) if value else pick(rng, 0, None, "", np.False_, [])
    )


def info(rng, wrong):
    if wrong:
        return pick(rng, 5, 0, "", "x", [], [1], np.zeros(2), REFUSES)
    if rng.random() < 0.5:
        return {}
    deep = pick(rng, dict, OrderedDict)({"word": "x", "array": np.ma.zeros(2)})
    content = {"number": int(rng.integers(9)), "array": rng.random(2), "deep": deep}
    return pick(rng, dict(content), OrderedDict(content), MappingProxyType(content), None, {"one": 1})


def result(rng, space, end, fault):
    """What a step returns: an observation and the rest, in any form; `fault` says which part is wrong."""
    obs = disguised(space, space.sample(), rng)
    if fault == "obs":
        obs = corrupted(space.sample(), rng)
    terminated, truncated = end and bool(rng.random() < 0.6), end and bool(rng.random() < 0.6)
    said = info(rng, fault == "info")
    number = reward(rng, fault == "reward")
    first, second = flag(rng, terminated, fault == "flag"), flag(rng, truncated, fault == "second flag")
    if rng.random() < 0.2:
        if isinstance(said, dict) and rng.random() < 0.5:
            said = {**said, "TimeLimit.truncated": truncated}
        return pick(rng, tuple, tuple, list)((obs, number, first, said))
    five = (obs, number, first, second, said)
    if fault == "result":
        return pick(rng, five[:3], None, (*five, 1), {}, 5, np.zeros(5), "fives", ())
    return pick(rng, tuple, tuple, tuple, list, lambda five: STEP(*five))(five)
