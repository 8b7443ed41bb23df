"""shoal.Native: compiled envs on threads, behind the same contract as every other backend."""

import signal
import sys
import threading
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.vector.scripts import said_by

import shoal
from shoal import _core
from shoal.errors import (
    ActionError,
    AlreadyPending,
    ArgumentError,
    ArgumentTypeError,
    Closed,
    EpisodeOver,
    NothingPending,
    ResetNeeded,
    WrongMode,
)
from shoal.testing import check_vector_env
from shoal.testing.contract import difference

if _core.NAME != "native":
    pytest.skip("needs the compiled core", allow_module_level=True)

from shoal.native import compiling
from shoal.testing.native_envs import BoxNative, PairNative, SentinelNative

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"num_workers": 1}, id="1 thread", marks=pytest.mark.slow),
        pytest.param({"num_workers": 2}, id="2 threads"),
        pytest.param({"num_workers": 7}, id="7 threads", marks=pytest.mark.slow),
        pytest.param({"debug": True}, id="debug"),
    ],
)
def test_the_contract(options):
    """Other tests show that any number of threads gives the same."""
    check_vector_env(partial(shoal.Native, **options), num_envs=5, steps=40)


@pytest.mark.slow
def test_the_contract_with_many_envs():
    check_vector_env(shoal.Native, num_envs=300, steps=15)


def steps_of(vec, count, seed=3):
    """What a reset and `count` steps return, but for times."""
    vec.action_space.seed(0)
    found = [vec.reset(seed=seed)[0].copy()]
    for _ in range(count):
        obs, *rest, infos = vec.step(vec.action_space.sample())
        infos.get("episode", {}).pop("t", None)
        found.append((obs.copy(), *(column.copy() for column in rest), infos, vec.mask))
    return found


@pytest.mark.parametrize("env", [SentinelNative, PairNative, BoxNative, "shoal/CartPole-v1"], ids=str)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_any_number_of_threads_gives_the_same(env, mode):
    found = []
    for threads in (1, 2, 7):
        with shoal.make(env, 1000, autoreset_mode=mode, num_workers=threads, episode_stats=True) as vec:
            found.append(steps_of(vec, 30))
    assert difference(found[0], found[1]) is None
    assert difference(found[0], found[2]) is None


def test_the_short_way_and_the_long_way_are_the_same():
    found = []
    for copy in (False, True):
        with shoal.make("shoal/CartPole-v1", 300, copy=copy) as vec:
            found.append(steps_of(vec, 60))
            assert vec._fast_step is not copy
            assert vec.stats()["vector_steps"] == 60
            assert vec.stats()["transitions"] == sum(before[-1].sum() for before in found[-1][1:-1]) + 300
            ended = sum(np.count_nonzero(after[2] | after[3]) for after in found[-1][1:])
            assert vec.stats()["episodes"] == ended
    assert difference(*found) is None


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_other_backends_give_the_same(backend):
    with (
        shoal.make("shoal/CartPole-v1", 6) as vec,
        shoal.make("shoal/CartPole-v1", 6, backend=backend) as other,
    ):
        assert difference(steps_of(vec, 60), steps_of(other, 60)) is None


def trajectories(vec, batches):
    """What each env went through, with actions that only it decides."""
    vec.async_reset(seed=5)
    found = {}
    for _ in range(batches):
        batch = vec.recv()
        finals = batch.infos.get("final_obs", [None] * len(batch.rewards))
        for row, env in enumerate(batch.env_ids.tolist()):
            part = [column[row].tolist() for column in (batch.obs, *batch[1:6])]
            final = None if finals[row] is None else np.asarray(finals[row]).tolist()
            found.setdefault((env, int(batch.agent_ids[row])), []).append([*part, final])
        counts = [len(found[env, 0]) for env in batch.env_ids.tolist()]
        vec.send((7 * batch.env_ids + 3 * batch.agent_ids + 5 * np.array(counts)) % 10)
    return found


@pytest.mark.parametrize("env", [SentinelNative, PairNative])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_every_env_goes_its_own_way(env, mode):
    with shoal.make(env, 24, mode="async", autoreset_mode=mode, debug=True) as vec:
        expected = trajectories(vec, 40)
    cases = [(12, "fifo", 2), (8, "ready", 2), (1, "ready", 7), (6, "fifo", 1), (24, "ready", 3)]
    for batch_size, order, threads in cases:
        options = {"batch_size": batch_size, "order": order, "num_workers": threads, "mode": "async"}
        with shoal.make(env, 24, autoreset_mode=mode, **options) as vec:
            assert vec.batch_size == batch_size
            found = trajectories(vec, 40 * 24 // batch_size // 2)
        assert found.keys() <= expected.keys()
        for key, moments in found.items():
            length = min(len(moments), len(expected[key]))
            assert moments[:length] == expected[key][:length]


def test_fifo_reproduces_itself_and_ready_leaves_nobody_behind():
    with shoal.make(SentinelNative, 12, batch_size=4, num_workers=3) as vec:
        assert repr(vec) == "Native(num_envs=12, num_workers=3, batch_size=4, order='fifo')"
        vec.async_reset(seed=0)
        whose = []
        for _ in range(12):
            batch = vec.recv()
            whose.append(batch.env_ids.tolist())
            vec.send(np.zeros(4, np.int64))
    assert whose == [list(range(first, first + 4)) for first in (0, 4, 8)] * 4
    with shoal.make(SentinelNative, 12, batch_size=4, order="ready", num_workers=3) as vec:
        vec.async_reset(seed=0)
        heard = np.zeros(12, int)
        for _ in range(60):
            heard[vec.recv().env_ids] += 1
            vec.send(np.zeros(4, np.int64))
        assert heard.min() > 10


def test_surplus_envs_and_several_batches_in_hand():
    with shoal.make(SentinelNative, 8, surplus_envs=8, num_workers=2) as vec:
        assert (vec.num_envs, vec.batch_size) == (16, 8)
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        with pytest.raises(
            NothingPending,
            match="only 0 are under way: send actions for what was received and not sent first",
        ):
            vec.recv()
        with pytest.raises(
            ArgumentError, match="2 batches were received and not sent, so say whose actions these are"
        ):
            vec.send(np.zeros(8, np.int64))
        vec.send(np.full(8, 2), env_ids=second.env_ids)
        vec.send(np.full(8, 1), env_ids=first.env_ids)
        assert vec.recv().obs[:, 3].tolist() == [2] * 8
        assert vec.recv().obs[:, 3].tolist() == [1] * 8
        with pytest.raises(WrongMode, match="call send\\(\\), then recv\\(\\), instead of step\\(\\)"):
            vec.step(np.zeros(8, np.int64))


def test_parts_of_an_asynchronous_vec_can_be_reset():
    creators = [partial(SentinelNative, env_id=env, max_length=1 if env < 2 else 100) for env in range(8)]
    with shoal.make(creators, batch_size=4, autoreset_mode="Disabled", num_workers=2) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.send(np.ones(4, np.int64))
        vec.recv()
        vec.send(np.ones(4, np.int64))
        batch = vec.recv()
        assert batch.mask.tolist() == [False, False, True, True]
        with pytest.raises(EpisodeOver, match=r"envs \[0, 1\] have finished"):
            vec.send(np.ones(4, np.int64))
        vec.async_reset(options={"reset_mask": np.arange(8) < 2})
        vec.recv()
        again = vec.recv()
        assert again.env_ids.tolist() == [0, 1, 2, 3]
        assert again.mask.all()
        assert again.obs[:, 2].tolist() == [0, 0, *batch.obs[2:, 2]]
        vec.send(np.ones(4, np.int64), env_ids=again.env_ids)
        with pytest.raises(ArgumentError, match=r"reset_mask: expected only envs that were received"):
            vec.async_reset(options={"reset_mask": np.arange(8) < 1})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_workers": 0}, ArgumentError, "num_workers: expected a positive integer, got 0"),
        ({"batch_size": 9}, ArgumentError, "batch_size: expected an integer from 1 to 8"),
        ({"order": "ready"}, ArgumentError, "order: a synchronous vec returns all envs at once"),
        ({"mode": "sideways"}, ArgumentError, "mode: expected 'sync', 'async' or None"),
        ({"timeout": 3.0}, ArgumentError, "timeout: compiled envs run on threads in this process"),
        (
            {"wrappers": [lambda env: env], "backend": "native"},
            ArgumentError,
            "wrappers: compiled envs run on threads",
        ),
        ({"observation_mode": "different"}, ArgumentError, "observation_mode: compiled envs"),
        ({"render_mode": "human"}, ArgumentError, "render_mode: SentinelNative has no 'human'"),
        ({"env_kwargs": {"speed": 1}}, ArgumentError, "speed: SentinelNative has no such argument"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_that_cannot_work(options, error, text):
    with pytest.raises(error, match=text):
        shoal.make(SentinelNative, 8, **options)


def test_envs_that_are_not_compiled():
    with pytest.raises(ArgumentTypeError, match=r"Native runs classes derived from shoal.NativeEnv"):
        shoal.Native(lambda: gymnasium.make("CartPole-v1"), 2)
    with pytest.raises(ArgumentError, match="expected the same class for each env"):
        shoal.Native([SentinelNative, BoxNative])
    with pytest.raises(ArgumentError, match="debug: only compiled envs have it"):
        shoal.make("CartPole-v1", 2, debug=True)
    with pytest.raises(ArgumentError, match="compiled envs take their config by name"):
        shoal.Native(partial(SentinelNative, 3), 2)


def test_constants_cannot_be_set():
    with shoal.make("shoal/CartPole-v1", 2) as vec:
        assert vec.get_attr("sutton_barto_reward") == (False, False)
        with pytest.raises(AttributeError, match=r"this is a constant of CartPole, compiled in\. Pass"):
            vec.set_attr("sutton_barto_reward", True)


def test_verbs_out_of_turn():
    vec = shoal.make(SentinelNative, 3)
    with pytest.raises(ResetNeeded, match="compiled envs have no state before their first reset"):
        vec.step(np.zeros(3, np.int64))
    vec.reset(seed=0)
    with pytest.raises(
        ArgumentError, match=r"options: compiled envs have none beside reset_mask, got \['level'\]"
    ):
        vec.reset(options={"level": 3})
    vec.reset(seed=0)
    vec.close()
    with pytest.raises(Closed, match="the vec has been closed"):
        vec.step(np.zeros(3, np.int64))


class Fragile(shoal.NativeEnv):
    """Raises where it is told to, which only NumPy can inside a kernel."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    state = np.dtype([("count", np.int64)])
    parameters = {"limit": 1000}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0

    @staticmethod
    def step(state, obs, config):
        state.count += 1
        obs[:] = np.zeros(2 if state.count < config.limit else 3)
        return 1.0, False


@pytest.mark.filterwarnings("ignore")  # pytest's, of what Numba prints
@pytest.mark.parametrize(
    "options", [{}, {"copy": False}, {"copy": False, "num_workers": 1}, {"batch_size": 4}], ids=str
)
def test_what_is_raised_inside_a_kernel_is_not_lost(options):
    compiling._made.clear()  # so that it comes from disk
    with shoal.make(Fragile, 8, env_kwargs={"limit": np.where(np.arange(8) == 5, 4, 1000)}, **options) as vec:
        actions = np.zeros(vec.batch_size, np.int64)
        begin = vec.async_reset if "batch_size" in options else vec.reset
        step = (
            (lambda: (vec.recv(), vec.send(actions)))
            if "batch_size" in options
            else (lambda: vec.step(actions))
        )

        def run():
            for _ in range(12):
                step()

        for _ in range(2):
            begin(seed=0)
            with pytest.raises(shoal.errors.NativeError, match="something was raised inside the kernel"):
                run()
            with pytest.raises(ResetNeeded, match="reset"):
                step()


@pytest.mark.parametrize("copy", [True, False])
def test_bad_actions_move_nobody(copy):
    with shoal.make("shoal/CartPole-v1", 100, copy=copy) as vec:
        vec.reset(seed=0)
        good = np.zeros(100, np.int64)
        for _ in range(3):
            obs = vec.step(good)[0].copy()
        for wrong in (
            good + 2,
            good - 1,
            good[:-1],
            np.where(np.arange(100) == 99, 2**62, 0),
            good.astype(float) + 0.5,
        ):
            with pytest.raises(ActionError, match=r"[Nn]o env has moved"):
                vec.step(wrong)
        kept = vec.step(good)[0].copy()
        vec.reset(seed=0)
        for _ in range(4):
            last = vec.step(good)[0]
        assert np.array_equal(last, kept)
        assert not np.array_equal(obs, kept)
        # Other forms of good actions are taken, too.
        assert np.array_equal(vec.step(good.astype(np.int32))[1], np.ones(100))
        assert np.array_equal(vec.step(good.tolist())[1], np.ones(100))
        assert np.array_equal(vec.step(np.zeros(200, np.int64)[::2])[1], np.ones(100))


def test_actions_of_rows_that_are_reset_are_not_read():
    with shoal.make(SentinelNative, 50, env_kwargs={"max_length": 1}, copy=False) as vec:
        vec.reset(seed=0)
        for _ in range(10):
            actions = np.where(vec.mask, 5, -(2**63))
            _, rewards, *_ = vec.step(actions)
            assert (rewards >= 0).all()


def threads_here():
    """Threads of this process by their number, as the kernel has them."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def test_threads_end_with_the_vec():
    before = threads_here()
    vec = shoal.make("shoal/CartPole-v1", 5000, num_workers=5)
    vec.reset(seed=0)
    vec.step(np.zeros(5000, np.int64))
    assert len(threads_here() - before) == 4
    vec.close()
    vec.close()
    assert threads_here() <= before
    vec = shoal.make("shoal/CartPole-v1", 50, batch_size=10, num_workers=3)
    vec.async_reset(seed=0)
    assert len(threads_here() - before) == 3
    del vec
    assert threads_here() <= before


def test_a_step_allocates_nothing():
    with shoal.make("shoal/CartPole-v1", 4096, copy=False, num_workers=2) as vec:
        vec.reset(seed=0)
        actions = np.zeros(4096, np.int64)
        first = [vec.step(actions) for _ in range(5)][-1]
        before = sys.getallocatedblocks()
        for _ in range(200):
            last = vec.step(actions)
        # A tuple and a dict of infos are all that a step makes; the C++ test counts what the pool does.
        assert sys.getallocatedblocks() - before < 10
        assert all(ours is theirs for ours, theirs in zip(first[:4], last[:4], strict=True))


def test_other_threads_may_run_meanwhile_and_may_not_step():
    with shoal.make("shoal/CartPole-v1", 200_000, num_workers=1, copy=False) as vec:
        vec.reset(seed=0)
        actions = np.zeros(200_000, np.int64)
        vec.step(actions)
        begun, ended, problems = threading.Event(), threading.Event(), []

        def step():
            begun.set()
            while not ended.is_set():
                try:
                    vec.step(actions)
                except shoal.errors.CallError as error:
                    problems.append(error)

        other = threading.Thread(target=step)
        other.start()
        begun.wait()
        refused = 0
        while not (refused or problems):
            try:
                vec.step(actions)
            except AlreadyPending as error:
                assert "the envs are moving" in str(error)  # noqa: PT017
                refused += 1
        ended.set()
        other.join()
        assert all("the envs are moving" in str(error) for error in problems)
        assert vec.step(actions)[0].shape == (200_000, 4)


def test_a_signal_handler_may_close():
    script = """
    import os, signal, shoal, time, numpy as np
    from gymnasium.spaces import Box, Discrete

    class Slow(shoal.NativeEnv):
        observation_space = Box(0, 1, (1,), np.float64)
        action_space = Discrete(2)
        parameters = {"turns": 0}

        @staticmethod
        def reset(obs):
            obs[0] = 0.0

        @staticmethod
        def step(action, obs, config):
            total = 0.0
            for turn in range(config.turns * action):
                total += turn * 0.5
            obs[0] = total * 0.0
            return 0.0, False

    signal.signal(signal.SIGALRM, lambda *_: vec.close())
    # Again, and later, if the signal came before recv() had begun, or after the step was over.
    for turns, seconds in ((5e8, 0.1), (4e9, 0.5), (3e10, 2.0)):
        begun, begins = os.pipe()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.read(begun, 1)
            time.sleep(seconds)
            os.kill(parent, signal.SIGALRM)
            os._exit(0)
        vec = shoal.make(Slow, 4, batch_size=2, num_workers=2, env_kwargs={"turns": int(turns)})
        vec.async_reset(seed=0)
        vec.recv()
        vec.send(np.zeros(2, np.int64))
        vec.recv()
        vec.send(np.ones(2, np.int64))
        vec.recv()
        try:
            os.write(begins, b"x")
            vec.recv()
        except shoal.errors.Closed as error:
            if "while its envs were moving" in str(error):
                print(error, flush=True)
                break
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    """
    assert "closed while its envs were moving" in said_by(script)


def test_the_refusal_names_the_step_of_the_fast_path():
    with shoal.make("shoal/CartPole-v1", 4, copy=False) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, np.int64))
        vec.call("x")
        assert vec._fast_step is not None
        vec._turn_taken = True  # as in the middle of a step
        with pytest.raises(AlreadyPending, match="Call it when their step is over"):
            vec.reset()
        vec._turn_taken = False


def test_a_forked_child_is_told():
    script = """
    import os, shoal, numpy as np
    vec = shoal.make("shoal/CartPole-v1", 100, copy=False)
    vec.reset(seed=0)
    for _ in range(3):
        vec.step(np.zeros(100, np.int64))
    assert vec._fast_step
    child = os.fork()
    if child == 0:
        for verb in (lambda: vec.step(np.zeros(100, np.int64)), vec.reset):
            try:
                verb()
            except shoal.errors.WorkerError as error:
                print(error, flush=True)
        vec.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    vec.step(np.zeros(100, np.int64))
    """
    assert said_by(script).count("only that one can use it: make a new one here") == 2


def test_threads_of_the_core_leave_signals_to_python():
    """A thread that took Ctrl-C would not wake the main thread, which has to run the handler."""

    others = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD)
    faults = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

    def masks():
        statuses = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
        fields = [dict(line.split(":\t", 1) for line in status.splitlines()) for status in statuses]
        return {own["Pid"]: int(own["SigBlk"], 16) for own in fields}

    def is_quiet(mask):
        blocked = {number for number in (*others, *faults) if mask >> (number - 1) & 1}
        return blocked == set(others)

    # One thread first: to compile may start others, which are not the core's.
    with shoal.make("shoal/CartPole-v1", 64, num_workers=1, seed=0) as vec:
        vec.reset()
    before = masks()
    with shoal.make("shoal/CartPole-v1", 64, num_workers=3, seed=0) as vec:
        vec.reset()
        # The C library lets a thread start with all signals blocked, and gives it its own mask then.
        assert wait_until(
            lambda: [is_quiet(mask) for task, mask in masks().items() if task not in before] == [True, True],
            60,
        )
    assert masks() == before
