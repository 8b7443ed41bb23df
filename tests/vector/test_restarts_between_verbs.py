"""Restarts, and what comes next: partial resets, calls, snapshots, agents that wait."""

import os
import threading
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from tests.conftest import wait_until
from tests.envs import Fragile, Turns
from tests.vector.faulty import (
    LONG,
    Deadly,
    FragileTurns,
    Gate,
    Gated,
    Silent,
    Unborn,
    sleeps,
)

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import ResetNeeded, RestartWarning, WorkerDied
from shoal.testing.contract import difference

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

ACTIONS = np.array([10, 11, 12, 13])


def pool(how="kill", **options):
    creators = [partial(Fragile, i, how) for i in range(4)]
    options = {"num_workers": 2, "on_error": "restart", **options}
    return shoal.Multiprocessing(creators, **options)


def fail(vec, env_id=3):
    actions = ACTIONS.copy()
    actions[env_id] = 999
    with pytest.warns(RestartWarning, match=r"worker \d is restarted"):
        return vec.step(actions)


def test_a_partial_reset_before_the_next_step():
    with pool() as vec:
        vec.reset(seed=0)
        fail(vec)
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, True, False])})
        assert obs[:, 2].tolist() == [0, 1, 0, 0]  # those of the new worker begin together
        assert vec.mask.all()
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [1, 2, 1, 1]


def test_a_partial_reset_of_others_leaves_a_restarted_worker_alone():
    with pool() as vec:
        vec.reset(seed=0)
        last = vec.step(ACTIONS)[0]
        fail(vec)
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert obs[2:].tolist() == last[2:].tolist()
        assert vec.mask.tolist() == [True, True, False, False]
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1, 3, 0, 0]


def test_a_worker_lost_in_a_call_is_replaced_by_the_next_step():
    creators = [partial(Deadly, i, LONG) for i in range(4)]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.raises(WorkerDied, match="left with exit code 1"):
            vec.call("die")
        with pytest.warns(RestartWarning, match="left with exit code 1"):
            *_, truncations, _ = vec.step(ACTIONS)
        assert truncations.tolist() == [False, False, True, True]
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [2, 2, 0, 0]


def silent(**options):
    creators = [partial(Silent, i) for i in range(4)]
    return shoal.Multiprocessing(creators, num_workers=2, on_error="restart", **options)


def test_a_worker_lost_in_a_call_that_has_nothing_to_say():
    with silent() as vec:
        vec.reset(seed=0)
        vec.step(ACTIONS)
        with pytest.raises(WorkerDied, match="left with exit code 1"):
            vec.call("die")
        with pytest.warns(RestartWarning, match="restarted"):
            *_, truncations, _ = vec.step(ACTIONS)
        assert truncations.tolist() == [False, False, True, True]
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [3, 3, 0, 0]


def test_a_partial_reset_after_a_worker_was_lost_in_a_call():
    with silent() as vec:
        vec.reset(seed=0)
        last, *_ = vec.step(ACTIONS)
        with pytest.raises(WorkerDied, match="left with exit code 1"):
            vec.call("die")
        with pytest.warns(RestartWarning, match="left with exit code 1"):
            obs, infos = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert obs[:, 2].tolist() == [0, 1, 1, 1]
        assert obs[2:].tolist() == last[2:].tolist()
        assert infos["restarted"].tolist() == [False, False, True, True]
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1, 2, 0, 0]


def test_a_snapshot_between_a_restart_and_its_reset():
    with silent() as vec:
        vec.reset(seed=0)
        fail(vec)
        saved = vec.snapshot()
        first = [vec.step(ACTIONS)[0] for _ in range(3)]
        assert first[0][:, 2].tolist() == [2, 2, 0, 0]
        vec.restore(saved)
        second = [vec.step(ACTIONS)[0] for _ in range(3)]
        assert difference(first, second) is None


def test_restore_undoes_a_restart():
    with silent() as vec:
        vec.reset(seed=0)
        vec.step(ACTIONS)
        saved = vec.snapshot()
        expected = vec.step(ACTIONS)[0]
        fail(vec)
        vec.restore(saved)
        assert difference(vec.step(ACTIONS)[0], expected) is None


def pool_of_pairs(**options):
    pairs = [[partial(Fragile, 2 * unit), partial(Fragile, 2 * unit + 1)] for unit in range(2)]
    creators = [partial(shoal.Serial, pair, **options) for pair in pairs]
    return shoal.Multiprocessing(creators, num_workers=2, on_error="restart", **options)


def test_a_new_vector_env_that_is_left_alone_goes_on_waiting():
    with pool_of_pairs() as vec:
        vec.reset(seed=0)
        fail(vec)
        assert vec.mask.tolist() == [True, True, False, False]
        vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert vec.mask.tolist() == [True, True, False, False]  # its next step resets it


def test_a_new_vector_env_is_reset_in_parts():
    with pool_of_pairs(autoreset_mode="DISABLED") as vec:
        vec.reset(seed=0)
        last, *_ = vec.step(ACTIONS)
        fail(vec)
        for number, env in enumerate((3, 2)):
            obs, _ = vec.reset(options={"reset_mask": np.arange(4) == env})
            assert obs[env, 2] == 0  # a new episode
            assert vec.mask.tolist() == [True, True, number == 1, True]
            assert number == 1 or obs[2].tolist() == last[2].tolist()  # what was last seen
        assert vec.step(ACTIONS)[0][2:, 2].tolist() == [1, 1]


def test_waiting_envs_of_a_snapshot(tmp_path):
    with pool_of_pairs(autoreset_mode="DISABLED") as vec, pool_of_pairs(autoreset_mode="DISABLED") as other:
        vec.reset(seed=0)
        fail(vec)
        other.reset(seed=1)
        other.restore(vec.snapshot())
        other.reset(options={"reset_mask": np.arange(4) == 3})
        assert other.mask.tolist() == [True, True, False, True]
        assert other.stats()["restarts"] == 0


def test_rows_in_hand_are_nobody_elses_business(tmp_path):
    """A new worker touches no row before it is called, whatever becomes of it."""
    file = tmp_path / "left"
    file.write_text("0")
    creators = [partial(Unborn, i, file) for i in range(4)]
    options = {"num_workers": 1, "batch_size": 2, "autoreset_mode": "DISABLED", "copy": False}
    with shoal.Multiprocessing(creators, on_error="restart", **options) as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        seen = second.obs.tolist()
        file.write_text("1")
        vec.send([999, 0], env_ids=first.env_ids)
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            vec.recv()
        assert second.obs.tolist() == seen


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_worker_that_dies_in_a_step_that_a_reset_drops(mode, tmp_path):
    """It dies while the reset waits for it."""
    mask = {"reset_mask": np.arange(4) == 0}

    @contextmanager
    def step_under_way(gate, **options):
        creators = [partial(Gated, i, gate) for i in range(4)]
        with shoal.Multiprocessing(creators, num_workers=2, autoreset_mode=mode, **options) as vec:
            vec.reset(seed=0)
            vec.send([10, 11, 999, 13])
            assert wait_until(gate.reached, 60)

            def release():
                wait_until(lambda: vec._turn_taken and sleeps(os.getpid()), 60)
                gate.open()

            releasing = threading.Thread(target=release)
            releasing.start()
            yield vec
            releasing.join()

    with step_under_way(Gate(tmp_path, "restart"), on_error="restart") as vec:
        with pytest.warns(RestartWarning, match="worker 1 is restarted.*signal 9"):
            obs, infos = vec.reset(options=mask)
        assert obs[:, 2].tolist() == [0, 1, 0, 0]  # worker 1 has not finished the step
        assert infos["restarted"].tolist() == [False, False, True, True]
        assert vec.mask.tolist() == [True, True] + [mode is AutoresetMode.SAME_STEP] * 2
        if mode is AutoresetMode.DISABLED:
            vec.reset(options={"reset_mask": ~vec.mask})
        after = 0 if mode is AutoresetMode.NEXT_STEP else 1
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1, 2, after, after]
    with step_under_way(Gate(tmp_path, "raise")) as vec:
        with (
            pytest.warns(UserWarning, match=r"dropped by reset\(\): WorkerDied"),
            pytest.raises(ResetNeeded, match=r"a worker is lost: call reset\(\)"),
        ):
            vec.reset(options=mask)
        assert vec.reset(seed=0)[0][:, 2].tolist() == [0] * 4


def test_many_agents():
    class Cursed(Turns):
        def step(self, actions):
            if actions[0] == 1:
                raise ValueError("cursed")
            super().step(actions)

    with shoal.Multiprocessing(Cursed, 2, num_workers=2, on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.warns(RestartWarning, match="cursed"):
            *_, truncations, infos = vec.step([0, 0, 1, 0])
        assert truncations.tolist() == [False, False, True, False]
        assert infos["restarted"].tolist() == [False, False, True, True]
        vec.step([0, 0, 0, 0])
        assert vec.mask.tolist() == [True, False, True, False]


def test_an_agent_that_waits_is_cut_off_too():
    class Cursed(Turns):
        def step(self, actions):
            if actions.max() == 1:
                raise ValueError("cursed")
            super().step(actions)

    with shoal.Multiprocessing(Cursed, 1, on_error="restart") as vec:
        vec.reset(seed=0)
        vec.step([0, 0])
        vec.step([0, 0])  # both have moved; the first is to move again, the second waits
        with pytest.warns(RestartWarning, match="cursed"):
            *_, truncations, _ = vec.step([1, 0])
        assert truncations.tolist() == [True, True]


def test_an_agent_that_waits_is_cut_off_with_the_others():
    creators = [Turns, FragileTurns]
    with shoal.Multiprocessing(creators, num_workers=2, on_error="restart") as vec:
        vec.reset(seed=0)
        vec.step([0, 0, 0, 0])  # the first player has moved, and waits for the second
        vec.reset(options={"reset_mask": np.array([True, False])})  # leaves it alone
        with pytest.warns(RestartWarning, match="worker 1 is restarted"):
            _, _, _, truncations, _ = vec.step([0, 0, 0, 1])
        assert truncations.tolist() == [False, False, True, True]
