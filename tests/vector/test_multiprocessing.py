"""The process pool when all goes well: the contract, equality with Serial, counts, arguments, statistics."""

import os
import time
from functools import partial
from pathlib import Path

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from tests.conftest import wait_until

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import ArgumentError, CoreNeeded, SnapshotError, WorkerError
from shoal.testing import CrashEnv, SampleEnv, SentinelEnv, check_vector_env
from shoal.testing.contract import difference
from shoal.testing.side_by_side import same_batches

native = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


def sentinels(count):
    return [partial(SentinelEnv, i) for i in range(count)]


@pytest.mark.skipif(_core.NAME == "native", reason="only without the compiled core")
def test_without_the_compiled_core_it_says_so():
    with pytest.raises(CoreNeeded, match=r"Multiprocessing needs the compiled core.*use shoal\.Serial"):
        shoal.Multiprocessing(SentinelEnv, 2)


# -- the contract ------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 1, "parent_steps": True},
        pytest.param({"envs_per_worker": 2}, marks=pytest.mark.slow),
        pytest.param(  # to fork a process that has run many tests takes long
            {"num_workers": 5, "timeout": 60.0, "start_method": "fork"},
            marks=[pytest.mark.slow, pytest.mark.timeout(600)],
        ),
    ],
    ids=str,
)
def test_the_whole_contract(options):
    check_vector_env(partial(shoal.Multiprocessing, **options), num_envs=5, steps=25)


SPLITS = [
    (1, 1, False),
    (2, 2, False),
    (7, 2, False),
    (7, 3, False),
    (9, 8, False),
    (2, 1, True),
    (7, 1, True),
    (8, 2, True),
    (9, 8, True),
]


@native
@pytest.mark.parametrize(
    ("count", "workers", "parent_steps", "mode"),
    [
        # Every mode with one split of each kind, every split with one mode; the rest by hand.
        pytest.param(
            *split,
            mode,
            marks=() if split in ((7, 3, False), (7, 1, True)) or number % 3 == turn else pytest.mark.slow,
        )
        for number, split in enumerate(SPLITS)
        for turn, mode in enumerate(AutoresetMode)
    ],
)
def test_every_batch_is_that_of_serial(mode, count, workers, parent_steps):
    with (
        shoal.Serial(sentinels(count), autoreset_mode=mode, episode_stats=True) as serial,
        shoal.Multiprocessing(
            sentinels(count),
            num_workers=workers,
            parent_steps=parent_steps,
            autoreset_mode=mode,
            episode_stats=True,
        ) as vec,
    ):
        same_batches(serial, vec, 25, f"{count} envs, {workers} workers")


@native
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_real_envs_give_the_same_trajectories_bit_for_bit(name):
    def run(backend, **options):
        with backend(partial(gymnasium.make, name), num_envs=5, seed=3, **options) as vec:
            moments = [vec.reset()]
            moments += [vec.step(vec.action_space.sample()) for _ in range(300)]
        return moments

    expected = run(shoal.Serial)
    for options in ({"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "parent_steps": True}):
        assert difference(run(shoal.Multiprocessing, **options), expected) is None


@native
def test_more_workers_than_cores():
    with shoal.Multiprocessing(sentinels(16), num_workers=16) as vec:
        vec.reset(seed=0)
        for _ in range(50):
            obs, *_ = vec.step(np.arange(16))
            assert obs[:, 0].tolist() == list(range(16))


@native
def test_gymnasiums_wrappers_go_around_it():
    vec = gymnasium.wrappers.vector.RecordEpisodeStatistics(shoal.Multiprocessing(CARTPOLE, 4, num_workers=2))
    vec.reset(seed=0)
    lengths = []
    for _ in range(200):
        infos = vec.step(vec.action_space.sample())[-1]
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    vec.close()
    assert len(lengths) > 10
    assert min(lengths) >= 8


@native
def test_render():
    create = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with shoal.Multiprocessing(create, 3, num_workers=2) as vec:
        assert vec.render_mode == "rgb_array"
        vec.reset(seed=0)
        frames = vec.render()
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 3


@native
def test_one_arena_within_a_twentieth_of_its_rows():
    space = sp.Box(0, 255, (84, 84, 4), np.uint8)
    with shoal.Multiprocessing(partial(SampleEnv, space, sp.Discrete(2)), 8, num_workers=2) as vec:
        rows = 8 * (84 * 84 * 4 + 8 + 8 + 4 + 16)
        assert rows <= vec._engine._workers._memory.block.nbytes <= 1.05 * rows
        first = vec.reset(seed=0)[0]
        assert first.shape == (8, 84, 84, 4)


@native
def test_a_snapshot_of_another_split_is_refused():
    with (
        shoal.Multiprocessing(sentinels(4), num_workers=2) as two,
        shoal.Multiprocessing(sentinels(4), num_workers=4) as four,
    ):
        two.reset(seed=0)
        four.reset(seed=0)
        with pytest.raises(SnapshotError, match="another split of envs among processes"):
            four.restore(two.snapshot())
        four.reset(seed=0)


# -- seeds -------------------------------------------------------------------------------------------------


def received(vec):
    """Reset a vec, and return for each env the number of its episode since its last seed, and that seed."""
    vec.async_reset()
    batches = [vec.recv() for _ in range(vec.num_envs // vec.batch_size)]
    return np.concatenate([batch.obs for batch in batches])[:, [1, 4]].tolist()


@native
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}], ids=["sync", "async"])
def test_a_planned_seed_is_kept_if_a_worker_fails_to_reset(options):
    creators = [SentinelEnv, partial(CrashEnv, 1, 0)]  # an asynchronous vec receives the first env
    with shoal.Multiprocessing(creators, num_workers=2, seed=5, **options) as vec:
        with pytest.raises(ValueError, match="failed as told"):
            received(vec)
        vec.set_attr("at", 99)
        assert received(vec) == [[0, 5], [0, 6]]
        assert received(vec) == [[1, 5], [1, 6]]  # without a seed
        vec.async_reset()
        vec.seed(9)
        vec.recv()
        assert received(vec) == [[0, 9], [0, 10]]


# -- forks -------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}], ids=["sync", "async"])
def test_a_forked_child_leaves_the_rows_of_its_parent_as_they_are(options):
    with shoal.Multiprocessing(sentinels(2), num_workers=1, mode="async" if options else None) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.send([1, 2])
        vec.recv()
        before = vec._arena.actions.copy()
        pid = os.fork()
        if pid == 0:
            try:
                vec.send([77, 88])
            except WorkerError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert np.array_equal(vec._arena.actions, before)
        vec.send([3, 4])
        assert vec.recv().obs[:, 3].tolist() == [3, 4]


# -- counts and arguments ----------------------------------------------------------------------------------


@native
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": 0}, "num_workers: expected a positive integer, got 0"),
        ({"num_workers": 2.0}, "num_workers: expected a positive integer, got 2.0"),
        ({"num_workers": True}, "num_workers: expected a positive integer, got True"),
        ({"num_workers": 5}, "num_workers: expected at most 4, one per creator, got 5"),
        ({"num_workers": 4, "parent_steps": True}, "num_workers: expected at most 3, one per creator, got 4"),
        ({"envs_per_worker": 0}, "envs_per_worker: expected a positive integer, got 0"),
        ({"envs_per_worker": True}, "envs_per_worker: expected a positive integer, got True"),
        ({"envs_per_worker": 4, "parent_steps": True}, "envs_per_worker: expected less than 4"),
        ({"envs_per_worker": 2, "num_workers": 2}, "each follows from the other, pass one of them"),
        ({"timeout": 0}, "timeout: expected a positive number of seconds or None, got 0"),
        ({"timeout": "1"}, "timeout: expected a positive number of seconds or None, got '1'"),
        ({"on_error": "ignore"}, "on_error: expected 'raise' or 'restart', got 'ignore'"),
        ({"start_method": "thread"}, "start_method: expected one of forkserver, fork, spawn, got 'thread'"),
        ({"parent_steps": True, "timeout": 1.0}, "parent_steps: cannot be combined with timeout"),
        ({"parent_steps": True, "on_error": "restart"}, "cannot be combined with on_error='restart'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_that_cannot_work(options, text):
    with pytest.raises(ArgumentError, match=text):
        shoal.Multiprocessing(sentinels(4), **options)


@native
def test_one_env_cannot_be_shared():
    with pytest.raises(ArgumentError, match="parent_steps: expected at least 2 envs"):
        shoal.Multiprocessing(SentinelEnv, parent_steps=True)


@native
@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({}, 3),
        ({"parent_steps": True}, 2),
        ({"envs_per_worker": 3}, 3),
        ({"envs_per_worker": 100}, 1),
        ({"num_workers": np.int64(5)}, 5),
    ],
    ids=str,
)
def test_how_many_workers(monkeypatch, options, workers):
    monkeypatch.setattr("shoal.vector.multiprocessing.usable_cores", lambda: 3)
    with shoal.Multiprocessing(sentinels(7), **options) as vec:
        assert vec.num_workers == workers
        assert vec.reset(seed=0)[0][:, 0].tolist() == list(range(7))


@native
def test_repr():
    with shoal.Multiprocessing(CARTPOLE, 4, num_workers=1, parent_steps=True) as vec:
        assert repr(vec) == "Multiprocessing(num_envs=4, num_workers=1, parent_steps=True)"
        vec.spec = gymnasium.spec("CartPole-v1")
        assert repr(vec) == "Multiprocessing(CartPole-v1, num_envs=4, num_workers=1, parent_steps=True)"


# -- statistics --------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("parent_steps", [False, True])
def test_statistics_say_who_waits_for_whom(parent_steps):
    class Sleepy(SentinelEnv):
        def step(self, action):
            time.sleep(0.01 * action)
            return super().step(action)

    creators = [partial(Sleepy, i, 10**6) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2 - parent_steps, parent_steps=parent_steps) as vec:
        vec.reset(seed=0)
        for _ in range(5):
            vec.step([1] * 4)
        stats = vec.stats()
        assert stats["vector_steps"] == 5
        assert stats["bound"] == "envs"
        assert stats["restarts"] == 0
        assert stats["seconds_step"] >= 0.1
        assert stats["seconds_workers_stepping"] >= 0.1
        hops = stats["seconds_step"] + stats["seconds_signal"] + stats["seconds_view"]
        assert hops == pytest.approx(stats["seconds_in_step"], rel=0.05)
        if not parent_steps:
            assert stats["seconds_waiting"] >= 0.1
        inside = stats["seconds_in_step"]
        for _ in range(3):
            time.sleep(inside)  # three times as long as the envs took, however long that was
            vec.step([0] * 4)
        stats = vec.stats()
        assert stats["bound"] == "learner"
        assert stats["seconds_outside"] >= 0.3
        assert stats["seconds_workers_waiting"] >= 0.25


@native
def test_what_is_done_between_send_and_recv_costs_no_waiting():
    between = 0.0
    with shoal.Multiprocessing(sentinels(4), num_workers=2) as vec:
        vec.reset(seed=0)
        before = vec.stats()
        for _ in range(5):
            vec.send([0] * 4)
            begun = time.perf_counter()
            assert wait_until(lambda: not any(map(vec._engine._signals.due, range(2))), 60)
            time.sleep(0.03)
            between += time.perf_counter() - begun
            vec.recv()
        stats = vec.stats()
        for name in ("seconds_waiting", "seconds_signal"):
            assert stats[name] - before[name] < between / 2


# -- cores -------------------------------------------------------------------------------------------------


def folder(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [1.5]),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
            },
            [4, 3],
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            [2],
        ),
    ],
    ids=["none", "no limit", "version 2", "version 2, nested", "version 1"],
)
def test_cgroup_quotas(tmp_path, files, quotas):
    from shoal.cores import cgroup_quotas

    assert list(cgroup_quotas(folder(tmp_path, files))) == quotas


def test_usable_cores_follow_affinity_and_quota(monkeypatch):
    from shoal import cores as _cores

    monkeypatch.setattr(_cores, "affinity", lambda: list(range(8)))
    for quotas, cores in (([], 8), ([2.5, 6], 3), ([0.5], 1), ([100], 8)):
        monkeypatch.setattr(_cores, "cgroup_quotas", lambda quotas=quotas: iter(quotas))
        assert _cores.usable_cores() == cores


def test_the_more_share_a_core_the_sooner_they_sleep():
    from shoal.cores import patience_with

    for whose in (0, 1):
        alone, shared, crowded = (patience_with(workers, 3)[whose] for workers in (2, 3, 8))
        assert alone.pauses > shared.pauses >= crowded.pauses
        assert alone.yields >= shared.yields > crowded.yields > 0


def waited_for_a_core(pid):
    """Seconds in which a process could have run, but others did."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@native
def test_no_answer_is_slept_over():
    """Parent and worker end at nearly the same time, again and again; asleep, the parent looks each 50 ms.

    A step that was late because a process had no core is not counted. A busy machine makes fewer steps.
    """

    class Still(gymnasium.Env):
        observation_space = sp.Box(0, 1, (1,), np.float32)
        action_space = sp.Discrete(2)
        zeros = np.zeros(1, np.float32)

        def reset(self, *, seed=None, options=None):
            return self.zeros, {}

        def step(self, action):
            return self.zeros, 0.0, False, False, {}

        def pid(self):
            return os.getpid()

    with shoal.Multiprocessing(lambda: Still(), 8, num_workers=1, parent_steps=True, copy=False) as vec:
        vec.reset(seed=0)
        pids = set(vec.call("pid"))
        actions, late, ends = np.zeros(8, dtype=np.int64), 0, time.perf_counter() + 10
        for _ in range(1000):
            before, slow = sum(map(waited_for_a_core, pids)), []
            for _ in range(100):
                begun = time.perf_counter()
                vec.step(actions)
                if (took := time.perf_counter() - begun) > 0.045:
                    slow.append(took)
            if slow and sum(slow) - (sum(map(waited_for_a_core, pids)) - before) > 0.045:
                late += len(slow)
            if time.perf_counter() > ends:
                break
    assert late <= 2  # of ten and more
