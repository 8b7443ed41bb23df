"""The failures of our peers that Shoal must not have, each under the number it has in our list.

    7-11   faults: bad actions, verbs out of turn, failed attribute access, awkward infos, reused buffers
    15-19  semantics: seeds, autoreset modes, partial resets, spaces, actions
    22     import

Every test runs on every backend that exists.
"""

import subprocess
import sys
from copy import deepcopy
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from shoal.errors import (
    ActionError,
    ActionTypeError,
    AlreadyPending,
    Closed,
    EpisodeOver,
    NothingPending,
    ObservationError,
    SpaceError,
)
from shoal.testing import OBJECT_SPACES, SPACES, UNSIZED_SPACES, SampleEnv, SentinelEnv, SentinelRows
from shoal.testing.contract import difference
from tests.backends import BACKENDS, NAMES, with_spaces

pytestmark = [pytest.mark.core, pytest.mark.twins]


@pytest.fixture(params=NAMES)
def backend(request):
    return BACKENDS[request.param]


class Scripted(gymnasium.Env):
    """Gives the infos it is told, one per step, and never ends unless told."""

    observation_space = sp.Box(0, 1, (1,))
    action_space = sp.Discrete(2)

    def __init__(self, infos=(), length=10**9, space=None):
        self.infos, self.length = list(infos), length
        if space is not None:
            self.observation_space = space

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        info = self.infos[self.count - 1] if self.count <= len(self.infos) else {}
        return np.zeros(1, np.float32), 1.0, self.count == self.length, False, info


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "error", "text"),
    [
        ([0, 1], ActionError, r"action: expected shape \(3,\) and dtype int64, got .*\(2,\)"),
        ([0, 1, 0, 1], ActionError, r"got .*\(4,\)"),
        ([[0], [1], [0]], ActionError, r"got .*\(3, 1\)"),
        ([0.0, 1.0, 0.0], ActionTypeError, r"got .*float64"),
        ([0, 1000, 0], ActionError, r"action of env 1: expected integers from 0 to 999, got 1000"),
        ([0, 0, -1], ActionError, r"action of env 2: expected integers from 0 to 999, got -1"),
    ],
)
def test_07_bad_actions_are_refused_before_any_env_moves(backend, actions, error, text):
    with backend([partial(SentinelEnv, i, 1000) for i in range(3)]) as vec:
        vec.reset(seed=0)
        with pytest.raises(error, match=text):
            vec.step(actions)
        obs, *_ = vec.step([5, 6, 7])
        assert obs[:, 2].tolist() == [1, 1, 1]  # the first step of each
        assert obs[:, 3].tolist() == [5, 6, 7]


def test_07_nan_in_a_box_action_is_refused_but_bounds_are_the_envs_business(backend):
    space = sp.Box(-1, 1, (2,))

    class Remember(SampleEnv):
        def step(self, action):
            self.actions.append(action)
            return self.observation_space.sample(), 0.0, False, False, {}

    with backend(lambda: Remember(sp.Discrete(2), space), num_envs=2) as vec:
        vec.reset(seed=0)
        with pytest.raises(ActionError, match=r"action of env 1: expected numbers, got \[ ?0\. nan\]"):
            vec.step(np.array([[0, 0], [0, np.nan]], np.float32))
        assert vec.get_attr("actions") == ([], [])
        vec.step(np.array([[0, 0], [0, 7]], np.float32))
        assert vec.get_attr("actions")[1][0].tolist() == [0, 7]


def test_07_wrong_env_ids_are_refused(backend):
    with backend([partial(SentinelEnv, i) for i in range(3)]) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        with pytest.raises(ValueError, match="env_ids: expected those of the batch last received"):
            vec.send([0, 0, 0], env_ids=np.array([2, 1, 0]))
        vec.send([0, 0, 0], env_ids=np.array([0, 1, 2]))
        assert vec.recv().obs[:, 2].tolist() == [1, 1, 1]


def test_08_verbs_out_of_turn(backend):
    vec = backend([partial(SentinelEnv, i) for i in range(2)])
    with pytest.raises(NothingPending, match=r"call async_reset\(\) or send\(\) before recv"):
        vec.recv()
    vec.async_reset(seed=0)
    with pytest.raises(AlreadyPending, match=r"a reset is under way: call recv\(\)"):
        vec.send([0, 0])
    vec.recv()
    vec.send([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way"):
        vec.send([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way"):
        vec.step([0, 0])
    obs, _ = vec.reset(seed=3)  # in mid-flight: drops what was under way
    assert obs[:, 4].tolist() == [3, 4]
    vec.close()
    vec.close()
    for verb in (vec.reset, vec.recv, vec.async_reset, partial(vec.step, [0, 0]), partial(vec.send, [0, 0])):
        with pytest.raises(Closed, match="has been closed"):
            verb()


def test_09_a_failed_get_attr_leaves_the_vec_as_it_was(backend):
    with backend([partial(SentinelEnv, i) for i in range(2)]) as vec:
        vec.reset(seed=0)
        with pytest.raises(AttributeError, match="typo"):
            vec.get_attr("typo")
        with pytest.raises(TypeError, match="unexpected keyword"):
            vec.call("reward_of", no_such=1)
        assert vec.step([1, 2])[0][:, 3].tolist() == [1, 2]
        assert vec.get_attr("env_id") == (0, 1)


def test_10_infos_larger_than_a_pipe_and_arrays(backend):
    large = np.arange(300_000)
    creators = [partial(Scripted, [{"large": large, "bytes": b"x" * 500_000}]), Scripted]
    with backend(creators) as vec:
        vec.reset()
        infos = vec.step([0, 0])[-1]
        np.testing.assert_array_equal(infos["large"][0], large)
        assert infos["_large"].tolist() == [True, False]
        assert len(infos["bytes"][0]) == 500_000


def test_10_infos_that_change_their_type_are_kept(backend):
    first = [{"n": 2, "x": 1}, {"n": 1}, {"n": True}, {"n": np.zeros(2)}, {"n": {"deep": 1}}]
    second = [{"n": 2.7, "x": None}, {"n": None}, {"n": 5}, {"n": np.zeros(3)}, {"n": "text"}]
    with backend([partial(Scripted, first), partial(Scripted, second)]) as vec:
        vec.reset()
        infos = vec.step([0, 0])[-1]
        assert infos["n"].tolist() == [2.0, 2.7]
        assert infos["x"].tolist() == [1, None]
        for a, b in zip(first[1:], second[1:], strict=True):
            infos = vec.step([0, 0])[-1]
            assert infos["n"].dtype == object
            assert difference(infos["n"][0], a["n"]) is None
            assert difference(infos["n"][1], b["n"]) is None


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("kind", [SentinelEnv, SentinelRows])
def test_11_final_obs_of_an_env_that_reuses_its_buffer(backend, kind, flat):
    with backend([partial(kind, i, 3) for i in range(3)], autoreset_mode="SameStep", flat=flat) as vec:
        vec.reset(seed=1)
        ended = 0
        for _ in range(30):
            obs, _, terminations, truncations, infos = vec.step([9, 9, 9])
            for i in np.flatnonzero(terminations | truncations):
                final = infos["final_obs"][i]
                assert final[0] == i
                assert final[3] == 9  # the action that ended it
                assert final[1] == obs[i, 1] - 1  # the episode before the one that has begun
                assert obs[i, 2] == 0
                ended += 1
        assert ended > 10


# -- semantics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [10, np.int64(10), np.int32(10), [10, 11, 12, 13], np.arange(10, 14)], ids=repr
)
def test_15_seeds_are_distinct(backend, seed):
    with backend([partial(SentinelEnv, i) for i in range(4)]) as vec:
        assert vec.reset(seed=seed)[0][:, 4].tolist() == [10, 11, 12, 13]


def test_15_autoreset_never_repeats_a_seed(backend):
    with backend(partial(gymnasium.make, "CartPole-v1"), num_envs=3) as vec:
        vec.async_reset(seed=0)
        first_observations = []
        for _ in range(300):
            batch = vec.recv()
            first_observations.append(batch.obs[batch.resets])
            vec.send(vec.action_space.sample())
        starts = np.concatenate(first_observations)
        assert len(starts) > 20
        assert len(np.unique(starts, axis=0)) == len(starts)


def test_15_the_seed_of_the_constructor(backend):
    def run(vec):
        with vec:
            obs, _ = vec.reset()
            return obs, vec.action_space.sample()

    create = partial(gymnasium.make, "CartPole-v1")
    first, second = (run(backend(create, num_envs=2, seed=np.int64(4))) for _ in range(2))
    assert difference(first, second) is None
    with backend(create, num_envs=2) as vec:
        np.testing.assert_array_equal(vec.reset(seed=4)[0], first[0])


def test_16_modes(backend):
    creators = [partial(Scripted, length=2), partial(Scripted, length=3)]

    def run(mode, steps):
        with backend(creators, autoreset_mode=mode) as vec:
            vec.reset()
            return [vec.step([0, 0])[1:3] for _ in range(steps)]

    flags = [terminations.tolist() for _, terminations in run(AutoresetMode.NEXT_STEP, 4)]
    assert flags == [[False, False], [True, False], [False, True], [False, False]]
    rewards = [rewards.tolist() for rewards, _ in run(AutoresetMode.NEXT_STEP, 4)]
    assert rewards == [[1, 1], [1, 1], [0, 1], [1, 0]]  # a step that resets has no reward
    flags = [terminations.tolist() for _, terminations in run(AutoresetMode.SAME_STEP, 4)]
    assert flags == [[False, False], [True, False], [False, True], [True, False]]
    assert all(rewards.tolist() == [1, 1] for rewards, _ in run(AutoresetMode.SAME_STEP, 4))


def test_16_stepping_a_finished_env_under_disabled_is_an_error(backend):
    creators = [partial(Scripted, length=1), Scripted]
    with backend(creators, autoreset_mode=AutoresetMode.DISABLED) as vec:
        vec.reset()
        *_, terminations, _, _ = vec.step([0, 0])
        with pytest.raises(EpisodeOver, match=r"envs \[0\] have finished"):
            vec.step([0, 0])
        with pytest.raises(AssertionError, match="No env has moved"):
            vec.step([0, 0])
        assert vec.get_attr("count") == (1, 1)
        vec.reset(options={"reset_mask": terminations})
        vec.step([0, 0])
        assert vec.get_attr("count") == (1, 2)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_16_terminated_and_truncated_may_both_be_true(backend, mode):
    class Both(Scripted):
        def step(self, action):
            return np.zeros(1, np.float32), 1.0, True, True, {}

    with backend(Both, autoreset_mode=mode) as vec:
        vec.reset()
        _, _, terminations, truncations, _ = vec.step([0])
        assert terminations.tolist() == truncations.tolist() == [True]


def test_17_partial_resets_keep_the_statistics_of_the_others(backend):
    creators = [partial(Scripted, length=3), partial(Scripted, length=5)]
    with backend(creators, autoreset_mode="Disabled", episode_stats=True) as vec:
        vec.reset()
        for _ in range(3):
            vec.step([0, 0])
        options = {"reset_mask": np.array([True, False]), "level": 4}
        kept = deepcopy(options)
        vec.reset(options=options)
        assert difference(options, kept) is None
        vec.step([0, 0])
        infos = vec.step([0, 0])[-1]
        assert infos["episode"]["r"].tolist() == [0, 5]
        assert infos["episode"]["l"].tolist() == [0, 5]
        assert infos["_episode"].tolist() == [False, True]


def test_17_gymnasiums_own_statistics_survive_a_partial_reset(backend):
    vec = backend([partial(Scripted, length=3), partial(Scripted, length=5)], autoreset_mode="Disabled")
    vec = gymnasium.wrappers.vector.RecordEpisodeStatistics(vec)
    vec.reset()
    for _ in range(3):
        vec.step([0, 0])
    vec.reset(options={"reset_mask": np.array([True, False])})
    vec.step([0, 0])
    assert vec.step([0, 0])[-1]["episode"]["l"].tolist() == [0, 5]
    vec.close()


def check_round_trip(backend, space, flat):
    def create():
        return SampleEnv(deepcopy(space), sp.Discrete(2), length=10**9)

    by_hand = [create() for _ in range(3)]
    with backend(create, num_envs=3, flat=flat) as vec:
        batches = [vec.reset(seed=5)[0], vec.step([0, 0, 0])[0]]
        expected = [[env.reset(seed=5 + i)[0] for i, env in enumerate(by_hand)]]
        expected.append([env.step(0)[0] for env in by_hand])
        for batch, values in zip(batches, expected, strict=True):
            if flat:
                got = [vec.observation_layout.value(row) for row in batch]
            else:
                got = list(gymnasium.vector.utils.iterate(vec.observation_space, batch))
            assert difference(got, values) is None


@pytest.mark.parametrize(("backend", "space"), with_spaces((*SPACES, *OBJECT_SPACES)))
def test_18_observations_round_trip_exactly(backend, space):
    check_round_trip(backend, space, flat=False)


@pytest.mark.parametrize(("backend", "space"), with_spaces(SPACES))
def test_18_flat_observations_round_trip_exactly(backend, space):
    check_round_trip(backend, space, flat=True)


@pytest.mark.parametrize("space", UNSIZED_SPACES, ids=str)
def test_18_flat_rows_refuse_sequence_and_graph(backend, space):
    with pytest.raises(SpaceError, match="no fixed size"):
        backend(lambda: SampleEnv(space, sp.Discrete(2)), flat=True)
    with pytest.raises(SpaceError, match="no fixed size"):
        backend(lambda: SampleEnv(sp.Discrete(2), space), flat=True)


@pytest.mark.parametrize(
    "wrong", [np.zeros(2), np.zeros((1, 1)), np.zeros(10**6), np.float32(0), None, "text"]
)
def test_18_an_observation_of_another_shape_never_overruns_its_row(backend, wrong):
    class Grow(Scripted):
        def step(self, action):
            return wrong, 1.0, False, False, {}

    with backend([Scripted, Grow, Scripted]) as vec:
        vec.reset()
        before = vec._arena.observations.copy()
        with pytest.raises(ObservationError, match=r"observation: expected shape \(1,\).*step\(\) of env 1"):
            vec.step([0, 0, 0])
        np.testing.assert_array_equal(
            vec._arena.observations, before
        )  # all of them zeros, the neighbours too


ACTION_SPACES = (
    sp.Dict({"move": sp.Discrete(3, start=-1), "force": sp.Box(-1, 1, (2,))}),
    sp.MultiBinary(4),
    sp.MultiDiscrete([3, 4]),
    sp.Box(-1, 1, (2, 2), np.float64),
    sp.Tuple((sp.Discrete(2), sp.Dict({"a": sp.Box(0, 9, (1,), np.int32)}))),
    sp.OneOf([sp.Discrete(3), sp.Box(1, 2, (2,))]),
)


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize(("backend", "space"), with_spaces(ACTION_SPACES))
def test_19_actions_of_every_kind_reach_their_env(backend, space, flat):
    with backend(lambda: SampleEnv(sp.Discrete(2), deepcopy(space)), num_envs=3, flat=flat) as vec:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        sent = [vec.action_space.sample() for _ in range(5)]
        for actions in sent:
            vec.step(actions)
        received = vec.get_attr("actions")
        assert all(len(own) == 5 for own in received)
        assert all(action in space for own in received for action in own)
        if not flat:
            for number, actions in enumerate(sent):
                each = list(gymnasium.vector.utils.iterate(vec.action_space, actions))
                assert difference([own[number] for own in received], each) is None


# -- import ------------------------------------------------------------------------------------------------


def python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )


def test_22_import_needs_no_torch_and_says_nothing():
    done = python("import sys; sys.modules['torch'] = None; import shoal; assert shoal.Serial")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_22_import_opens_and_changes_nothing():
    code = """
import gymnasium, numpy, cloudpickle, os, signal, sys, threading, warnings
def state():
    return (
        sorted(os.listdir("/proc/self/fd")), threading.enumerate(), list(warnings.filters), dict(os.environ),
        sys.stdout, sys.stderr, os.getcwd(), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        {name for name in gymnasium.registry if not name.startswith("shoal/")}, os.listdir("."), sys.path[:],
        sys.getswitchinterval(),
    )
before = state()
import shoal
after = state()
assert before == after, [(a, b) for a, b in zip(before, after) if a != b]
heavy = {"torch", "pandas", "matplotlib", "rich", "tyro", "numba", "pytest", "hypothesis", "jax"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
