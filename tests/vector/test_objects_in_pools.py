"""Spaces without bytes: asynchronous pools, restarts, snapshots, several agents and vector envs."""

import os
import pickle
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.backends import BACKENDS, processes
from tests.conftest import wait_until
from tests.vector.every_mode import backends_and_modes
from tests.vector.object_envs import (
    Pair,
    PairRows,
    actions_for,
    check,
    check_finals,
    ledgers,
)

import shoal
from shoal import _core
from shoal.errors import (
    RestartWarning,
    WorkerDied,
)
from shoal.testing.contract import require_equal

native = pytest.mark.skipif(_core.NAME != "native", reason="worker processes need the compiled core")
backends = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


@native
@pytest.mark.parametrize("dying", [None, 2], ids=["sound", "a worker dies"])
@pytest.mark.parametrize(
    ("order", "mode"),
    [
        ("fifo", AutoresetMode.NEXT_STEP),
        ("ready", AutoresetMode.SAME_STEP),
        ("ready", AutoresetMode.DISABLED),
    ],
)
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_asynchronous(mode, order, dying):
    options = {"num_workers": 2, "batch_size": 4, "order": order, "autoreset_mode": mode}
    restarts = {} if dying is None else {"on_error": "restart"}
    with shoal.Multiprocessing(ledgers(8, dying), **options, **restarts) as vec:
        vec.async_reset(seed=0)
        for number in range(40):
            batch = vec.recv()
            check(batch.obs, batch.env_ids)
            check_finals(batch.infos)
            if number == 20:
                saved = pickle.loads(pickle.dumps(vec.snapshot()))
                vec.restore(saved)
            if mode is AutoresetMode.DISABLED and not batch.mask.all():
                mask = np.zeros(8, bool)
                mask[batch.env_ids[~batch.mask]] = True
                vec.async_reset(options={"reset_mask": mask})
            else:
                vec.send(actions_for(batch.env_ids))
        assert vec.stats()["restarts"] == 0 or dying is not None
        assert vec.stats()["restarts"] > 0 or dying is None


@native
def test_gathered_batches_and_their_actions():
    with shoal.Multiprocessing(ledgers(8), num_workers=2, batch_size=2, order="ready") as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        ids = np.concatenate([second.env_ids, first.env_ids])
        vec.send(actions_for(ids), ids)  # of blocks that do not adjoin, in an order of the caller's
        for _ in range(4):
            batch = vec.recv()
            check(batch.obs, batch.env_ids)
            vec.send(actions_for(batch.env_ids))


@native
@modes
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_restarts(mode):
    with processes(ledgers(4, dying=2), on_error="restart", autoreset_mode=mode) as vec:
        last, _ = vec.reset(seed=0)
        for _ in range(30):
            obs, _, terminations, truncations, infos = vec.step(actions_for(range(4)))
            check(obs, range(4))
            check_finals(infos)
            if "restarted" in infos:
                ended = (
                    [infos["final_obs"][2]["object"]]
                    if mode is AutoresetMode.SAME_STEP
                    else obs["object"][2:3]
                )
                assert list(ended) == [last["object"][2]]
            done = terminations | truncations
            while mode is AutoresetMode.DISABLED and done.any():  # one after the other
                one = np.arange(4) == done.argmax()
                obs, _ = vec.reset(options={"reset_mask": one})
                check(obs, range(4))
                done &= ~one
            last = obs
        assert vec.stats()["restarts"] > 1


@native
def test_a_worker_that_was_lost_between_two_steps():
    with processes(ledgers(4), on_error="restart") as vec:
        vec.reset(seed=0)
        pid = vec.call("process_id")[2]
        for _ in range(2):
            shown, *_ = vec.step(actions_for(range(4)))
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60)
        with pytest.raises(WorkerDied, match=r"killed by signal 9"):
            vec.call("process_id")
        with pytest.warns(RestartWarning, match="worker 1 is restarted"):
            obs, _, _, truncations, _ = vec.step(actions_for(range(4)))
        assert truncations.tolist() == [False, False, True, True]
        check(obs, range(4))
        assert obs["object"][2:] == shown["object"][2:]


@native
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_a_reset_of_others_leaves_what_a_restart_shows():
    with processes(ledgers(4, dying=2), on_error="restart") as vec:
        vec.reset(seed=0)
        infos = {}
        while "restarted" not in infos:
            shown, *_, infos = vec.step(actions_for(range(4)))
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        check(obs, range(4))
        assert obs["object"][2:] == shown["object"][2:]
        check(vec.step(actions_for(range(4)))[0], range(4))


@backends
def test_a_snapshot_in_another_vec(backend):
    with backend(ledgers(4), autoreset_mode="Disabled") as vec:
        vec.reset(seed=0)
        shown, *_ = vec.step(actions_for(range(4)))
        saved = vec.snapshot()
        for _ in range(2):
            after, *_ = vec.step(actions_for(range(4)))
        saved = pickle.loads(pickle.dumps(saved))
    with backend(ledgers(4), autoreset_mode="Disabled") as vec:
        vec.restore(saved)
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        check(obs, range(4))
        assert obs["object"][1:] == shown["object"][1:]
        for _ in range(2):
            obs, *_ = vec.step(actions_for(range(4)))
        assert obs["object"][1:] == after["object"][1:]


@backends_and_modes
@pytest.mark.parametrize("kind", [Pair, PairRows])
def test_agents(backend, mode, kind):
    ids = np.repeat(range(3), 2)
    with backend([partial(kind, i) for i in range(3)], autoreset_mode=mode) as vec:
        obs, _ = vec.reset(seed=0)
        check(obs, ids)
        for step in range(1, 12):
            obs, *_, infos = vec.step(actions_for(ids))
            check(obs, ids)
            by_agent = vec.by_agent(obs)
            assert [told[1] for told in by_agent[vec.agents[1]]["object"]] == [1, 1, 1]
            require_equal(vec.from_agents(by_agent), obs, "from agents and back")
            if mode is AutoresetMode.SAME_STEP:
                for row in np.flatnonzero(infos.get("_final_obs", [])):
                    final = infos["final_obs"][row]
                    assert (
                        final["object"][:3] == tuple(final["bytes"]) == (row // 2, row % 2, final["bytes"][2])
                    )
            if mode is AutoresetMode.DISABLED and not vec.mask.any():
                check(vec.reset()[0], ids)
                assert step % 4 == 0


@backends_and_modes
def test_vector_envs_inside(backend, mode):
    def inner(first, kind):
        return kind(ledgers(6)[first : first + 2], autoreset_mode=mode)

    creators = [
        partial(inner, 0, shoal.Serial),
        partial(inner, 2, SyncVectorEnv),
        partial(inner, 4, shoal.Serial),
    ]
    with backend(creators, autoreset_mode=mode) as vec:
        obs, _ = vec.reset(seed=0)
        check(obs, range(6))
        for _ in range(10):
            if mode is AutoresetMode.DISABLED and not vec.mask.all():
                check(vec.reset(options={"reset_mask": ~vec.mask})[0], range(6))
            obs, *_, infos = vec.step(actions_for(range(6)))
            check(obs, range(6))
            check_finals(infos)
