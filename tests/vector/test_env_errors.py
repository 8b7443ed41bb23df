"""An env or a creator raises in a worker, or sends what cannot be sent (numbers: those of our list)."""

import os
import threading
import time
import traceback
from functools import partial

import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.vector.faulty import (
    LONG,
    Answers,
    Awkward,
    Gate,
    Gated,
    LockedError,
    Raising,
    crash,
    envs,
    pool,
    still_works,
)
from tests.vector.scripts import METHODS

import shoal
from shoal import _core
from shoal.errors import EnvError, ResetNeeded, WorkerDied
from shoal.processes import workers as workers_module
from shoal.testing import SampleEnv, SentinelEnv
from shoal.testing.envs import UnpicklableError

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


# -- 1: an env raises --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raising():
    """A pool for all tests here that only raise: its workers stay. Env 2 raises what `error` gives."""
    with pool((2, partial(Raising, 2))) as vec:
        yield vec


def raised_by(vec, error, kind=Exception, text=""):
    """Let env 2 raise an error in a step; return it as it comes out, and its traceback."""
    vec.reset(seed=0)
    vec.set_attr("error", error)
    with pytest.raises(kind, match=text) as caught:
        vec.step([0] * 4)
    vec.set_attr("error", None)
    return caught.value, "".join(traceback.format_exception(caught.value))


def test_01_an_exception_comes_out_with_its_env_and_the_workers_traceback():
    with pool(crash(3, 1, "raise")) as vec:
        vec.reset(seed=0)
        with pytest.raises(ValueError, match="env 3 failed as told") as caught:
            vec.step([0] * 4)
        assert caught.value.__notes__ == ["raised by step() of env 3"]
        text = "".join(traceback.format_exception(caught.value))
        assert "in a worker" in text
        assert 'raise ValueError(f"env {self.env_id} failed as told")' in text  # the line in the env
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            vec.step([0] * 4)
        vec.set_attr("at", LONG)
        still_works(vec)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (partial(UnpicklableError, 7, "several"), UnpicklableError, "7: several"),
        (partial(Awkward, 3, text="odd"), Awkward, r"odd \(3\)"),
        (LockedError, LockedError, "held"),
        (partial(OSError, 2, "No such file", "map.txt"), FileNotFoundError, "map.txt"),
        (partial(UnicodeDecodeError, "utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError, "bad"),
        (partial(KeyError, "place"), KeyError, "place"),
        (partial(StopIteration, "end"), StopIteration, "end"),
    ],
)
def test_01_an_exception_of_any_kind_keeps_its_type(raising, error, kind, text):
    caught, shown = raised_by(raising, error, kind, text)
    assert "self.error()" in shown
    if isinstance(caught, (UnpicklableError, Awkward)):
        assert caught.code in (3, 7)
    still_works(raising)


def test_01_an_exception_whose_class_only_the_worker_has(raising):
    def error():
        class Secret(Exception):
            def __reduce__(self):
                raise TypeError("not for others")

        return Secret("whispered")

    caught, _ = raised_by(raising, error, text="whispered")
    assert "raised by step() of env 2" in caught.__notes__


def test_01_an_exception_that_nothing_can_be_known_of(raising):
    class Opaque(Exception):
        def __new__(cls, *args):
            if args != ("from the env",):
                raise TypeError("only envs make these")
            return super().__new__(cls)

        def __init__(self, *args):
            super().__init__("text", threading.Lock())

    caught, shown = raised_by(
        raising, partial(Opaque, "from the env"), EnvError, r"an env raised .*Opaque: .*text"
    )
    assert caught.__notes__ == ["raised by step() of env 2"]
    assert "self.error()" in shown


def test_01_exceptions_that_cannot_even_be_shown(raising):
    class Mute(Exception):
        def __str__(self):
            raise TypeError("not a word")

        def __reduce__(self):
            raise SystemExit(3)

    def error():
        error = Mute()
        error.__notes__ = None
        return error

    raising.reset(seed=0)
    raising.set_attr("error", error)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - it has no text to match
        raising.step([0] * 4)
    raising.set_attr("error", None)
    assert "Mute" in f"{type(caught.value).__name__} {caught.value.args}"


@pytest.mark.parametrize(("slow", "raises"), [(0, 3), (3, 0)])
def test_01_the_parent_does_not_wait_for_other_workers_to_raise(slow, raises, tmp_path):
    gate = Gate(tmp_path)
    with pool((slow, partial(Gated, slow, gate)), crash(raises, 1, "raise")) as vec:
        vec.reset(seed=0)
        actions = [0] * 4
        actions[slow] = 998  # does not come back before the gate is open
        with pytest.raises(ValueError, match="failed as told"):
            vec.step(actions)
        gate.open()
        vec.set_attr("at", LONG)  # waits for the slow one
        assert vec.get_attr("count")[slow] == 1


def test_01_several_failures_are_all_told():
    with pool(crash(0, 1, "raise"), crash(2, 1, "raise")) as vec:
        vec.reset(seed=0)
        vec.send([0] * 4)
        assert wait_until(lambda: not any(map(vec._engine._signals.due, range(2))), 60)
        with pytest.raises(ValueError, match="env 0 failed") as caught:
            vec.recv()
        assert "and another worker failed: ValueError: env 2 failed as told" in caught.value.__notes__


def test_01_a_dropped_failure_is_warned_of():
    with pool(crash(3, 1, "raise")) as vec:
        vec.reset(seed=0)
        vec.send([0] * 4)
        with pytest.warns(UserWarning, match=r"dropped by reset\(\): ValueError: env 3 failed as told"):
            obs, _ = vec.reset(seed=1)
        assert obs[:, 4].tolist() == [1, 2, 3, 4]


def test_01_an_exception_in_the_parents_own_share():
    with pool(crash(0, 1, "raise"), num_workers=1, parent_steps=True) as vec:
        vec.reset(seed=0)
        with pytest.raises(ValueError, match="env 0 failed as told") as caught:
            vec.step([0] * 4)
        assert caught.value.__notes__ == ["raised by step() of env 0"]
        vec.set_attr("at", LONG)
        still_works(vec)


# -- 4: a creator fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_04_a_creator_that_fails(method):
    def fail():
        raise OSError("no licence left")

    with pytest.raises(OSError, match="no licence left") as caught:
        shoal.Multiprocessing(envs((3, fail)), num_workers=2, start_method=method)
    assert caught.value.__notes__ == ["raised while creating env 3"]
    assert "in fail" in "".join(traceback.format_exception(caught.value))


def test_04_a_creator_that_takes_its_worker_along():
    with pytest.raises(WorkerDied, match=r"worker 1, which ran envs 2 to 3, left with exit code 5"):
        shoal.Multiprocessing(envs((3, partial(os._exit, 5))), num_workers=2)


def test_04_a_creator_that_fails_beside_one_that_hangs(monkeypatch):
    def fail():
        raise OSError("no licence left")

    monkeypatch.setattr(workers_module, "GRACE", 0.05)  # it hangs for certain
    with pytest.raises(OSError, match="no licence left"):
        shoal.Multiprocessing([partial(time.sleep, 3600), fail], num_workers=2)


def test_04_spaces_that_do_not_fit_end_the_workers():
    with pytest.raises(RuntimeError, match="env 1 has another observation space"):
        shoal.Multiprocessing([SentinelEnv, partial(SampleEnv, sp.Discrete(2), sp.Discrete(1000))])


# -- 9, 10: calls and infos --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers():
    """A pool for all calls, none of which ends a worker."""
    with shoal.Multiprocessing([partial(Answers, i, LONG) for i in range(4)], num_workers=2) as vec:
        yield vec


def test_09_a_result_that_cannot_be_pickled(answers):
    with pytest.raises(EnvError, match="what call gave cannot be pickled, so it cannot leave its worker"):
        answers.call("numbers")
    still_works(answers)


def test_09_an_argument_that_cannot_be_pickled(answers):
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        answers.call("plus", (n for n in range(3)))
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        answers.reset(options={"numbers": (n for n in range(3))})
    still_works(answers)


def test_09_a_result_that_cannot_be_unpickled_here(answers):
    with pytest.raises(EnvError, match="what a worker sent cannot be unpickled here: ZeroDivisionError"):
        answers.call("bomb")
    assert answers.get_attr("env_id") == (0, 1, 2, 3)
    still_works(answers)


def test_36_a_result_that_leaves_when_it_is_unpickled_here(answers):
    with pytest.raises(EnvError, match=r"cannot be unpickled here: EnvError: an env called sys\.exit\(4\)"):
        answers.call("exit")
    still_works(answers)


def test_09_values_that_only_cloudpickle_can_send(answers):
    answers.set_attr("one_more", [lambda n=n: n + 1 for n in range(4)])
    assert answers.call("one_more") == (1, 2, 3, 4)
    assert [add(10) for add in answers.call("adder")] == [10, 11, 12, 13]


def test_10_large_messages_both_ways(answers):
    large = np.arange(300_000)
    for env_id, result in enumerate(answers.call("plus", large)):
        np.testing.assert_array_equal(result, large + env_id)
    still_works(answers)


def test_10_an_info_that_cannot_be_pickled():
    class Locked(SentinelEnv):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"lock": threading.Lock()}

    with pool((1, partial(Locked, 1, LONG))) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match="an info cannot be pickled"):
            vec.step([0] * 4)
