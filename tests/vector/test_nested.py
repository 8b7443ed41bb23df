"""Vector envs inside a vec: ours, Gymnasium's, and engines of their own."""

from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.envs import Turns

import shoal
from shoal.errors import ArgumentError, SnapshotError
from shoal.testing import CrashEnv, SentinelEnv
from shoal.testing.contract import difference

pytestmark = [pytest.mark.core, pytest.mark.twins]

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_agents_that_wait_are_the_same_inside_a_vec(mode):
    options = {"autoreset_mode": mode, "episode_stats": True}
    inner = partial(shoal.Serial, Turns, autoreset_mode=mode)
    with shoal.Serial(inner, 2, **options) as nested, shoal.Serial(Turns, 2, **options) as flat:
        for vec in (nested, flat):
            vec.async_reset(seed=0)
        for number in range(9):
            mine, reference = nested.recv(), flat.recv()
            for batch in (mine, reference):
                batch.infos.get("episode", {}).pop("t", None)
            assert difference(mine, reference) is None, number
            for vec in (nested, flat):
                vec.send([0, 0, 0, 0])


def test_an_engine_that_ignores_the_mask_is_not_trusted():
    create = partial(gymnasium.make_vec, "CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    with shoal.Serial(create) as vec:
        vec.reset(seed=0)
        vec.step([0, 1, 0])
        with pytest.raises(
            ArgumentError, match=r"CartPoleVectorEnv resets all of its envs whatever the mask"
        ):
            vec.reset(options={"reset_mask": np.array([True, False, False])})
        vec.reset()


class Engine(gymnasium.vector.VectorEnv):
    """A vector env of nobody's, with attributes that could be taken for ours."""

    num_envs = 2
    single_observation_space = sp.Discrete(99)
    single_action_space = sp.Discrete(2)
    observation_space = sp.MultiDiscrete([99, 99])
    action_space = sp.MultiDiscrete([2, 2])
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    mask = np.zeros(2, bool)
    rows_as_envs = False
    agents_per_env = 7

    def reset(self, *, seed=None, options=None):
        self.count = 0
        if options:
            options.clear()
        return np.zeros(2, np.int64), {"flag": np.array([True, False])}

    def step(self, actions):
        self.count += 1
        return np.full(2, self.count), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}

    def close_extras(self, **kwargs):
        pass


def test_a_foreign_engine_is_not_taken_for_ours():
    options = {"level": 1}
    with shoal.Serial(Engine, 2) as vec:
        assert (vec.num_envs, vec.agents_per_env) == (4, 1)
        infos = vec.reset(options=options)[1]
        assert infos["flag"].dtype == bool
        for _ in range(3):
            rewards = vec.step([0] * 4)[1]
        assert rewards.tolist() == [1] * 4
    assert options == {"level": 1}


def test_an_error_says_which_envs_it_may_be():
    inner = [partial(shoal.Serial, [SentinelEnv, SentinelEnv]) for _ in range(2)]
    inner[1] = partial(shoal.Serial, [SentinelEnv, partial(CrashEnv, 3, 1)])
    with shoal.Serial(inner) as vec:
        vec.reset(seed=0)
        with pytest.raises(ValueError, match="env 3 failed as told") as caught:
            vec.step([0] * 4)
        assert caught.value.__notes__[-1] == "raised by step() of the vector env that holds envs 2 to 3"


def test_a_wrapped_vec_inside_has_no_snapshot():
    def inner():
        return gymnasium.wrappers.vector.ClipReward(shoal.Serial(CARTPOLE, 2), 0.0, 0.5)

    with shoal.Serial(inner) as vec:
        vec.reset(seed=0)
        with pytest.raises(SnapshotError, match=r"a vec cannot be pickled or copied: use snapshot"):
            vec.snapshot()


def test_an_env_that_forgets_its_state_is_found_at_any_depth():
    class Forgets(SentinelEnv, gymnasium.utils.EzPickle):
        def __init__(self):
            gymnasium.utils.EzPickle.__init__(self)
            SentinelEnv.__init__(self)

    with shoal.Serial(lambda: SyncVectorEnv([Forgets])) as vec:
        vec.reset(seed=0)
        with pytest.raises(SnapshotError, match=r"Forgets is an EzPickle"):
            vec.snapshot()


def test_a_foreign_vector_env_inside():
    def create():
        return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")

    with shoal.Serial(create, 2, autoreset_mode="NextStep", episode_stats=True) as vec:
        assert vec.num_envs == 6
        vec.reset(seed=0)
        for _ in range(60):
            obs, *_ = vec.step(vec.action_space.sample())
        assert obs in vec.observation_space
        assert vec.stats()["episodes"] > 0


def test_gymnasiums_sync_vector_env_inside_is_the_same_as_its_envs():
    def inner():
        return gymnasium.vector.SyncVectorEnv([CARTPOLE] * 2)

    with shoal.Serial(inner, 2) as nested, shoal.Serial(CARTPOLE, 4) as flat:
        assert difference(nested.reset(seed=3), flat.reset(seed=3)) is None
        nested.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
        flat.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
        assert nested.get_attr("gravity") == (1.0, 2.0, 3.0, 4.0)
        flat.action_space.seed(0)
        for _ in range(60):
            actions = flat.action_space.sample()
            assert difference(nested.step(actions), flat.step(actions)) is None
        chosen = np.array([True, False, False, True])
        pair = [vec.reset(seed=[1, 2, 3, 4], options={"reset_mask": chosen}) for vec in (nested, flat)]
        assert difference(*pair) is None
        assert len(nested.envs) == 4


def test_a_wrapped_vector_env_inside():
    def inner():
        return gymnasium.wrappers.vector.ClipReward(shoal.Serial(CARTPOLE, 2), 0.0, 0.5)

    with shoal.Serial(inner, 2) as vec:
        vec.reset(seed=0)
        assert vec.step([0, 1, 0, 1])[1].tolist() == [0.5] * 4
        vec.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
        assert vec.get_attr("gravity") == (1.0, 2.0, 3.0, 4.0)


def test_the_modes_must_agree():
    with pytest.raises(
        ArgumentError, match=r"uses AutoresetMode.SAME_STEP, this vec AutoresetMode.NEXT_STEP"
    ):
        shoal.Serial(lambda: shoal.Serial(CARTPOLE, 2, autoreset_mode="SameStep"))


def test_hierarchy_with_agents_and_snapshots():
    class Pair(shoal.Env):
        observation_space = sp.Box(0, 99, (1,))
        action_space = sp.Discrete(9)
        num_agents = 2

        def reset(self, seed=None, options=None):
            self.count = 0
            self.observations[:] = 0

        def step(self, actions):
            self.count += 1
            self.observations[:] = self.count
            self.rewards[:] = actions
            self.terminations[:] = (self.count == 2, self.count == 3)

    with shoal.Serial(lambda: shoal.Serial(Pair, 2), 2) as nested, shoal.Serial(Pair, 4) as flat:
        assert (nested.num_envs, nested.num_rows) == (flat.num_envs, flat.num_rows) == (4, 8)
        for vec in (nested, flat):
            vec.async_reset(seed=0)
        for number in range(9):
            mine, reference = nested.recv(), flat.recv()
            assert difference(mine, reference) is None, number
            if number == 4:
                saved = nested.snapshot()
                nested.restore(saved)
            for vec in (nested, flat):
                vec.send(np.arange(8))
