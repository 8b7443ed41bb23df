"""Checked kernels: an index outside of its array is an error with its line, in compiled code too."""

from functools import partial

import numpy as np
import pytest

import shoal
from shoal.envs.probes import Squared
from shoal.errors import ArgumentError, NativeError, ResetNeeded
from shoal.testing.native_envs import PairNative

# One process of pytest's, so that each kernel is compiled and loaded once.
pytestmark = [
    pytest.mark.xdist_group("checked kernels"),
    pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core"),
]
pytest.importorskip("numba")

from tests.native import envs  # noqa: E402 - which needs Numba
from tests.native.envs import DIVIDES, DIVIDES_AND_IS_WRONG, LATE, WRAPS, Crowd, Late  # noqa: E402

WAYS = [
    ("state.a[state.count // 6] = 1.0", "index 3 is out of bounds for axis 0 with size 3"),
    ("reward = state.a[-state.count]", "index -20 is out of bounds for axis 0 with size 3"),
    ("state.m[1, state.count] += 1.0", "index 20 is out of bounds for axis 1 with size 3"),
    ("state.m[state.count][0] = 1.0", "index 20 is out of bounds for axis 0 with size 2"),
    ("obs.seen[state.count] = 1.0", "index 20 is out of bounds for axis 0 with size 2"),
    ("reward = TABLE[state.count]", "index 20 is out of bounds for axis 0 with size 3"),
    ("state.a[place] += 1.0", "index 20 is out of bounds for axis 0 with size 3"),
    ("return values[place]", "index 20 is out of bounds for axis 0 with size 3"),
    ("lambda values, place: values[place]", "index 20 is out of bounds for axis 0 with size 3"),
    ("obs.rest[:] = state.a[: state.count", "could not broadcast input array from shape"),
]


def play(vec):
    begin = vec.async_reset if vec.batch_size < vec.num_envs else vec.reset
    begin(seed=0)
    for _ in range(4 * LATE):
        if vec.batch_size < vec.num_envs:
            vec.send(np.zeros(len(vec.recv().rewards), np.int64))
        else:
            vec.step(np.zeros(vec.num_envs, np.int64))


@pytest.mark.parametrize("way", range(len(WAYS)), ids=[line for line, _ in WAYS])
def test_the_line_is_named(way):
    line, text = WAYS[way]
    late = np.full(5, 10**6)
    late[3] = LATE
    kwargs = {"way": way, "late": late}
    with shoal.make(Late, 5, env_kwargs=kwargs, check=True) as vec:
        with pytest.raises(NativeError, match=text) as caught:
            play(vec)
        where, shown, *_, note = str(caught.value).splitlines()
        assert where.startswith("Late.")
        assert f"of {envs.__file__}:" in where
        assert line in shown
        assert note == f"raised by Late.step() of env 3, in step {LATE} of its episode"
        with pytest.raises(ResetNeeded, match="reset"):
            vec.step(np.zeros(5, np.int64))
        vec.reset(seed=0)  # begins anew
        vec.step(np.zeros(5, np.int64))
    with (
        shoal.make(Late, 5, env_kwargs=kwargs, debug=True) as vec,
        pytest.raises((IndexError, ValueError), match=text) as caught,
    ):
        play(vec)
    assert caught.value.__notes__ == [note]


@pytest.mark.parametrize(
    "options",
    [{"copy": False}, {"num_workers": 2}, {"batch_size": 4}, {"autoreset_mode": "SameStep"}],
    ids=str,
)
def test_in_every_kind_of_vec(options):
    late = np.full(8, 10**6)
    late[6] = LATE
    with shoal.make(Late, 8, env_kwargs={"late": late}, check=True, **options) as vec:
        assert "check=True" in repr(vec)
        for _ in range(2):
            with pytest.raises(NativeError, match="index 3 is out of bounds") as caught:
                play(vec)
            assert str(caught.value).endswith(f"of env 6, in step {LATE} of its episode")


@pytest.mark.parametrize(("array", "name"), [*enumerate(("rewards", "terminated", "alive", "obs"))])
def test_arrays_of_agents(array, name):
    text = rf"(?s){name}\[state.count // 6.*index 3 is out of bounds.*step 20"
    with shoal.make(Crowd, 2, env_kwargs={"array": array}, check=True) as vec:
        vec.reset(seed=0)
        for _ in range(LATE - 1):
            vec.step(np.zeros(6, np.int64))
        with pytest.raises(NativeError, match=text):
            vec.step(np.zeros(6, np.int64))


def test_the_numbers_are_the_same():
    runs = []
    for check in (False, True):
        with shoal.make(Squared, 3, check=check) as vec:  # whose kernels other tests need too
            vec.action_space.seed(0)
            vec.reset(seed=0)
            runs.append([vec.step(vec.action_space.sample())[0].copy() for _ in range(30)])
    assert np.array_equal(*runs)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}], ids=str)
def test_what_only_plain_python_raises_is_not_taken_for_it(options):
    """A division by zero: compiled code goes on with it."""
    never = 10**6
    late = np.array([LATE, never, never, LATE])
    arguments = {"way": np.array([DIVIDES, 0, 0, 0]), "late": late}
    with (
        shoal.make(Late, 4, env_kwargs=arguments, check=True, **options) as vec,
        pytest.raises(
            NativeError, match=r"(?s)state.a\[state.count // 6\] = 1.0.*index 3 is out.* of env 3, in"
        ),
    ):
        play(vec)
    text = r"(?s)1.0 / float.*ZeroDivisionError: .* of env 2, in.*Perhaps a later line raised.*Avoid"
    late = np.array([never, never, LATE, never])
    with (
        shoal.make(
            Late, 4, env_kwargs={"way": DIVIDES_AND_IS_WRONG, "late": late}, check=True, **options
        ) as vec,
        pytest.raises(NativeError, match=text),
    ):
        play(vec)


def test_check_env_runs_a_checked_kernel():
    wraps = partial(Late, way=WRAPS)
    with pytest.raises(NativeError, match="kernel of Late, and does not happen with debug=True"):
        shoal.testing.check_env(wraps)
    # As a single env of Gymnasium's too, whose class is found inside.
    with pytest.raises(NativeError, match="kernel of Late, and does not happen with debug=True"):
        shoal.testing.check_env(lambda: wraps(debug=True))


def test_check_env_names_what_happens_late():
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        shoal.testing.check_env(Late)


def test_other_envs_have_no_kernels():
    with pytest.raises(ArgumentError, match="check: only compiled envs have it"):
        shoal.make("CartPole-v1", 2, check=True)


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_the_environment_can_ask_for_it(value, monkeypatch):
    monkeypatch.setenv("SHOAL_NATIVE_CHECK", value)
    if value != "1":
        with shoal.make(PairNative, 1) as vec:
            assert vec.check is False
            assert "check" not in repr(vec)
        return
    with shoal.make(Late, 4, copy=False) as vec:
        assert vec.check is True  # else it would crash
        with pytest.raises(NativeError, match="IndexError: index 3 is out of bounds"):
            play(vec)
    with shoal.make(Late, 4, debug=True) as vec:
        assert vec.check is False  # where everything is checked
