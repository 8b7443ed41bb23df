"""Spaces to test with: fixed lists, and a generator of random spaces."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

DTYPES: tuple[Any, ...] = (
    np.bool_,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
)

SPACES: tuple[Space[Any], ...] = (
    Discrete(3),
    Discrete(4, start=-2),
    *([Discrete(5, start=1, dtype=np.int32)] if "dtype" in signature(Discrete).parameters else []),
    *(Box(0, 1, (2, 3), dtype) for dtype in DTYPES),
    Box(-1.0, 1.0, ()),
    Box(0, 255, (), np.uint8),
    Box(-np.inf, np.inf, (3,)),
    Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
    Box(0, 255, (4, 5, 3), np.uint8),
    MultiDiscrete([2, 5]),
    MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, -1], [0, 7]])),
    MultiDiscrete([3, 2], dtype=np.uint8),
    MultiBinary(5),
    MultiBinary([2, 3]),
    Text(6),
    Text(7, min_length=0, charset="ab\0é"),
    Tuple((Discrete(3), Discrete(4))),
    Tuple((Box(0, 1, (2,)), Box(-1, 1, (3,)))),
    Tuple((Discrete(5), Tuple((Box(0, 1, (3,)), Text(4))))),
    Dict({"position": Discrete(5), "velocity": Box(-1, 1, (2,), np.float64)}),
    Dict({"b": Box(0, 1, (3,)), "a": Dict({"y": MultiBinary(3), "x": Tuple((Discrete(2),))})}),
    Dict({"map": Box(0, 255, (3, 3), np.uint8), "done": Box(0, 1, (1,), np.bool_), "text": Text(5)}),
    OneOf([Discrete(3), Box(1.0, 2.0, (2,))]),
    OneOf([MultiBinary(2), Dict({"a": Discrete(2, start=5), "b": OneOf([Discrete(2), Text(3)])})]),
)
"""One space of each kind that has a layout, and difficult combinations."""

UNSIZED_SPACES: tuple[Space[Any], ...] = (
    Sequence(Discrete(4)),
    Sequence(Box(0, 1, (2,)), stack=True),
    Graph(Box(-1, 1, (2,)), Discrete(3)),
    Dict({"a": Discrete(2), "b": Tuple((Sequence(Discrete(2)),))}),
)
"""Spaces without a fixed size, which have no layout."""


class Colour(Space[str]):
    """A custom space, whose bytes Shoal does not know."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random colour."""
        return ["red", "green", "blue"][self.np_random.integers(3)]

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a colour."""
        return x in ("red", "green", "blue")

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a Colour too: all are equal."""
        return isinstance(other, Colour)

    def __repr__(self) -> str:
        """Return the expression that makes the space."""
        return "Colour()"


OBJECT_SPACES: tuple[Space[Any], ...] = (
    *UNSIZED_SPACES,
    Sequence(Dict({"a": Box(0, 1, (3,)), "b": Discrete(5)})),
    Sequence(Dict({"a": Box(0, 1, (3,)), "b": Discrete(5)}), stack=True),
    Sequence(Graph(Box(-1, 1, (2,)), None)),
    Graph(Box(-1, 1, (2, 2)), None),
    Graph(Discrete(5), Box(-1, 1, (3,))),
    Colour(),
    Tuple((Graph(Box(-1, 1, (2,)), None), Discrete(2))),
    Tuple((Colour(), Box(0, 255, (), np.uint8))),
    Dict({"map": Box(0, 255, (3, 3), np.uint8), "mission": Colour(), "bag": Tuple((Sequence(Text(4)),))}),
    OneOf([Sequence(Discrete(4)), Box(0, 1, (2,)), Colour()]),
)
"""Spaces with a part that has no bytes: a vec with flat=False carries it as an object."""


def random_space(seed: int | np.random.Generator, depth: int = 3) -> Space[Any]:
    """Return a random space that has a layout, nested at most `depth` deep. It depends only on the seed.

    The random stream of the space is seeded too, so its samples are the same as well.
    """
    rng = np.random.default_rng(seed)
    space = _random(rng, depth)
    space.seed(int(rng.integers(2**31)))
    return space


def _random(rng: np.random.Generator, depth: int) -> Space[Any]:
    makers = [_box, _box, _discrete, _multi_discrete, _multi_binary, _text]
    if depth > 0:
        makers += [_dict, _dict, _tuple, _one_of]
    return makers[rng.integers(len(makers))](rng, depth)


def _shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4)))


def _box(rng: np.random.Generator, depth: int) -> Box:
    dtype: Any = DTYPES[rng.integers(len(DTYPES))]
    if np.dtype(dtype) == np.bool_:
        return Box(0, 1, _shape(rng), dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return Box(max(int(limits.min), -(2**31)), min(int(limits.max), 2**31), _shape(rng), dtype)
    bound = [1.0, 100.0, np.inf][rng.integers(3)]
    return Box(-bound, bound, _shape(rng), dtype)


def _discrete(rng: np.random.Generator, depth: int) -> Discrete:
    return Discrete(int(rng.integers(1, 9)), start=int(rng.integers(-3, 4)))


def _multi_discrete(rng: np.random.Generator, depth: int) -> MultiDiscrete:
    shape = (*_shape(rng), 2)
    return MultiDiscrete(rng.integers(1, 6, shape), start=rng.integers(-3, 4, shape))


def _multi_binary(rng: np.random.Generator, depth: int) -> MultiBinary:
    return MultiBinary([int(n) for n in rng.integers(1, 4, rng.integers(1, 3))])


def _text(rng: np.random.Generator, depth: int) -> Text:
    charset = "".join(chr(int(c)) for c in rng.choice(np.arange(1, 900), rng.integers(1, 300), False))
    return Text(int(rng.integers(1, 9)), min_length=int(rng.integers(0, 2)), charset=charset)


def _dict(rng: np.random.Generator, depth: int) -> Dict:
    keys = rng.choice(["a", "b", "c", "map", "value", "index", "x y", "0"], rng.integers(1, 5), False)
    return Dict({str(key): _random(rng, depth - 1) for key in keys})


def _tuple(rng: np.random.Generator, depth: int) -> Tuple[Any]:
    return Tuple([_random(rng, depth - 1) for _ in range(rng.integers(1, 5))])


def _one_of(rng: np.random.Generator, depth: int) -> OneOf[Any]:
    return OneOf([_random(rng, depth - 1) for _ in range(rng.integers(1, 4))])
