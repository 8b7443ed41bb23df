"""close() from elsewhere: by another thread, a signal handler or an env, and what it leaves to be closed."""

import signal
import threading
import time
from pathlib import Path

import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until

import shoal
from shoal import _core
from shoal.errors import Closed, NothingPending
from shoal.testing import SentinelEnv

native = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


@pytest.fixture
def alarm():
    """Call a function in a signal handler, some time from now."""
    before = signal.getsignal(signal.SIGALRM)

    def after(seconds, function):
        signal.signal(signal.SIGALRM, lambda *_: function())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@native
def test_a_thread_closes_while_another_hears_infos():
    for _ in range(5):
        vec = shoal.Multiprocessing(lambda: SentinelEnv(0, 10**6), 4, num_workers=2)
        vec.reset(seed=0)
        stepped, raised = threading.Event(), []

        def steps(vec=vec, stepped=stepped, raised=raised):
            try:
                while True:
                    vec.step(np.zeros(4, np.int64))
                    stepped.set()
            except Closed as error:
                raised.append(error)

        thread = threading.Thread(target=steps)
        thread.start()
        assert stepped.wait(60)
        vec.close()
        thread.join(60)
        assert len(raised) == 1
        assert vec.closed


def test_ctrl_c_while_a_verb_closes_the_envs_leaves_them_to_another_close():
    class Closes(SentinelEnv):
        closed, interrupted = 0, True

        def step(self, action):
            vec.close()
            return super().step(action)

        def close(self):
            Closes.closed += 1
            if Closes.interrupted and Closes.closed == 2:
                raise KeyboardInterrupt("now")

    vec = shoal.Serial(lambda: Closes(0), 3)
    vec.reset(seed=0)
    with pytest.raises(KeyboardInterrupt, match="now"):
        vec.step([0, 0, 0])
    assert not vec.closed
    Closes.closed, Closes.interrupted = 0, False
    vec.close()
    assert vec.closed
    assert Closes.closed == 3


@native
def test_a_handler_that_closes_and_raises_leaves_no_threads(alarm):
    class Stop(BaseException):
        pass

    def stop():
        vec.close()
        raise Stop("now")

    def threads():  # also those of the core, which Python does not know
        return len(list(Path("/proc/self/task").iterdir()))

    shoal.make("shoal/CartPole-v1", 64, num_workers=2).close()  # what is loaded for it keeps a thread
    before = threads()
    for run in range(10):  # where in a step it comes is for chance
        vec = shoal.make("shoal/CartPole-v1", 64, copy=False, num_workers=2)
        vec.reset(seed=0)
        with pytest.raises(Stop, match="now"):  # noqa: PT012 - it comes at any step
            alarm(0.01 + 0.001 * run, stop)
            while True:
                vec.step(np.zeros(64, np.int64))
                time.sleep(0)  # a signal that another thread received is seen when the GIL is taken
        assert vec.closed
        assert wait_until(lambda: threads() == before, 60)


def test_a_closed_asynchronous_vec_has_no_batch():
    if _core.NAME != "native":
        pytest.skip("needs the compiled core")
    vec = shoal.Multiprocessing(lambda: SentinelEnv(0), 4, num_workers=2, batch_size=2)
    vec.async_reset(seed=0)
    vec.recv()
    vec.close()
    with pytest.raises(NothingPending, match="no batch was received and not sent"):
        vec.mask  # noqa: B018


def test_a_warning_points_to_the_line_that_called():
    class Outside(SentinelEnv):
        observation_space = sp.Box(0, 1, (1,))

        def reset(self, **_):
            return np.full(1, 7, np.float32), {}

    with shoal.Serial(lambda: Outside(0), 1) as vec, pytest.warns(UserWarning, match="outside") as caught:
        vec.reset(seed=0)
    assert caught[0].filename == __file__


class Letters(sp.Space):
    """A space without ``==``, whose attributes pickle in another order in each process."""

    def __init__(self):
        super().__init__()
        self.letters = {f"letter {n}" for n in range(20)}

    def contains(self, x):
        return x in self.letters

    def sample(self, mask=None, probability=None):
        return "letter 3"


@native
def test_custom_spaces_are_equal_if_their_attributes_are():
    class Spells(SentinelEnv):
        observation_space = Letters()

        def reset(self, **_):
            return "letter 3", {}

    with shoal.Multiprocessing(lambda: Spells(0), 2, num_workers=2, start_method="spawn") as vec:
        assert vec.reset(seed=0)[0] == ("letter 3", "letter 3")


@pytest.mark.parametrize("what", ["contains", "seed", "metadata"])
def test_sys_exit_in_a_space_or_a_property_does_not_end_the_process(what):
    class Leaves(Letters):
        def contains(self, x):
            return raise_exit() if what == "contains" else super().contains(x)

        def seed(self, seed=None):
            return raise_exit() if what == "seed" else super().seed(seed)

    class Env(SentinelEnv):
        observation_space = Leaves()
        metadata = property(lambda self: raise_exit() if what == "metadata" else {})

        def reset(self, **_):
            return "letter 3", {}

    def raise_exit():
        raise SystemExit(4)

    if what == "contains":  # a space that does not answer says nothing
        with shoal.Serial(lambda: Env(0), 2) as vec:
            vec.reset()
    else:
        with pytest.raises(shoal.errors.ShoalError, match=r"sys.exit\(4\)"):
            shoal.Serial(lambda: Env(0), 2)


@pytest.fixture
def _patient(monkeypatch):
    """Let close() wait for other threads as long as it takes."""
    monkeypatch.setattr("shoal.vector.life.PATIENCE", 60.0)


class ClosesSlowly(SentinelEnv):
    """Waits in each step for the event `step_on`, and in the first `close` for the event `end`."""

    def __init__(self):
        super().__init__(0)
        self.inside, self.step_on, self.closing, self.end = (threading.Event() for _ in range(4))
        self.closed = 0

    def step(self, action):
        self.inside.set()
        assert self.step_on.wait(60)
        return super().step(action)

    def close(self):
        self.closed += 1
        self.closing.set()
        assert self.closed > 1 or self.end.wait(60)


def refused(function):
    """Run a verb in a thread, which must raise `Closed`."""

    def run():
        with pytest.raises(Closed, match="closed"):
            function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.usefixtures("_patient")
def test_close_waits_for_a_verb_that_closes_the_envs():
    env = ClosesSlowly()
    vec = shoal.Serial(lambda: env)
    vec.reset(seed=0)
    release, wait = vec._release_all, vec._await_closed
    others = []

    def release_second():
        """Let a verb of another thread come first."""
        del vec._release_all
        others.append(refused(lambda: vec.step([0])))
        assert env.closing.wait(60)
        return release()

    def await_closed():
        env.end.set()
        wait()

    vec._release_all, vec._await_closed = release_second, await_closed
    vec.close()
    was_closed = vec.closed
    env.end.set()
    others[0].join(60)
    assert was_closed
    assert env.closed == 1
    del vec._await_closed


@pytest.mark.usefixtures("_patient")
def test_an_interrupted_close_and_another_one_close_each_env_once():
    env = ClosesSlowly()
    vec = shoal.Serial(lambda: env)
    vec.reset(seed=0)
    verb = refused(lambda: vec.step([0]))
    assert env.inside.wait(60)

    def interrupted():
        raise KeyboardInterrupt("now")

    vec._await_closed = interrupted
    with pytest.raises(KeyboardInterrupt, match="now"):
        vec.close()
    del vec._await_closed
    env.step_on.set()
    assert env.closing.wait(60)
    wait = vec._await_closed

    def await_closed():
        env.end.set()
        wait()

    vec._await_closed = await_closed
    try:
        vec.close()
    finally:
        env.end.set()
        verb.join(60)
        del vec._await_closed
    assert vec.closed
    assert env.closed == 1


@native
def test_an_interrupted_close_of_an_asynchronous_vec_can_be_repeated(monkeypatch):
    vec = shoal.Multiprocessing(SentinelEnv, 4, num_workers=2, batch_size=2)
    vec.async_reset(seed=0)
    vec.recv()

    def interrupted(*_, **__):
        raise KeyboardInterrupt("now")

    with monkeypatch.context() as patch:
        patch.setattr("shoal.vector.vec.replace", interrupted)  # after the batches were released
        with pytest.raises(KeyboardInterrupt, match="now"):
            vec.close()
    vec.close()
    assert vec.closed
