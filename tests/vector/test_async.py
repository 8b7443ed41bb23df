"""The asynchronous pool: batches of some envs, while the others go on."""

import os
from functools import partial

import gymnasium
import numpy as np
import pytest
from tests.envs import Turns
from tests.vector.async_pools import FIELDS, actions_for, info_of, pool, run, sentinels
from tests.vector.faulty import LONG, Gate, Gated

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import (
    ActionError,
    ArgumentError,
    Closed,
    EpisodeOver,
    NothingPending,
    SnapshotError,
    WorkerError,
    WrongMode,
)
from shoal.processes.placement import place_async
from shoal.testing import SentinelEnv, SentinelRows
from shoal.testing.contract import difference

pytestmark = [
    pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core"),
    pytest.mark.core,
]


def trajectories(vec, steps, seed=5):
    """What each env has reported, in order, so many times at least."""
    moments = {}
    vec.async_reset(seed=seed)
    while len(moments) < vec.num_rows or min(map(len, moments.values())) < steps:
        batch = vec.recv()
        for row, (env, agent) in enumerate(
            zip(batch.env_ids.tolist(), batch.agent_ids.tolist(), strict=True)
        ):
            moment = [getattr(batch, field)[row].copy() for field in FIELDS]
            moments.setdefault((env, agent), []).append((moment, info_of(batch.infos, row)))
        vec.send(actions_for(batch))
    return moments


def assert_same_trajectories(creators, steps=12, **options):
    mode = options.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    with shoal.Serial(creators, autoreset_mode=mode) as serial:
        expected = trajectories(serial, 4 * steps)
    with shoal.Multiprocessing(creators, **options) as vec:
        found = trajectories(vec, steps)
        assert set(found) == set(expected)
    for key, moments in found.items():
        for step, (ours, theirs) in enumerate(zip(moments, expected[key], strict=False)):
            assert difference(ours, theirs) is None, (key, step, ours, theirs)


@pytest.mark.parametrize(
    ("envs", "options"),
    [
        (8, {"num_workers": 2, "batch_size": 4}),
        (8, {"num_workers": 4, "batch_size": 4}),
        (7, {"num_workers": 3, "batch_size": 5}),
        (6, {"num_workers": 1, "batch_size": 2}),
        (5, {"envs_per_worker": 2, "batch_size": 1}),
        (4, {"num_workers": 2, "mode": "async"}),
    ],
    ids=str,
)
def test_every_env_goes_its_own_way(envs, options):
    """Each order with each mode, but not both modes with every count of envs and workers."""
    modes = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
    for order, mode in zip(("fifo", "ready"), modes if envs % 2 else modes[::-1], strict=True):
        assert_same_trajectories(sentinels(envs), autoreset_mode=mode, order=order, **options)


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize(
    "creators",
    [
        sentinels(6, SentinelRows),
        [partial(shoal.Serial, sentinels(3)) for _ in range(6)],
        [Turns] * 6,
    ],
    ids=["in place", "vector envs", "several agents"],
)
def test_envs_of_every_kind(creators, order):
    assert_same_trajectories(creators, num_workers=2, batch_size=4, order=order)


@pytest.mark.parametrize("options", [{"copy": False}, {"flat": True}, {"episode_stats": True}], ids=str)
@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_views_flat_rows_and_episodes(options, order):
    with pool(7, num_workers=3, batch_size=5, order=order, **options) as vec:
        vec.async_reset(seed=0)
        returns = np.zeros(7)
        for _ in range(60):
            batch = vec.recv()
            obs = batch.obs.view(np.int64).reshape(5, 5)
            assert obs[:, 0].tolist() == batch.env_ids.tolist()
            returns[batch.env_ids] += batch.rewards
            ended = batch.terminations | batch.truncations
            if "episode_stats" in options and ended.any():
                assert batch.infos["_episode"].tolist() == ended.tolist()
                assert batch.infos["episode"]["r"][ended].tolist() == returns[batch.env_ids[ended]].tolist()
                assert (batch.infos["episode"]["t"][ended] > 0).all()
            returns[batch.env_ids[ended]] = 0
            vec.send(np.zeros(5, np.int64))
        assert vec.stats()["episodes"] > 10


def test_256_and_32_envs_on_8_workers():
    creator = partial(gymnasium.make, "CartPole-v1")
    with shoal.Multiprocessing(creator, 256, surplus_envs=32, num_workers=8, order="ready") as vec:
        assert (vec.num_envs, vec.batch_size, vec.action_space.shape) == (288, 256, (256,))
        assert vec.observation_space.shape == (256, 4)
        vec.async_reset(seed=0)
        seen = np.zeros(288, int)
        for _ in range(30):
            batch = vec.recv()
            assert len(set(batch.env_ids.tolist())) == 256
            assert vec.observation_space.contains(batch.obs)
            seen[batch.env_ids] += 1
            vec.send(vec.action_space.sample())
        assert seen.min() > 5
        assert repr(vec) == "Multiprocessing(num_envs=288, num_workers=8, batch_size=256, order='ready')"


def test_fifo_is_a_fixed_cycle():
    with pool(6, batch_size=4) as vec:
        vec.async_reset(seed=0)
        turns = []
        for _ in range(4):
            batch = vec.recv()
            turns.append(batch.env_ids.tolist())
            vec.send(actions_for(batch))
    assert turns == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5], [0, 1, 2, 3]]


def test_ready_does_not_wait_for_the_slowest_and_nobody_starves(tmp_path):
    gate = Gate(tmp_path)
    creators = [partial(Gated, 0, gate), *sentinels(8, max_length=LONG)[1:]]
    with shoal.Multiprocessing(creators, num_workers=4, batch_size=2, order="ready") as vec:
        vec.async_reset(seed=0)
        seen = np.zeros(8, int)

        def go_on_until(holds):
            while not holds():
                batch = vec.recv()
                seen[batch.env_ids] += 1
                actions = actions_for(batch)
                actions[(batch.env_ids == 0) & (seen[0] == 3)] = 998  # does not come back
                vec.send(actions)

        go_on_until(lambda: seen[0] == 3 and seen[2:].min() > 50)  # env 1 shares the worker of env 0
        before = seen.copy()
        gate.open()
        go_on_until(lambda: (seen > before + 20).all())  # the slow one is back among the others


def test_halves_are_spread_over_all_workers_and_adjoin():
    plan = place_async(256, 2, None, 2, batch_size=128, order="fifo")
    assert plan.blocks == [(0, 0, 64), (1, 64, 128), (0, 128, 192), (1, 192, 256)]
    with pool(8, copy=False) as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        vec.send(actions_for(first))
        vec.recv()
        again = vec.recv()
        assert np.shares_memory(first.obs, again.obs)  # no copy


@pytest.mark.parametrize(
    ("creators", "workers", "batch", "order", "size"),
    [
        (288, 8, 256, "fifo", 4),
        (64, 2, 32, "ready", 4),
        (7, 3, 5, "fifo", 1),
        (12, 2, 6, "fifo", 3),
        (4, 4, 4, "ready", 1),
    ],
)
def test_blocks_divide_shares_and_batches(creators, workers, batch, order, size):
    plan = place_async(creators, workers, None, 2, batch_size=batch, order=order)
    assert {last - first for _, first, last in plan.blocks} == {size}
    assert batch % size == 0
    assert sorted(unit for worker in range(workers) for unit in plan.of_worker(worker)) == list(
        range(creators)
    )


def test_two_batches_in_hand():
    with pool(8) as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        vec.send(actions_for(first), env_ids=first.env_ids)
        vec.send(actions_for(second))
        third = vec.recv()
        assert third.env_ids.tolist() == first.env_ids.tolist()
        assert third.obs[:, 3].tolist() == actions_for(first).tolist()
        fourth = vec.recv()
        both = np.concatenate([fourth.env_ids, third.env_ids])
        vec.send(np.arange(8), env_ids=both)
        for wanted, ids in (([0, 1, 2, 3], fourth.env_ids), ([4, 5, 6, 7], third.env_ids)):
            batch = vec.recv()
            assert batch.env_ids.tolist() == ids.tolist()
            acted = ~batch.resets
            assert batch.obs[acted, 3].tolist() == np.array(wanted)[acted].tolist()


def test_verbs_out_of_turn():
    with pool(8) as vec:
        with pytest.raises(
            NothingPending, match=r"a batch has 4 envs, and only 0 are under way: call async_reset"
        ):
            vec.recv()
        with pytest.raises(
            NothingPending, match=r"no batch was received and not sent: call recv\(\) before send"
        ):
            vec.send(np.zeros(4, np.int64))
        with pytest.raises(WrongMode, match=r"call async_reset\(\), then recv\(\), instead of reset"):
            vec.reset(seed=0)
        with pytest.raises(WrongMode, match=r"call send\(\), then recv\(\), instead of step"):
            vec.step(np.zeros(4, np.int64))
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        with pytest.raises(NothingPending, match=r"only 0 are under way: send actions"):
            vec.recv()
        for wrong in ([1, 0, 2, 3], [0, 1, 2, 99], [0, 1, 2], [[0, 1, 2, 3]], [0.0, 1.0, 2.0, 3.0], []):
            with pytest.raises(ArgumentError, match=r"env_ids: expected the env_ids of batches"):
                vec.send(np.zeros(4, np.int64), env_ids=np.array(wrong))
        with pytest.raises(ActionError, match=r"of env 6: expected integers from 0 to 999, got 1000"):
            vec.send(np.array([0, 0, 1000, 0]), env_ids=second.env_ids)
        with pytest.raises(
            ArgumentError, match="env_ids: 2 batches were received and not sent, so say whose"
        ):
            vec.send(actions_for(second))
        vec.send(actions_for(second), env_ids=second.env_ids)
        with pytest.raises(ArgumentError, match=r"received and not sent, but \[4, 5\] were sent already"):
            vec.send(actions_for(second), env_ids=second.env_ids)
        vec.send(actions_for(first))  # the only one that is left
        with pytest.raises(NothingPending, match="no batch was received and not sent"):
            vec.send(actions_for(first))
        assert vec.recv().obs[:, 3].tolist() == actions_for(second).tolist()
    with pytest.raises(Closed, match="has been closed"):
        vec.recv()
    with pytest.raises(Closed, match="has been closed"):
        vec.step(np.zeros(4, np.int64))


def test_reset_in_the_middle_of_anything():
    with pool(8, order="ready") as vec:
        for round_ in range(12):
            vec.async_reset(seed=round_)
            for turn in range(round_ % 4):
                batch = vec.recv()
                if turn != 1:
                    vec.send(actions_for(batch), env_ids=batch.env_ids)
        vec.async_reset(seed=100)
        for _ in range(2):
            batch = vec.recv()
            assert batch.resets.all()
            assert (batch.obs[:, 4] == 100 + batch.env_ids).all()


def test_disabled_envs_are_reset_by_their_batch():
    with pool(8, autoreset_mode="Disabled") as vec:
        vec.async_reset(seed=0)
        moments = 0
        for _ in range(80):
            batch = vec.recv()
            if batch.mask.all():
                vec.send(actions_for(batch))
                continue
            with pytest.raises(EpisodeOver, match=r"envs \[.*\] have finished .* async_reset"):
                vec.send(np.zeros(4, np.int64), env_ids=batch.env_ids)
            mask = np.zeros(8, bool)
            mask[batch.env_ids[~batch.mask]] = True
            away = np.ones(8, bool)
            away[batch.env_ids] = False
            with pytest.raises(ArgumentError, match=r"reset_mask: expected only envs that were received"):
                vec.async_reset(options={"reset_mask": away})
            vec.async_reset(options={"reset_mask": mask})
            moments += 1
        assert moments > 10


def test_envs_can_be_reached_while_steps_are_under_way():
    with pool(8) as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        vec.send(actions_for(first))
        assert vec.get_attr("env_id") == tuple(range(8))
        vec.set_attr("max_length", [10 + i for i in range(8)])
        assert vec.call("max_length") == tuple(range(10, 18))
        second = vec.recv()
        assert second.env_ids.tolist() == [4, 5, 6, 7]
        assert second.infos["begun"].tolist() == [0] * 4  # said before
        vec.send(actions_for(second))
        assert vec.recv().obs[:, 3].tolist() == actions_for(first).tolist()


def test_snapshots():
    with pool(8) as vec, pool(8) as other:
        vec.async_reset(seed=3)
        run(vec, 5)
        held = vec.recv()
        taken = vec.snapshot()
        vec.send(actions_for(held))
        expected = run(vec, 9)
        for each in (vec, other):
            each.restore(taken)
            each.send(actions_for(held))
            assert difference(run(each, 9), expected) is None
        with pool(8, batch_size=2) as third, pytest.raises(SnapshotError, match=r"with another"):
            third.restore(taken)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 9}, r"batch_size: expected an integer from 1 to 8"),
        ({"batch_size": 0}, r"batch_size: expected an integer from 1 to 8"),
        ({"batch_size": 2.0}, r"batch_size: expected an integer"),
        ({"surplus_envs": -1}, r"surplus_envs: expected an integer from 0"),
        ({"surplus_envs": 2}, r"surplus_envs: expected one creator"),
        ({"mode": "later"}, r"mode: expected 'sync', 'async' or None, got 'later'"),
        ({"mode": "sync"}, r"mode: a synchronous vec has all envs in a batch"),
        ({"order": "best"}, r"order: expected 'fifo' or 'ready', got 'best'"),
        ({"batch_size": None, "order": "ready"}, r"order: a synchronous vec returns all envs at once"),
        ({"parent_steps": True}, r"parent_steps: cannot be combined with an asynchronous vec"),
        ({"observation_mode": "different"}, r"observation_mode: an asynchronous vec has only 'same'"),
    ],
    ids=str,
)
def test_arguments_that_cannot_work(options, problem):
    with pytest.raises(ArgumentError, match=problem):
        pool(8, **options)


def test_sizes_of_vector_envs_must_agree():
    creators = [partial(shoal.Serial, sentinels(1 + i % 2)) for i in range(4)]
    with pytest.raises(ArgumentError, match=r"creators that make equally many envs"):
        shoal.Multiprocessing(creators, num_workers=2, batch_size=2)


def test_messages_larger_than_any_buffer():
    """A worker cannot go on before its message is read, so it must be, whatever is waited for."""

    class Talker(SentinelEnv):
        def step(self, action):
            return *super().step(action)[:4], {"text": "x" * 1_000_000}

    with pool([partial(Talker, i, LONG) for i in range(8)], num_workers=1, batch_size=2) as vec:
        vec.async_reset(seed=0)
        for turn in range(12):
            batch = vec.recv()
            if turn >= 4:
                assert {len(text) for text in batch.infos["text"]} == {1_000_000}
            vec.send(actions_for(batch))


def test_a_call_loses_no_infos():
    with pool(8) as vec:
        vec.async_reset(seed=0)
        vec.get_attr("env_id")
        for _ in range(2):
            assert vec.recv().infos["begun"].tolist() == [0] * 4


def test_part_of_a_batch_may_be_sent_and_the_rest_stays_as_it_is():
    with pool(sentinels(8, max_length=LONG), num_workers=4, order="ready", copy=False) as vec:
        vec.async_reset(seed=0)
        for _ in range(200):
            first, second = vec.recv(), vec.recv()
            before = first.obs.copy()
            vec.send(actions_for(first)[:1], env_ids=first.env_ids[:1])
            vec.send(actions_for(second), env_ids=second.env_ids)
            assert first.obs[1:].tolist() == before[1:].tolist()
            vec.recv()  # may gather anew
            assert first.obs[1:].tolist() == before[1:].tolist()
            vec.async_reset(seed=0)


def test_a_subclass_and_a_generator_of_creators_can_be_asynchronous():
    class Own(shoal.Multiprocessing):
        pass

    for make in (partial(Own, sentinels(4)), partial(shoal.Multiprocessing, (c for c in sentinels(4)))):
        with make(batch_size=2) as vec:
            vec.async_reset(seed=0)
            assert vec.recv().env_ids.tolist() == [0, 1]


def test_a_fork_cannot_receive():
    with pool(8) as vec:
        vec.async_reset(seed=0)
        pid = os.fork()
        if pid == 0:
            try:
                vec.recv()
            except WorkerError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert vec.recv().infos["begun"].tolist() == [0] * 4


class Outside(SentinelEnv):
    """Its observations are outside its space."""

    observation_space = gymnasium.spaces.Box(0, 1, (5,), np.int64)


def test_a_warning_that_is_an_error_leaves_the_batch():
    with pool(sentinels(2, Outside), num_workers=1, batch_size=None, mode="async") as vec:
        vec.async_reset(seed=3)
        for verb in ("reset", "step"):
            with pytest.raises(UserWarning, match=rf"from {verb}\(\), is outside its space"):
                vec.recv()
            vec.send([0, 0])
        assert vec.recv().obs[:, 0].tolist() == [0, 1]
