"""The asynchronous pool: batches of some envs, while the others go on."""

import os
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.envs import Fragile, Turns

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import (
    ActionError,
    ArgumentError,
    Closed,
    EpisodeOver,
    NothingPending,
    ResetNeeded,
    RestartWarning,
    SnapshotError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    WrongMode,
)
from shoal.testing import CrashEnv, HangEnv, SentinelEnv, SentinelRows
from shoal.testing.contract import difference
from shoal.vector._plan import plan_async

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

LONG = 10**6
FIELDS = ("obs", "rewards", "terminations", "truncations", "mask", "resets")


def sentinels(count, env=SentinelEnv, **options):
    return [partial(env, i, **options) for i in range(count)]


def pool(creators=8, **options):
    creators = sentinels(creators) if isinstance(creators, int) else creators
    return shoal.Multiprocessing(creators, **{"num_workers": 2, "batch_size": 4, **options})


def actions_for(batch):
    """What any vec would be sent for these observations, whoever else is in the batch."""
    obs = batch.obs.reshape(len(batch.env_ids), -1)
    if obs.shape[1] == 1:
        return obs[:, 0] % 2
    return (7 * obs[:, 0] + 3 * obs[:, 1] + obs[:, 2]) % 1000


def run(vec, batches):
    """What so many batches held."""
    seen = []
    for _ in range(batches):
        batch = vec.recv()
        seen.append([getattr(batch, field).copy() for field in (*FIELDS, "env_ids")])
        vec.send(actions_for(batch))
    return seen


def info_of(infos, row):
    """The part of merged infos that is about one row."""
    found = {}
    for key, values in infos.items():
        if key.startswith("_"):
            continue
        mask = infos[f"_{key}"]
        if mask[row]:
            found[key] = info_of(values, row) if isinstance(values, dict) else values[row]
    return found


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


# -- the same as ever ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
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
def test_every_env_goes_its_own_way(envs, options, mode, order):
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


# -- orders ------------------------------------------------------------------------------------------------


def test_fifo_is_a_fixed_cycle():
    with pool(6, batch_size=4) as vec:
        vec.async_reset(seed=0)
        turns = []
        for _ in range(4):
            batch = vec.recv()
            turns.append(batch.env_ids.tolist())
            vec.send(actions_for(batch))
    assert turns == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5], [0, 1, 2, 3]]


def test_ready_does_not_wait_for_the_slowest_and_nobody_starves():
    creators = [partial(HangEnv, 0, at=3, seconds=4.0), *sentinels(8, max_length=LONG)[1:]]
    with shoal.Multiprocessing(creators, num_workers=4, batch_size=2, order="ready") as vec:
        vec.async_reset(seed=0)
        seen = np.zeros(8, int)

        def go_on_until(holds):
            begun = time.monotonic()
            while not holds() and time.monotonic() - begun < 60:
                batch = vec.recv()
                seen[batch.env_ids] += 1
                vec.send(actions_for(batch))

        go_on_until(lambda: seen[2:].min() > 50)  # env 1 shares its worker with the slow one
        assert seen[0] <= 4
        before = seen.copy()
        go_on_until(lambda: (seen > before + 20).all())  # the slow one is back among the others
        assert (seen > before + 20).all()


def test_halves_are_spread_over_all_workers_and_adjoin():
    plan = plan_async(256, 2, None, 2, batch_size=128, order="fifo")
    assert plan.blocks == [(0, 0, 64), (1, 64, 128), (0, 128, 192), (1, 192, 256)]
    assert plan.per_batch == 2
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
    plan = plan_async(creators, workers, None, 2, batch_size=batch, order=order)
    assert {last - first for _, first, last in plan.blocks} == {size}
    assert plan.per_batch * size == batch
    assert sorted(unit for worker in range(workers) for unit in plan.of_worker(worker)) == list(
        range(creators)
    )


# -- verbs -------------------------------------------------------------------------------------------------


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
        with pytest.raises(NothingPending, match=r"no batch is in hand: call recv\(\) before send"):
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
        with pytest.raises(ArgumentError, match="env_ids: 2 batches are in hand, so say whose"):
            vec.send(actions_for(second))
        vec.send(actions_for(second), env_ids=second.env_ids)
        with pytest.raises(ArgumentError, match=r"env_ids: envs \[4, 5\] are not in hand"):
            vec.send(actions_for(second), env_ids=second.env_ids)
        vec.send(actions_for(first))  # the only one that is left
        with pytest.raises(NothingPending, match="no batch is in hand"):
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


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize(("how", "error"), [("raise", ValueError), ("kill", WorkerDied)])
def test_a_failure_comes_out_and_a_reset_helps(how, error, order):
    with pool([partial(Fragile, i, how) for i in range(8)], order=order) as vec:
        for seed in range(2):
            vec.async_reset(seed=seed)
            for _ in range(2):
                vec.send(actions_for(vec.recv()))
            batch = vec.recv()
            actions = actions_for(batch)
            actions[0] = 999
            vec.send(actions)
            with pytest.raises(error, match=r"failed as told|killed by signal 9"):
                run(vec, 10_000)
            with pytest.raises(ResetNeeded, match=r"call async_reset\(\), which begins"):
                vec.recv()
        vec.async_reset(seed=9)
        assert vec.recv().obs[:, 1:3].tolist() == [[0, 0]] * 4


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_a_hang_ends_by_its_timeout(order):
    creators = [*sentinels(7), partial(HangEnv, 7, at=2)]
    with pool(creators, order=order, timeout=3.0) as vec:
        vec.async_reset(seed=0)
        with pytest.raises(WorkerTimeout, match=r"has not answered within 3 s.*last in env 7"):
            run(vec, 1_000_000)
        vec.async_reset(seed=0)
        assert vec.recv().resets.all()


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


@pytest.mark.parametrize("state", ["new", "reset", "in hand", "under way", "failed"])
def test_close_in_any_state(state):
    vec = pool([partial(Fragile, i, "raise") for i in range(8)])
    if state != "new":
        vec.async_reset(seed=0)
    if state in ("in hand", "under way", "failed"):
        vec.recv()
    if state in ("under way", "failed"):
        vec.send(np.full(4, 999 if state == "failed" else 0))
    if state == "failed":
        with pytest.raises(ValueError, match="failed as told"):
            run(vec, 2)
    vec.close()
    vec.close()


# -- restarts ----------------------------------------------------------------------------------------------


def rows(batch):
    """Of each env: its row, for what it reports."""
    return {int(env): row for row, env in enumerate(batch.env_ids)}


def restarted_envs(vec, fragile, mode):
    """Let one of these fail, and see that everybody goes on from what was last seen."""
    last, failed, restarted = {}, False, []
    for _ in range(200):
        batch = vec.recv()
        actions = actions_for(batch)
        for env, row in rows(batch).items():
            said = info_of(batch.infos, row)
            if "restarted" in said:
                restarted.append(env)
                assert batch.truncations[row]
                assert not batch.resets[row]
                final = said["final_obs"] if mode is AutoresetMode.SAME_STEP else batch.obs[row]
                assert final.tolist() == last[env]
                assert batch.mask[row] == (mode is AutoresetMode.SAME_STEP)
            elif env in last:
                begins = batch.resets[row] or last[env][1] != batch.obs[row, 1]
                assert begins or batch.obs[row, 2] == last[env][2] + 1
            last[env] = batch.obs[row].tolist()
            if env in fragile and not failed and batch.mask[row]:
                failed, actions[row] = True, 999
        vec.send(actions)
    return restarted


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("how", ["kill", "raise"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_every_env_of_a_worker_that_failed_says_so_once(mode, how, order):
    """Whether it was under way, there, or in hand; the others go on."""
    creators = [partial(Fragile, i, how) for i in range(8)]
    with pool(creators, on_error="restart", autoreset_mode=mode, order=order) as vec:
        theirs = set(vec._crew._ids[0])
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.send(actions_for(vec.recv()))
        with pytest.warns(RestartWarning, match=r"worker 0 is restarted \(number 1\)"):
            restarted = restarted_envs(vec, theirs, mode)
        assert sorted(restarted) == sorted(theirs)
        assert vec.stats()["restarts"] == 1


def test_a_worker_that_fails_again_and_again_is_given_up():
    creators = [
        partial(CrashEnv, i, at=1, how="kill") if i == 0 else partial(SentinelEnv, i) for i in range(8)
    ]
    with pool(creators, on_error="restart") as vec:
        vec.async_reset(seed=0)
        with pytest.warns(RestartWarning, match="restarted"), pytest.raises(WorkerDied, match="signal 9"):
            run(vec, 10_000)
        vec.async_reset(seed=0)
        assert vec.recv().resets.all()


def test_restarts_under_disabled_wait_for_the_caller():
    creators = [partial(Fragile, i, "kill") for i in range(8)]
    with pool(creators, on_error="restart", autoreset_mode="Disabled") as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        actions = actions_for(first)
        actions[0] = 999  # env 0, and with it 1, 4 and 5
        vec.send(actions)
        second = vec.recv()  # in hand when their worker dies
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            batch = vec.recv()
        assert batch.truncations.tolist() == [True, True, False, False]
        vec.send(actions_for(second), env_ids=second.env_ids)
        cut = vec.recv()
        assert cut.env_ids.tolist() == [4, 5, 6, 7]
        assert cut.truncations.tolist() == [True, True, False, False]
        mask = np.zeros(8, bool)
        mask[[0, 1]] = True
        vec.async_reset(options={"reset_mask": mask})
        mask[[4, 5]] = True
        mask[[0, 1]] = False
        vec.async_reset(options={"reset_mask": mask})
        again = vec.recv()
        assert again.env_ids.tolist() == [0, 1, 2, 3]
        assert again.mask.all()
        assert again.obs[:2, 2].tolist() == [0, 0]
        assert again.obs[2:, 2].tolist() == [1, 1]


def test_a_snapshot_knows_nothing_of_what_was_cut_off():
    creators = [partial(Fragile, i, "kill") for i in range(8)]
    with pool(creators, on_error="restart") as vec:

        def fail_in(first):
            actions = actions_for(first)
            actions[0] = 999  # env 0, and with it 1, 4 and 5
            vec.send(actions, env_ids=first.env_ids)

        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        taken = vec.snapshot()
        fail_in(first)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.recv()
        vec.send(actions_for(second), env_ids=second.env_ids)  # the next recv() would tell
        vec.restore(taken)
        for batch in (first, second):
            vec.send(actions_for(batch), env_ids=batch.env_ids)
        first, second = vec.recv(), vec.recv()
        fail_in(first)
        vec.send(actions_for(second), env_ids=second.env_ids)  # nobody is left to begin with 4 and 5
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.recv()
        cut = vec.recv()
        assert cut.truncations.tolist() == [True, True, False, False]
        assert cut.obs[:2].tolist() == second.obs[:2].tolist()


class Moody(SentinelEnv):
    """Fails now and then, as its own random stream has it."""

    def step(self, action):
        if self.np_random.random() < 0.02:
            raise ValueError("not today")
        return super().step(action)


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
def test_fifo_reproduces_itself_though_workers_are_restarted():
    runs = []
    for _ in range(3):
        creators = [partial(Moody, i) for i in range(8)]
        with pool(creators, num_workers=2, batch_size=4, on_error="restart") as vec:
            vec.async_reset(seed=3)
            run = []
            for _ in range(150):
                batch = vec.recv()
                run.append((batch.env_ids.tolist(), batch.obs.tolist(), batch.truncations.tolist()))
                vec.send(actions_for(batch))
            assert vec.stats()["restarts"] > 3
            runs.append(run)
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.filterwarnings("ignore::shoal.errors.RestartWarning")
@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_one_env_that_always_fails_is_given_up_whatever_the_others_do(order):
    creators = [
        partial(CrashEnv, i, at=1, max_length=LONG) if i == 0 else partial(SentinelEnv, i) for i in range(16)
    ]
    with pool(creators, num_workers=2, batch_size=2, order=order, on_error="restart") as vec:
        vec.async_reset(seed=0)
        with pytest.raises(ValueError, match="failed as told"):
            run(vec, 10_000)
        assert vec.stats()["restarts"] == 3


# -- what once went wrong ----------------------------------------------------------------------------------


class Slow(Fragile):
    """A sentinel with a method that takes its time, and one that does not come back from a step."""

    def nap(self, seconds):
        time.sleep(seconds)

    def step(self, action):
        if action == 998:
            time.sleep(0.3)
        return super().step(action)


def slow_pool(count=4, **options):
    return pool([partial(Slow, i) for i in range(count)], **{"batch_size": 2, **options})


@pytest.mark.parametrize("options", [{}, {"batch_size": None}], ids=["async", "sync"])
def test_an_answer_that_comes_too_late_is_nobodys(options):
    def step(held):
        vec.send(actions_for(held), env_ids=held.env_ids)
        return vec.recv()

    with slow_pool(timeout=3.0, on_error="restart", **options) as vec:
        vec.async_reset(seed=0)
        held = vec.recv()
        with pytest.raises(WorkerTimeout, match="has not answered within 3 s"):
            vec.call("nap", 2.5)  # twice in each worker
        time.sleep(0.5)
        with pytest.warns(RestartWarning, match="restarted"):
            batch = step(held)
        if not options:
            batch = vec.recv()
        assert batch.infos["restarted"].all()
        assert batch.obs[:, 2].tolist() == [0] * len(batch.obs)


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


def test_how_a_worker_died_is_told_though_nothing_of_its_was_under_way():
    with pool(4, batch_size=2, mode="async") as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        vec._crew._channel.kill(1)
        assert wait_until(lambda: vec._crew.notice_deaths() or vec._crew.lost, 10)
        with pytest.raises(WorkerDied, match=r"signal 9.*Call async_reset\(\)"):
            vec.send(actions_for(second), env_ids=second.env_ids)
        assert first.resets.all()


def test_a_worker_that_fails_does_nothing_more():
    """Env 0 raises; those that were sent after it are as they were sent, whenever that is noticed."""
    creators = [partial(Fragile, i, "raise") for i in range(4)]
    with pool(creators, num_workers=1, batch_size=1, on_error="restart") as vec:
        vec.async_reset(seed=0)
        held = [vec.recv() for _ in range(4)]
        vec.send(np.array([999]), env_ids=held[0].env_ids)
        for batch in held[1:]:
            vec.send(np.zeros(1, np.int64), env_ids=batch.env_ids)
        assert wait_until(vec._signals.speakers, 10)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            batches = [vec.recv() for _ in range(4)]
        for env, batch in enumerate(batches):
            assert batch.truncations.all()
            assert batch.obs[0, :3].tolist() == [env, 0, 0]
            assert batch.rewards.tolist() == [0]


def test_close_waits_for_those_who_go_on_and_not_for_long():
    vec = slow_pool(4, num_workers=1)
    vec.async_reset(seed=0)
    for batch in [vec.recv(), vec.recv()]:
        vec.send(np.full(2, 998), env_ids=batch.env_ids)
    begun = time.perf_counter()
    vec.close()  # 4 x 0.3 s
    assert 1.0 < time.perf_counter() - begun < 8


def test_only_what_can_be_told_apart_is_asynchronous():
    class Own(shoal.Multiprocessing):
        pass

    for make in (partial(Own, sentinels(4)), partial(shoal.Multiprocessing, (c for c in sentinels(4)))):
        with pytest.raises(ArgumentError, match=r"cannot be made of a generator"):
            make(batch_size=2)


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
