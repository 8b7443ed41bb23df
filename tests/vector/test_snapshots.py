import pickle
from copy import deepcopy
from functools import partial

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.errors import ResetNeeded, SnapshotError
from shoal.testing import CrashEnv, SentinelEnv
from shoal.testing.contract import difference

pytestmark = pytest.mark.core

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


def test_a_vec_cannot_be_copied_by_accident():
    with shoal.Serial(SentinelEnv) as vec:
        for copy in (pickle.dumps, deepcopy):
            with pytest.raises(SnapshotError, match=r"use snapshot\(\) and restore"):
                copy(vec)


def test_a_restore_that_fails_changes_nothing_but_needs_a_reset():
    class Fragile(SentinelEnv):
        def __setstate__(self, state):
            raise OSError("the file is gone")

    with shoal.Serial([SentinelEnv, Fragile]) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot()
        envs = vec.envs
        with pytest.raises(OSError, match="the file is gone"):
            vec.restore(saved)
        assert vec.envs == envs
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            vec.step([0, 0])
        vec.reset(seed=0)


def test_a_snapshot_survives_pickling_and_moves_to_another_vec():
    creators = [CARTPOLE] * 3
    plan = np.random.default_rng(0).integers(0, 2, (60, 3))
    with shoal.Serial(creators) as first, shoal.Serial(creators) as second:
        first.reset(seed=0)
        for actions in plan[:20]:
            first.step(actions)
        saved = pickle.loads(pickle.dumps(first.snapshot()))
        future = [first.step(actions) for actions in plan[20:]]
        second.restore(saved)
        assert difference([second.step(actions) for actions in plan[20:]], future) is None
        second.reset(options={"reset_mask": np.array([True, False, False])})  # all have been reset before


def test_a_snapshot_keeps_a_planned_seed():
    with shoal.Serial(SentinelEnv) as vec:
        vec.reset(seed=1)
        vec.seed(5)
        saved = vec.snapshot()
        assert vec.reset()[0][0, 4] == 5
        vec.restore(saved)
        assert vec.reset()[0][0, 4] == 5


def test_restoring_closes_the_envs_it_replaces():
    with shoal.Serial(SentinelEnv, 2) as vec:
        vec.reset(seed=0)
        saved = vec.snapshot()
        old = vec.envs
        vec.restore(saved)
        assert [env.closed for env in old] == [1, 1]
        assert all(new is not env for new, env in zip(vec.envs, old, strict=True))


def test_an_env_that_cannot_be_pickled_says_so():
    class Handle(SentinelEnv):
        def __init__(self):
            super().__init__()
            self.handle = (n for n in range(3))

    with shoal.Serial(Handle) as vec:
        vec.reset()
        with pytest.raises(SnapshotError, match=r"Handle cannot be pickled.*__getstate__"):
            vec.snapshot()
        vec.step([0])


def test_an_env_that_forgets_its_state_when_pickled_says_so():
    class Forgets(SentinelEnv, gymnasium.utils.EzPickle):
        def __init__(self):
            gymnasium.utils.EzPickle.__init__(self)
            SentinelEnv.__init__(self)

    for create in (Forgets, lambda: gymnasium.wrappers.TimeLimit(Forgets(), 5)):
        with shoal.Serial(create) as vec:
            vec.reset(seed=0)
            with pytest.raises(SnapshotError, match=r"Forgets is an EzPickle: .* forgets its state"):
                vec.snapshot()


def test_a_snapshot_of_another_vec_is_refused():
    with shoal.Serial(SentinelEnv, 2) as small, shoal.Serial(SentinelEnv, 3) as large:
        small.reset()
        large.reset()
        with pytest.raises(SnapshotError, match="another number of rows: 2, not 3"):
            large.restore(small.snapshot())
        large.step([0, 0, 0])


def test_what_is_no_snapshot_is_refused():
    with shoal.Serial(SentinelEnv) as vec, shoal.Serial(SentinelEnv, autoreset_mode="SameStep") as other:
        for thing in ({}, None, 3):
            with pytest.raises(SnapshotError, match=r"expected what snapshot\(\) returned"):
                vec.restore(thing)
        with pytest.raises(SnapshotError, match=r"another autoreset_mode: AutoresetMode.SAME_STEP"):
            vec.restore(other.snapshot())


def test_a_failed_vec_has_no_snapshot_but_can_be_restored():
    with shoal.Serial([SentinelEnv, partial(CrashEnv, 1, 2, max_length=1000)]) as vec:
        vec.reset(seed=0)
        vec.step([1, 1])
        saved = vec.snapshot()
        with pytest.raises(ValueError, match="failed as told"):
            vec.step([1, 1])
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            vec.snapshot()
        vec.restore(saved)
        vec.set_attr("at", 99)
        vec.step([1, 1])


def test_a_snapshot_cannot_be_taken_in_mid_flight():
    with shoal.Serial(SentinelEnv) as vec:
        vec.async_reset()
        with pytest.raises(shoal.errors.AlreadyPending, match="before snapshot"):
            vec.snapshot()
