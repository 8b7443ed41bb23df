"""sin and cos for compiled envs: as near to the exact value as they say, in Python and compiled."""

import math
from functools import cache

import numpy as np
import pytest

from shoal.native.math import cos, sin

BOUND = 2.5e-16  # which the module promises, for angles up to FARTHEST
FARTHEST = 1e6


def angles():
    """Everywhere, near zero, and on and beside quarters of a turn, where a mistake in the reduction shows."""
    random = np.random.default_rng(0)
    quarters = np.arange(-1000, 1001) * (math.pi / 4)
    far = np.round(random.uniform(-FARTHEST, FARTHEST, 2000) / (math.pi / 2)) * (math.pi / 2)
    exact = np.concatenate([quarters, far, [0.0, FARTHEST, -FARTHEST]])
    parts = [random.uniform(-reach, reach, 3000) for reach in (1e-8, 1e-3, 1.0, 4.0, 100.0, 1e4, FARTHEST)]
    beside = [np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)]
    return np.clip(np.concatenate([exact, *beside, *parts]), -FARTHEST, FARTHEST)


@cache
def compiled(function):
    numba = pytest.importorskip("numba")
    from shoal.native.compiling import OPTIONS, _deep

    inner = _deep(function, OPTIONS, checked=False)
    return numba.njit(lambda values: np.array([inner(value) for value in values]))


def in_python(function):
    return lambda values: np.array([function(value) for value in values])


@pytest.mark.parametrize("how", [in_python, compiled])
@pytest.mark.parametrize(("function", "reference"), [(sin, math.sin), (cos, math.cos)], ids=["sin", "cos"])
def test_accuracy(function, reference, how):
    values = angles()
    expected = np.array([reference(value) for value in values])
    np.testing.assert_allclose(how(function)(values), expected, rtol=0, atol=BOUND)


@pytest.mark.parametrize("how", [in_python, compiled])
def test_beyond_digits_are_lost_but_not_all(how):
    values = np.random.default_rng(1).uniform(-1e9, 1e9, 1000)
    np.testing.assert_allclose(how(sin)(values), np.sin(values), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("function", "reference"), [(sin, math.sin), (cos, math.cos)], ids=["sin", "cos"])
@pytest.mark.parametrize("kind", [float, int, np.float32, np.float64, np.int32])
def test_any_number_is_computed_in_double_precision(function, reference, kind):
    value = kind(100)
    assert function(value) == pytest.approx(reference(100), rel=0, abs=BOUND)


def test_python_and_compiled_agree_to_the_last_digit():
    values = angles()
    for function in (sin, cos):
        np.testing.assert_array_equal(in_python(function)(values), compiled(function)(values))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of which a kernel has none
@pytest.mark.parametrize("how", [in_python, compiled])
def test_what_is_no_number_has_no_sine(how):
    assert np.isnan(how(sin)(np.array([np.nan, np.inf, -np.inf]))).all()
