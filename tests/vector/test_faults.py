"""What can go wrong in a worker, and what the parent makes of it (numbers: those of our list of failures)."""

import gc
import os
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until

import shoal
from shoal import _core
from shoal.errors import Closed, EnvError, ResetNeeded, WorkerDied, WorkerTimeout
from shoal.testing import CrashEnv, HangEnv, SampleEnv, SentinelEnv, SlowEnv
from shoal.testing.envs import UnpicklableError
from shoal.vector import _mail

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

LONG = 10**6  # longer than any test


def envs(*odd, count=4):
    """Sentinels that never end, some of them replaced by `(env_id, creator)`."""
    creators = [partial(SentinelEnv, i, LONG) for i in range(count)]
    for env_id, creator in odd:
        creators[env_id] = creator
    return creators


def crash(env_id, at, how):
    return env_id, partial(CrashEnv, env_id, at, how, max_length=LONG)


def hang(env_id, at):
    return env_id, partial(HangEnv, env_id, at, max_length=LONG)


def pool(*odd, **options):
    options = {"num_workers": 2, **options}
    return shoal.Multiprocessing(envs(*odd), **options)


def still_works(vec):
    """A whole reset, and steps whose rows are each its own env's."""
    obs, _ = vec.reset(seed=5)
    assert obs[:, 4].tolist() == [5, 6, 7, 8]
    for count in (1, 2):
        obs, *_ = vec.step([10, 11, 12, 13])
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert obs[:, 2].tolist() == [count] * 4
        assert obs[:, 3].tolist() == [10, 11, 12, 13]


# -- 1: an env raises --------------------------------------------------------------------------------------


class Awkward(Exception):
    """Takes other arguments than it passes on, and has one that must be given."""

    def __init__(self, code, *, text):
        super().__init__(f"{text} ({code})")
        self.code = code


class Raising(SentinelEnv):
    def __init__(self, env_id, error):
        super().__init__(env_id, LONG)
        self.error = error

    def step(self, action):
        raise self.error()


class LockedError(Exception):
    def __init__(self):
        super().__init__("held", threading.Lock())


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
def test_01_an_exception_of_any_kind_keeps_its_type(error, kind, text):
    with pool((1, partial(Raising, 1, error))) as vec:
        vec.reset(seed=0)
        with pytest.raises(kind, match=text) as caught:
            vec.step([0] * 4)
        assert "self.error()" in "".join(traceback.format_exception(caught.value))
        if isinstance(caught.value, (UnpicklableError, Awkward)):
            assert caught.value.code in (3, 7)


def test_01_an_exception_whose_class_only_the_worker_has():
    def create():
        class Secret(Exception):
            def __reduce__(self):
                raise TypeError("not for others")

        return Raising(2, partial(Secret, "whispered"))

    with pool((2, create)) as vec:
        vec.reset(seed=0)
        with pytest.raises(Exception, match="whispered") as caught:
            vec.step([0] * 4)
        assert "raised by step() of env 2" in caught.value.__notes__


def test_01_an_exception_that_nothing_can_be_known_of():
    class Opaque(Exception):
        def __new__(cls, *args):
            if args != ("from the env",):
                raise TypeError("only envs make these")
            return super().__new__(cls)

        def __init__(self, *args):
            super().__init__("text", threading.Lock())

    with pool((2, partial(Raising, 2, partial(Opaque, "from the env")))) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"an env raised .*Opaque: .*text") as caught:
            vec.step([0] * 4)
        assert caught.value.__notes__ == ["raised by step() of env 2"]
        assert "self.error()" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("slow", "raises"), [(0, 3), (3, 0)])
def test_01_the_parent_does_not_wait_for_other_workers_to_raise(slow, raises):
    sleeper = partial(SlowEnv, slow, 4.0, max_length=LONG)
    with pool((slow, sleeper), crash(raises, 1, "raise")) as vec:
        vec.reset(seed=0)
        begun = time.monotonic()
        with pytest.raises(ValueError, match="failed as told"):
            vec.step([0] * 4)
        assert time.monotonic() - begun < 3.5
        vec.set_attr("at", LONG)  # waits for the slow one
        assert vec.get_attr("count")[slow] == 1


def test_01_several_failures_are_all_told():
    with pool(crash(0, 1, "raise"), crash(2, 1, "raise")) as vec:
        vec.reset(seed=0)
        vec.send([0] * 4)
        while any(map(vec._signals.due, range(2))):
            time.sleep(0.001)
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


def test_01_exceptions_that_cannot_even_be_shown():
    class Mute(Exception):
        def __str__(self):
            raise TypeError("not a word")

        def __reduce__(self):
            raise SystemExit(3)

    def create():
        error = Mute()
        error.__notes__ = None
        return Raising(2, lambda: error)

    with pool((2, create)) as vec:
        vec.reset(seed=0)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - it has no text to match
            vec.step([0] * 4)
        assert "Mute" in f"{type(caught.value).__name__} {caught.value.args}"


# -- 2: a worker dies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("kill", -signal.SIGKILL, r"was killed by signal 9 \(SIGKILL\)"),
        ("segfault", -signal.SIGSEGV, r"was killed by signal 11 \(SIGSEGV\)"),
        ("exit", 3, "left with exit code 3"),
    ],
)
@pytest.mark.parametrize("at", [0, 3], ids=["reset", "step"])
def test_02_a_worker_that_dies(how, code, text, at, capfd):
    if how == "segfault" and "libasan" in os.environ.get("LD_PRELOAD", ""):
        how, code, text = "exit", 3, "left with exit code 3"  # the sanitizer makes something else of it
    with pool(crash(3, at, how)) as vec:
        if at:
            vec.reset(seed=0)
            vec.step([0] * 4)
            vec.step([0] * 4)
        begun = time.monotonic()
        with pytest.raises(WorkerDied, match=text) as caught:
            vec.step([0] * 4) if at else vec.reset()
        assert time.monotonic() - begun < 5
        assert caught.value.env_ids == [2, 3]
        assert caught.value.exit_code == code
        assert "worker 1, which ran envs 2 to 3" in str(caught.value)
        assert "It was last in env 3" in str(caught.value)
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            vec.step([0] * 4)
        if at:
            still_works(vec)
    capfd.readouterr()  # Python's own words about a crash


class Pid(SentinelEnv):
    def pid(self):
        return os.getpid()


def pids(**options):
    return shoal.Multiprocessing([partial(Pid, i, LONG) for i in range(4)], num_workers=2, **options)


def test_02_a_worker_killed_between_steps():
    with pids() as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(WorkerDied, match=r"worker 0, which ran envs 0 to 1, was killed by signal 9"):
            vec.step([0] * 4)
        assert time.monotonic() - begun < 5
        still_works(vec)
        assert len(set(vec.call("pid"))) == 2


def test_02_a_worker_killed_before_a_call():
    with pids() as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[3], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="envs 2 to 3"):
            vec.get_attr("count")
        for verb in (
            partial(vec.step, [0] * 4),
            partial(vec.get_attr, "count"),
            vec.snapshot,
            partial(vec.reset, options={"reset_mask": np.array([True, False, False, False])}),
        ):
            with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
                verb()
        still_works(vec)


def test_02_a_lost_worker_is_replaced_by_restore():
    with pids() as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)
        saved = vec.snapshot()
        os.kill(vec.call("pid")[3], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="envs 2 to 3"):
            vec.step([0] * 4)
        vec.restore(saved)
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2] * 4


def test_02_a_worker_killed_while_it_works_on_a_step_that_is_dropped():
    class Slow(SlowEnv, Pid):
        pass

    with shoal.Multiprocessing(
        [partial(Slow, i, 0.2, max_length=LONG) for i in range(4)], num_workers=2
    ) as vec:
        vec.reset(seed=0)
        pid = vec.call("pid")[0]
        vec.send([0] * 4)
        os.kill(pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"dropped by reset\(\): WorkerDied"):
            vec.reset(seed=1)
        still_works(vec)


# -- 3: an env hangs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["close", "reset"])
def test_03_an_env_that_hangs(again):
    with pool(hang(2, 2), timeout=3.0) as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)
        with pytest.raises(
            WorkerTimeout, match=r"worker 1.*has not answered within 3 s. It was last in env 2"
        ):
            vec.step([0] * 4)
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            vec.step([0] * 4)
        begun = time.monotonic()
        if again == "reset":
            obs, _ = vec.reset(seed=5)
            assert obs[:, 4].tolist() == [5, 6, 7, 8]
            assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4
        vec.close()
        assert time.monotonic() - begun < 20  # not an hour


def test_03_a_timeout_is_a_timeout_error():
    with pool(hang(0, 1), timeout=3.0) as vec:
        vec.reset(seed=0)
        with pytest.raises(TimeoutError, match="env 0") as caught:
            vec.step([0] * 4)
        assert caught.value.env_ids == [0, 1]


def test_03_a_call_that_hangs():
    class Waits(SentinelEnv):
        def wait(self):
            time.sleep(3600)

    with shoal.Multiprocessing([SentinelEnv, Waits], num_workers=2, timeout=3.0) as vec:
        vec.reset(seed=0)
        with pytest.raises(AttributeError, match="wait"):
            vec.call("wait")
        with pytest.raises(ResetNeeded, match="a worker is lost"):
            vec.step([0, 0])
        vec.reset(seed=0)
        vec.step([0, 0])


def test_03_a_creator_that_hangs():
    begun = time.monotonic()
    with pytest.raises(
        WorkerTimeout, match="worker 0, which ran env 0, has not answered while it was starting"
    ):
        shoal.Multiprocessing([partial(time.sleep, 3600), SentinelEnv], num_workers=2, timeout=3.0)
    assert time.monotonic() - begun < 20


# -- 4: a creator fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
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


def test_04_a_creator_that_fails_beside_one_that_takes_long():
    def slow():
        time.sleep(60)
        return SentinelEnv()

    def fail():
        raise OSError("no licence left")

    begun = time.monotonic()
    with pytest.raises(OSError, match="no licence left"):
        shoal.Multiprocessing([slow, fail], num_workers=2)
    assert time.monotonic() - begun < 30


def test_04_spaces_that_do_not_fit_end_the_workers():
    with pytest.raises(RuntimeError, match="env 1 has another observation space"):
        shoal.Multiprocessing([SentinelEnv, partial(SampleEnv, sp.Discrete(2), sp.Discrete(1000))])


def test_13_envs_are_closed_if_the_vec_comes_to_nothing(tmp_path):
    def fail():
        raise OSError("no licence left")

    with pytest.raises(OSError, match="no licence left"):
        shoal.Multiprocessing([partial(Closing, 0, tmp_path), fail], num_workers=2)
    odd = partial(SampleEnv, sp.Discrete(2), sp.Discrete(1000))
    with pytest.raises(RuntimeError, match="another observation space"):
        shoal.Multiprocessing([partial(Closing, 1, tmp_path), odd], num_workers=2)
    with pytest.raises(TypeError, match="seed: expected an integer"):
        shoal.Multiprocessing([partial(Closing, i, tmp_path) for i in (2, 3)], num_workers=2, seed="one")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("0123", "closed\n")


# -- 5: close, in any state --------------------------------------------------------------------------------


def fails(vec, how):
    vec.reset(seed=0)
    vec.set_attr("at", 1)
    vec.set_attr("how", how)
    vec.send([0] * 4)


def raised(vec):
    fails(vec, "raise")
    with pytest.raises(ValueError, match="failed as told"):
        vec.recv()


def died(vec):
    fails(vec, "kill")
    with pytest.raises(WorkerDied, match="SIGKILL"):
        vec.recv()


def attribute_missing(vec):
    with pytest.raises(AttributeError, match="typo"):
        vec.get_attr("typo")


STATES = {
    "new": lambda vec: None,
    "reset": lambda vec: vec.reset(seed=0),
    "reset under way": lambda vec: vec.async_reset(seed=0),
    "step under way": lambda vec: (vec.reset(seed=0), vec.send([0] * 4)),
    "finished": lambda vec: (vec.reset(seed=0), vec.step([0] * 4)),
    "attribute missing": attribute_missing,
    "raised": raised,
    "died": died,
    "raised unnoticed": partial(fails, how="raise"),
    "died unnoticed": partial(fails, how="kill"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("then", ["close", "reset", "forget"])
def test_05_close_and_reset_in_any_state(state, then):
    creators = [partial(CrashEnv, i, LONG, max_length=LONG) for i in range(4)]
    vec = shoal.Multiprocessing(creators, num_workers=2)
    STATES[state](vec)
    if then == "reset":
        with pytest.warns(UserWarning, match="dropped") if "unnoticed" in state else nullcontext():
            vec.reset(seed=5)
        vec.set_attr("at", LONG)
        still_works(vec)
    if then == "forget":
        del vec
    else:
        vec.close()
        vec.close()
        with pytest.raises(Closed, match="has been closed"):
            vec.step([0] * 4)


class Closing(SentinelEnv):
    """Leaves a file when it is closed."""

    def __init__(self, env_id, folder):
        super().__init__(env_id, LONG)
        self.folder = Path(folder)

    def close(self):
        with (self.folder / str(self.env_id)).open("a") as file:
            file.write("closed\n")


@pytest.mark.parametrize("parent_steps", [False, True])
def test_13_every_env_is_closed_once(tmp_path, parent_steps):
    creators = [partial(Closing, i, tmp_path) for i in range(5)]
    vec = shoal.Multiprocessing(creators, num_workers=2, parent_steps=parent_steps)
    vec.reset(seed=0)
    vec.send([0] * 5)
    vec.close()
    vec.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("01234", "closed\n")


def test_13_an_env_that_will_not_close_is_told_of():
    class Stubborn(SentinelEnv):
        def close(self):
            raise OSError("will not close")

    vec = shoal.Multiprocessing([SentinelEnv, Stubborn, SentinelEnv], num_workers=2)
    with pytest.raises(OSError, match="will not close"):
        vec.close()
    vec.close()


def test_05_a_vec_closed_by_another_thread_in_the_middle_of_a_step():
    vec = pool(hang(1, 1))
    vec.reset(seed=0)
    closer = threading.Timer(0.2, vec.close)
    closer.start()
    with pytest.raises(Closed, match="closed while its envs were moving"):
        vec.step([0] * 4)
    closer.join()


def test_05_a_vec_closed_by_a_signal_handler_in_the_middle_of_a_step():
    vec = pool(hang(1, 1))
    vec.reset(seed=0)
    before = signal.signal(signal.SIGALRM, lambda *_: vec.close())
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Closed, match="closed while its envs were moving"):
            vec.step([0] * 4)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("verb", ["step", "call", "reset"])
def test_06_ctrl_c_in_the_middle_of_anything(verb):
    class Slow(SlowEnv):
        def slow(self):
            time.sleep(0.3)

        def reset(self, **kwargs):
            if verb == "reset" and self.episode >= 0:
                time.sleep(0.3)
            return super().reset(**kwargs)

    creators = [partial(Slow, i, 0.3 if verb == "step" else 0.0, max_length=LONG) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2) as vec:
        vec.reset(seed=0)
        verbs = {"step": partial(vec.step, [0] * 4), "call": partial(vec.call, "slow"), "reset": vec.reset}
        with interrupted_after(0.1), pytest.raises(KeyboardInterrupt, match="now"):
            verbs[verb]()
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            vec.step([0] * 4)
        still_works(vec)


def test_06_ctrl_c_out_of_an_env_that_hangs_and_on():
    with pool(hang(2, 1)) as vec:
        vec.reset(seed=0)
        with interrupted_after(0.1), pytest.raises(KeyboardInterrupt, match="now"):
            vec.step([0] * 4)
        obs, _ = vec.reset(seed=5)  # gives it a second, then makes it anew
        assert obs[:, 4].tolist() == [5, 6, 7, 8]


@contextmanager
def interrupted_after(seconds):
    def interrupt(*_):
        raise KeyboardInterrupt("now")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# A worker's whole life, interrupted at every line that Python may be interrupted at.
@pytest.mark.parametrize("verb", ["step", "call", "reset", "close"])
def test_06_ctrl_c_between_any_two_lines(verb):
    import sys

    from shoal.vector import _crew, _launching, _mail, _pool

    files = {module.__file__ for module in (_pool, _crew, _mail, _launching)}

    def run(at):
        """Interrupt `verb` at the line number `at` of the pool's files; whether it has so many."""
        count = 0

        def trace(frame, event, _):
            nonlocal count
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                count += 1
                if count == at:
                    raise KeyboardInterrupt("now")
            return trace

        creators = [partial(SentinelEnv, i, LONG) for i in range(4)]
        with shoal.Multiprocessing(creators, num_workers=2) as vec:
            vec.reset(seed=0)
            verbs = {
                "step": partial(vec.step, [0] * 4),
                "call": partial(vec.call, "env_id"),
                "reset": partial(vec.reset, seed=1),
                "close": vec.close,
            }
            sys.settrace(trace)
            try:
                verbs[verb]()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            if verb == "close":
                vec.close()
            else:
                still_works(vec)
                assert vec.get_attr("env_id") == (0, 1, 2, 3)
        return count >= at

    more = True
    at = 1
    while more:
        # In a thread of its own: being interrupted in a with statement can leave marks on its thread.
        with ThreadPoolExecutor(1) as thread:
            more = thread.submit(run, at).result()
        at += 7


# -- 9, 10: calls and infos --------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return divmod, (1, 0)


class Answers(SentinelEnv):
    def bomb(self):
        return Bomb()

    def numbers(self):
        return (n for n in range(self.env_id))

    def adder(self):
        return lambda n: n + self.env_id

    def plus(self, array):
        return array + self.env_id


def answers():
    return shoal.Multiprocessing([partial(Answers, i, LONG) for i in range(4)], num_workers=2)


def test_09_a_result_that_cannot_be_pickled():
    with answers() as vec:
        with pytest.raises(EnvError, match="what call gave cannot be pickled, so it cannot leave its worker"):
            vec.call("numbers")
        still_works(vec)


def test_09_an_argument_that_cannot_be_pickled():
    with answers() as vec:
        with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
            vec.call("plus", (n for n in range(3)))
        with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
            vec.reset(options={"numbers": (n for n in range(3))})
        still_works(vec)


def test_10_an_info_that_cannot_be_pickled():
    class Locked(SentinelEnv):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"lock": threading.Lock()}

    with pool((1, partial(Locked, 1, LONG))) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match="an info cannot be pickled"):
            vec.step([0] * 4)


def test_09_a_result_that_cannot_be_unpickled_here():
    with answers() as vec:
        with pytest.raises(EnvError, match="what a worker sent cannot be unpickled here: ZeroDivisionError"):
            vec.call("bomb")
        assert vec.get_attr("env_id") == (0, 1, 2, 3)
        still_works(vec)


def test_09_values_that_only_cloudpickle_can_send():
    with answers() as vec:
        vec.set_attr("one_more", [lambda n=n: n + 1 for n in range(4)])
        assert vec.call("one_more") == (1, 2, 3, 4)
        assert [add(10) for add in vec.call("adder")] == [10, 11, 12, 13]


def test_10_large_messages_both_ways():
    large = np.arange(3_000_000)
    with answers() as vec:
        for env_id, result in enumerate(vec.call("plus", large)):
            np.testing.assert_array_equal(result, large + env_id)
        still_works(vec)


def test_02_several_workers_die_at_once():
    creators = [partial(CrashEnv, i, 2, "kill", max_length=LONG) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=4) as vec:
        for _ in range(5):
            vec.reset(seed=0)
            vec.step([0] * 4)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                vec.step([0] * 4)


def test_15_an_envs_signal_handler_that_raises_while_nobody_has_called(capfd):
    class Alarmed(Pid):
        def reset(self, **kwargs):
            def cry(*_):
                raise ValueError("alarm")

            signal.signal(signal.SIGUSR1, cry)
            return super().reset(**kwargs)

    with shoal.Multiprocessing([partial(Alarmed, i, LONG) for i in range(4)], num_workers=2) as vec:
        vec.reset(seed=0)
        pid = vec.call("pid")[0]
        assert wait_until(lambda: sleeps(pid), 10)
        os.kill(pid, signal.SIGUSR1)
        assert wait_until(lambda: "ValueError: alarm" in capfd.readouterr().err, 10)
        still_works(vec)


def sleeps(pid):
    """Whether a process does: a worker has nothing else to sleep for than a call."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("timeout", [3e6, 1e12])
def test_03_long_timeouts(timeout):
    with pool(timeout=timeout) as vec:
        still_works(vec)


def test_03_a_worker_that_does_not_read():
    with pids(timeout=3.0) as vec:
        vec.reset(seed=0)
        pid = vec.call("pid")[3]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match="worker 1"):
            vec.set_attr("extra", np.zeros(10_000_000))
        still_works(vec)


class Unbound(shoal.Env):
    """Cannot be given its rows."""

    observation_space = action_space = sp.Discrete(2)

    def __init__(self, file, fails):
        super().__init__()
        self.file, self.fails = file, fails

    def bind(self, rows, layouts=None):
        if self.fails:
            raise ValueError("no rows, please")
        super().bind(rows, layouts)

    def close(self):
        self.file.touch()


def test_13_envs_are_closed_if_one_cannot_settle_in(tmp_path):
    files = [tmp_path / str(i) for i in range(4)]
    with pytest.raises(ValueError, match="no rows, please"):
        shoal.Multiprocessing([partial(Unbound, file, file.name == "3") for file in files], num_workers=4)
    assert sorted(tmp_path.iterdir()) == files


def test_05_lines_outlive_a_forgotten_vec():
    """In a cycle, they are not collected before it: it still needs them, to end its workers."""
    vec = pids()
    vec.itself = vec
    lines = [mail._line for mail in vec._crew._mails.values()]
    workers = vec.call("pid")
    gc.collect()
    assert all(line in _mail._in_use for line in lines)
    del vec
    gc.collect()
    assert not any(line in _mail._in_use for line in lines)
    assert wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 10)
