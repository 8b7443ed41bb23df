"""Checked kernels: an index outside of its array is an error with its line, in compiled code too."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.errors import ArgumentError, NativeError, ResetNeeded

pytestmark = pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core")
numba = pytest.importorskip("numba")

TABLE = np.arange(3.0)
LATE = 20  # steps after which an index is wrong; the checks of a class see only the first ones


@numba.njit(boundscheck=False)
def their_own(values, place):
    return values[place]


elsewhere = ModuleType("elsewhere")
elsewhere.their_own = numba.njit(lambda values, place: values[place])


def called(state, place):
    state.a[place] += 1.0


class Late(shoal.NativeEnv):
    """Has a wrong index after some steps, in one way or another."""

    observation_space = Dict({"seen": Box(-1, 1, (2,), np.float32), "rest": Box(0, 1, (3,), np.float32)})
    action_space = Discrete(2)
    state = np.dtype(
        [("count", np.int64), ("a", np.float64, 3), ("m", np.float64, (2, 3)), ("next", np.float64)]
    )
    parameters = {"way": 0, "late": LATE}

    @staticmethod
    def reset(obs):
        obs.seen[:] = 0.0

    @staticmethod
    def step(state, obs, config):
        state.count += 1
        reward = 0.0
        if state.count < config.late:
            return reward, False
        if config.way == 0:
            state.a[state.count // 6] = 1.0
        elif config.way == 1:
            reward = state.a[-state.count]
        elif config.way == 2:
            state.m[1, state.count] += 1.0
        elif config.way == 3:
            state.m[state.count][0] = 1.0
        elif config.way == 4:
            obs.seen[state.count] = 1.0
        elif config.way == 5:
            reward = TABLE[state.count]
        elif config.way == 6:
            called(state, state.count)
        elif config.way == 7:
            reward = their_own(state.a, state.count)
        elif config.way == 8:
            reward = elsewhere.their_own(state.a, state.count)
        elif config.way == 9:
            obs.rest[:] = state.a[: state.count - config.late]
        return reward, False


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
        assert f"of {__file__}:" in where
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


class Crowd(shoal.NativeEnv):
    """Three agents, of which a fourth is rewarded."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)
    num_agents = 3
    state = np.dtype([("count", np.int64)])
    parameters = {"array": 0}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state, obs, rewards, terminated, alive, config):
        state.count += 1
        if state.count == LATE and config.array == 0:
            rewards[state.count // 6] = 1.0
        if state.count == LATE and config.array == 1:
            terminated[state.count // 6] = True
        if state.count == LATE and config.array == 2:
            alive[state.count // 6] = False
        if state.count == LATE and config.array == 3:
            obs[state.count // 6, 0] = 1.0


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
        with shoal.make("shoal/Snake-v0", 3, check=check, seed=0) as vec:
            vec.action_space.seed(0)
            vec.reset(seed=0)
            runs.append([vec.step(vec.action_space.sample())[0].copy() for _ in range(30)])
    assert np.array_equal(*runs)


class Divides(shoal.NativeEnv):
    """Divides by zero, where compiled code goes on; and has a wrong index, in the same env or in another."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("count", np.int64), ("a", np.float64, 3)])
    parameters = {"divides": 0, "wrong": 0}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state, config):
        state.count += 1
        reward = 0.0
        if state.count == LATE and config.divides == 1:
            reward = 1.0 / float(state.count - LATE)
        if state.count == LATE and config.wrong == 1:
            state.a[state.count] = 1.0
        return reward, False


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}], ids=str)
def test_what_only_plain_python_raises_is_not_taken_for_it(options):
    arguments = {"divides": np.array([1, 0, 0, 0]), "wrong": np.array([0, 0, 0, 1])}
    with (
        shoal.make(Divides, 4, env_kwargs=arguments, check=True, **options) as vec,
        pytest.raises(NativeError, match=r"(?s)state.a\[state.count\] = 1.0.*index 20 is out.* of env 3, in"),
    ):
        play(vec)
    text = r"(?s)1.0 / float.*ZeroDivisionError: .* of env 2, in.*Perhaps a later line raised.*Avoid"
    arguments = dict.fromkeys(arguments, np.array([0, 0, 1, 0]))
    with (
        shoal.make(Divides, 4, env_kwargs=arguments, check=True, **options) as vec,
        pytest.raises(NativeError, match=text),
    ):
        play(vec)


class Wraps(shoal.NativeEnv):
    """Has an index that is right with Python's integers, and wrong with those of 64 bits."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("count", np.int64), ("before", np.float64, 8), ("a", np.float64, 5)])

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state):
        state.count = (state.count + 1) % 5
        place = int(state.count) << 61 >> 61  # compiled, 4 becomes -4
        return state.a[place - 4], False  # so this is -8, which lies in `before`


def test_check_env_runs_a_checked_kernel():
    with pytest.raises(NativeError, match="kernel of Wraps, and does not happen with debug=True"):
        shoal.testing.check_env(Wraps)
    with pytest.raises(NativeError, match="kernel of Wraps, and does not happen with debug=True"):
        shoal.testing.check_env(lambda: Wraps())


def test_check_env_names_what_happens_late():
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        shoal.testing.check_env(Late)
    # As a single env of Gymnasium's too, whose class is found inside.
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        shoal.testing.check_env(lambda: Late())


def test_other_envs_have_no_kernels():
    with pytest.raises(ArgumentError, match="check: only compiled envs have it"):
        shoal.make("CartPole-v1", 2, check=True)


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import shoal
from test_checked import Late, play
with shoal.make(Late, 4, copy=False) as vec:
    print(vec.check)
    if vec.check:  # else it would crash
        play(vec)
"""


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_the_environment_can_ask_for_it(value):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(Path(__file__).parent)],
        env={**os.environ, "SHOAL_NATIVE_CHECK": value},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    asked = value == "1"
    assert done.stdout.split() == [str(asked)], done.stderr
    assert done.returncode == asked
    assert ("IndexError: index 3 is out of bounds" in done.stderr) == asked
