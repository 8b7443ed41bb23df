"""shoal.Native: snapshots of all envs and of some, synchronous and asynchronous."""

from functools import partial

import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.errors import (
    ActionError,
    ArgumentError,
    ResetNeeded,
    SnapshotError,
)
from shoal.testing.contract import difference

if _core.NAME != "native":
    pytest.skip("needs the compiled core", allow_module_level=True)

from shoal.testing.native_envs import PairNative, SentinelNative

pytestmark = pytest.mark.core


def test_a_snapshot_of_an_asynchronous_vec():
    with shoal.make(SentinelNative, 8, batch_size=4, num_workers=2) as vec:
        vec.async_reset(seed=1)
        for _ in range(5):
            vec.recv()
            vec.send(np.ones(4, np.int64))
        saved = vec.snapshot()
        futures = []
        for _ in range(2):
            future = []
            for _ in range(6):
                batch = vec.recv()
                future.append((batch.obs, batch.rewards, batch.env_ids))
                vec.send(np.ones(4, np.int64))
            futures.append(future)
            vec.restore(saved)
    assert difference(*futures) is None


def test_a_snapshot_of_some_envs_can_go_anywhere():
    with shoal.make("shoal/CartPole-v1", 10) as vec:
        vec.reset(seed=0)
        rng = np.random.default_rng(0)
        for actions in rng.integers(2, size=(5, 10)):
            vec.step(actions)
        saved = vec.snapshot([2, 7])
        plan = rng.integers(2, size=(8, 2))
        before = vec.step(np.zeros(10, np.int64))[0]
        vec.restore(saved, [2, 7])
        futures = []
        for places in ([2, 7], [9, 0]):
            vec.restore(saved, places)
            future = []
            for two in plan:
                actions = np.zeros(10, np.int64)
                actions[places] = two
                obs, rewards, terminations, *_ = vec.step(actions)
                future.append((obs[places], rewards[places], terminations[places]))
            futures.append(future)
        assert difference(*futures) is None
        assert vec.get_attr("np_random_seed") == (7, 1, 2, 3, 4, 5, 6, 7, 8, 2)
        assert before.shape == (10, 4)
        with pytest.raises(SnapshotError, match="say which are to be as they were"):
            vec.restore(saved)
        with pytest.raises(SnapshotError, match="another number of rows: 2, not 3"):
            vec.restore(saved, [1, 2, 3])
        with pytest.raises(ArgumentError, match="env_ids: expected a list of envs from 0 to 9"):
            vec.snapshot([10])
        with pytest.raises(ArgumentError, match="env_ids: expected each env once"):
            vec.snapshot([1, 1])
        with (
            shoal.make("shoal/CartPole-v1", 3) as three,
            pytest.raises(
                SnapshotError, match=r"another number of rows: 10, not 3.*take snapshot\(env_ids\)"
            ),
        ):
            three.restore(vec.snapshot())
        with pytest.raises(SnapshotError, match="the snapshot is of all envs"):
            vec.restore(vec.snapshot(), [1])
    with shoal.make(SentinelNative, 10) as other, pytest.raises(SnapshotError, match="of envs with another"):
        other.restore(saved, [2, 7])


def test_a_restored_env_draws_the_same_numbers():
    with shoal.make(SentinelNative, 4) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot()
        futures = []
        for _ in range(2):
            futures.append([vec.step(np.ones(4, np.int64)) for _ in range(40)])
            vec.restore(saved)
    assert difference(*futures) is None


def test_a_snapshot_keeps_last_observations():
    with shoal.make(
        SentinelNative, 4, batch_size=2, autoreset_mode="SameStep", env_kwargs={"max_length": 1}
    ) as vec:
        vec.async_reset(seed=0)
        for _ in range(2):
            vec.recv()
            vec.send(np.full(2, 7))
        saved = vec.snapshot()
        first = vec.recv().infos["final_obs"]
        vec.restore(saved)
        vec._engine.columns.arrays["finals"][:] = 0
        vec.restore(saved)
        second = vec.recv().infos["final_obs"]
        assert [obs.tolist() for obs in first] == [obs.tolist() for obs in second]
        assert first[0][3] == 7


def test_envs_in_hand_can_be_restored():
    creators = [partial(SentinelNative, env_id=env, max_length=1 if env % 2 else 100) for env in range(4)]
    with shoal.make(creators, batch_size=2, order="ready", autoreset_mode="Disabled", num_workers=2) as vec:
        vec.async_reset(seed=0)
        saved = vec.snapshot([0, 1, 2, 3])
        for _ in range(6):
            batch = vec.recv()
            if not batch.mask.all():
                break
            vec.send(np.ones(2, np.int64))
        vec.restore(saved, [0, 1, 2, 3])
        assert vec.mask.all()
        with pytest.raises(ActionError, match=r"[Nn]o env has moved"):
            vec.send(np.full(2, 10**6))
        vec.send(np.full(2, 3))


def test_what_was_never_reset_stays_so_in_a_snapshot():
    with shoal.make("shoal/CartPole-v1", 4, copy=False) as vec:
        fresh = vec.snapshot()
        vec.reset(seed=0)
        for _ in range(4):
            vec.step(np.zeros(4, np.int64))
        vec.restore(fresh)
        with pytest.raises(ResetNeeded, match="no state before their first reset"):
            vec.step(np.zeros(4, np.int64))


def test_a_vec_that_was_never_reset_can_be_restored():
    with shoal.make(SentinelNative, 3) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot([0, 1, 2])
    with shoal.make(SentinelNative, 3) as other:
        with pytest.raises(ResetNeeded, match="no state before their first reset"):
            other.step(np.zeros(3, np.int64))
        other.restore(saved, [0, 1, 2])
        other.step(np.zeros(3, np.int64))


def test_a_snapshot_of_another_split_into_blocks_is_refused():
    with (
        shoal.make("shoal/CartPole-v1", 8, batch_size=4, num_workers=1) as one,
        shoal.make("shoal/CartPole-v1", 8, batch_size=4, num_workers=2) as two,
    ):
        for vec in (one, two):
            vec.async_reset(seed=0)
            vec.recv()
        with pytest.raises(
            SnapshotError, match="split of envs into blocks: 2 blocks of 4, not 4 blocks of 2"
        ):
            two.restore(one.snapshot())
        two.send(np.zeros(4, np.int64))
        two.restore(one.snapshot([0, 1]), [6, 7])  # blocks do not matter for some envs
        assert two.recv().env_ids.tolist() == [4, 5, 6, 7]


def fail(vec):
    """Interrupt a `recv`, so that the vec has failed while its threads move envs."""

    def interrupted(blocks):
        raise KeyboardInterrupt("now")

    vec._engine.wait_for = interrupted
    with pytest.raises(KeyboardInterrupt, match="now"):
        vec.recv()
    del vec._engine.wait_for
    assert vec._engine._moving


@pytest.mark.parametrize("verb", ["call", "set_attr", "render", "restore"])
def test_the_envs_of_a_failed_vec_are_used_when_no_thread_moves_them(verb):
    with shoal.make(SentinelNative, 8, batch_size=4, num_workers=2) as vec:
        vec.async_reset(seed=0)
        saved = vec.snapshot([0])
        arguments = {"call": ["count"], "set_attr": ["count", 1], "restore": [saved, [0]]}
        vec.async_reset(seed=0)
        fail(vec)
        getattr(vec, verb)(*arguments.get(verb, []))
        assert not vec._engine._moving
        with pytest.raises(ResetNeeded, match="call async_reset"):
            vec.recv()


def test_a_failed_vec_has_no_snapshot_of_some_envs():
    with shoal.make(SentinelNative, 8, batch_size=4, num_workers=2) as vec:
        vec.async_reset(seed=0)
        fail(vec)
        with pytest.raises(ResetNeeded, match="the rows are not of one moment"):
            vec.snapshot([0])


def test_a_restore_of_some_envs_that_fails_needs_a_reset():
    with shoal.make(SentinelNative, 4) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot([0, 1])
        del saved["rows"]["mask"]
        with pytest.raises(KeyError, match="mask"):
            vec.restore(saved, [0, 1])
        with pytest.raises(ResetNeeded, match="the rows are not of one moment"):
            vec.step(np.zeros(4, np.int64))
        vec.reset(seed=0)


def test_a_snapshot_of_some_envs_keeps_the_seconds_of_their_episodes(monkeypatch):
    class Watch:
        now = 100.0

        def perf_counter(self):
            return self.now

    watch = Watch()
    monkeypatch.setattr("shoal.vector.statistics.time", watch)
    with shoal.make(PairNative, 2, episode_stats=True) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot([1])
        watch.now += 1000.0
        vec.restore(saved, [1])
        for _ in range(4):
            vec.step(np.zeros(4, np.int64))
        watch.now += 1.0
        *_, infos = vec.step(np.zeros(4, np.int64))  # ends the second agents
        assert infos["episode"]["t"].tolist() == [0.0, 1001.0, 0.0, 1.0]


def test_rows_of_a_restored_batch_can_be_restored_again():
    options = {
        "batch_size": 2,
        "order": "ready",
        "autoreset_mode": "Disabled",
        "num_workers": 1,
        "debug": True,
    }
    with shoal.make(SentinelNative, 6, env_kwargs={"max_length": 1}, **options) as vec:
        vec.async_reset(seed=0)
        batches = [vec.recv() for _ in range(3)]
        begun = vec.snapshot([0, 4])
        vec.send([0, 0], np.concatenate([batches[0].env_ids[:1], batches[2].env_ids[:1]]))
        assert vec.recv().env_ids.tolist() == [0, 4]  # a copy of rows that do not adjoin
        assert not vec.mask.any()
        vec.restore(vec.snapshot())
        vec.restore(begun, [0, 4])
        assert vec.mask.all()
