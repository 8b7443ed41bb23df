import pickle
from copy import deepcopy
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
import torch

import shoal
from shoal.errors import ArgumentError, ResetNeeded, SnapshotError
from shoal.testing import CrashEnv, SampleEnv, SentinelEnv
from shoal.testing.contract import difference

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


class Tracked(SentinelEnv):
    """Counts how many are made and how many are open."""

    made = 0
    open = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Tracked.made += 1
        Tracked.open += 1

    def close(self):
        super().close()
        Tracked.open -= 1


@pytest.fixture(autouse=True)
def _count_anew():
    Tracked.made = Tracked.open = 0


# -- the life of a vec --------------------------------------------------------------------------------------


def test_exactly_num_envs_are_made_and_each_is_closed_once():
    vec = shoal.Serial(Tracked, num_envs=4)
    envs = vec.envs
    assert Tracked.made == 4
    vec.close()
    vec.close()
    assert [env.closed for env in envs] == [1, 1, 1, 1]


def test_a_forgotten_vec_closes_its_envs():
    shoal.Serial(Tracked, num_envs=2)
    assert Tracked.open == 0


def test_a_creator_that_fails_closes_the_envs_made_before():
    def fail():
        raise OSError("no licence left")

    with pytest.raises(OSError, match="no licence left") as caught:
        shoal.Serial([Tracked, Tracked, fail])
    assert caught.value.__notes__ == ["raised while creating env 2"]
    assert (Tracked.made, Tracked.open) == (2, 0)


def test_spaces_that_do_not_fit_close_the_envs():
    with pytest.raises(RuntimeError, match="another observation space"):
        shoal.Serial([Tracked, lambda: SampleEnv(sp.Discrete(2), sp.Discrete(1000))])
    assert Tracked.open == 0


def test_every_env_is_closed_even_if_one_fails_to():
    class Stubborn(Tracked):
        def close(self):
            super().close()
            raise OSError("will not close")

    vec = shoal.Serial([Tracked, Stubborn, Tracked])
    with pytest.raises(OSError, match="will not close") as caught:
        vec.close()
    assert caught.value.__notes__ == ["raised by close() of env 1"]
    assert Tracked.open == 0
    vec.close()


def test_an_exception_in_the_with_block_is_not_hidden():
    with pytest.raises(ZeroDivisionError, match="division"), shoal.Serial(Tracked) as vec:
        raise ZeroDivisionError("division")
    assert vec.closed


@pytest.mark.parametrize("error", [ValueError("a"), KeyboardInterrupt(), gymnasium.error.ResetNeeded("b")])
def test_an_envs_exception_comes_out_as_it_is(error):
    class Broken(SentinelEnv):
        def step(self, action):
            raise error

    with shoal.Serial([SentinelEnv, Broken]) as vec:
        vec.reset(seed=0)
        with pytest.raises(type(error)) as caught:
            vec.step([0, 0])
        assert caught.value is error
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            vec.step([0, 0])
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            vec.reset(options={"reset_mask": np.array([True, False])})
        vec.reset()


def test_a_failed_reset_can_be_repeated():
    with shoal.Serial([SentinelEnv, partial(CrashEnv, 1, 0)]) as vec:
        with pytest.raises(ValueError, match="failed as told"):
            vec.reset(seed=0)
        vec.set_attr("at", 99)
        vec.reset(seed=0)
        vec.step([0, 0])


def test_a_first_reset_cannot_be_partial():
    with shoal.Serial(SentinelEnv, 3) as vec:
        with pytest.raises(ArgumentError, match="some envs have never been reset"):
            vec.reset(options={"reset_mask": np.array([True, True, False])})
        vec.reset(options={"reset_mask": np.ones(3, bool)})


def test_repr_names_backend_env_and_counts():
    with shoal.Serial(CARTPOLE, 3) as vec:
        assert repr(vec) == "Serial(num_envs=3)"
        vec.spec = gymnasium.spec("CartPole-v1")
        assert repr(vec) == "Serial(CartPole-v1, num_envs=3)"


def test_the_seed_of_the_constructor_is_one_number():
    with pytest.raises(TypeError, match=r"seed: expected an integer, got \[1, 2\]"):
        shoal.Serial(Tracked, 2, seed=[1, 2])
    assert (Tracked.made, Tracked.open) == (2, 0)  # each closed once


def test_a_planned_seed_is_kept_for_the_next_try():
    with shoal.Serial(partial(CrashEnv, 0, 0), seed=5) as vec:
        with pytest.raises(ValueError, match="failed as told"):
            vec.reset()
        vec.set_attr("at", 99)
        assert vec.reset()[0][0, 4] == 5


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


def test_the_error_names_the_verb_also_in_an_autoreset():
    class BadReset(SentinelEnv):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return (obs, info) if self.episode == 0 else (obs[:2], info)

    with shoal.Serial(partial(BadReset, 0, 1)) as vec:
        vec.reset(seed=0)
        vec.step([0])
        with pytest.raises(
            shoal.errors.ObservationError, match=r"from reset\(\) of env 0. .* its reset\(\) returns"
        ):
            vec.step([0])


@pytest.mark.parametrize(
    "reward", [np.array([1.5]), np.array(1.5), np.float32(1.5), torch.tensor([1.5])], ids=repr
)
def test_a_reward_may_be_an_array_of_one_number(reward):
    class Rewards(SentinelEnv):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    with shoal.Serial([SentinelEnv, Rewards]) as vec:
        vec.reset(seed=0)
        assert vec.step([0, 0])[1][1] == 1.5


def test_kept_infos_and_objects_stay_as_they_were():
    class Reuses(gymnasium.Env):
        observation_space = Anything()
        action_space = sp.Discrete(2)

        def __init__(self, size):
            self.list, self.array = [], np.zeros(size)

        def reset(self, *, seed=None, options=None):
            return self.list, {}

        def step(self, action):
            self.list.append(1)
            self.array += 1
            return self.list, 0.0, False, False, {"array": self.array}

    with shoal.Serial([partial(Reuses, 2), partial(Reuses, 3)]) as vec:
        first, _ = vec.reset()
        infos = vec.step([0, 0])[-1]
        vec.step([0, 0])
        assert first == ([], [])
        assert infos["array"][0].tolist() == [1, 1]


class Anything(sp.Space):
    def __eq__(self, other):
        return isinstance(other, Anything)

    def contains(self, x):
        return True


def test_flat_observations_of_different_spaces_are_in_their_space():
    creators = [lambda h=h: SampleEnv(sp.Box(0, h, (2,)), sp.Discrete(2)) for h in (1, 50)]
    with shoal.Serial(creators, observation_mode="different", flat=True) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs in vec.observation_space


def test_flat_actions_of_integers_that_have_no_common_type():
    space = sp.Tuple((sp.Box(0, 9, (1,), np.uint64), sp.Box(-9, 9, (1,), np.int64)))
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), flat=True) as vec:
        vec.reset(seed=0)
        for _ in range(10):
            vec.step(vec.action_space.sample())


def test_time_outside_is_counted_once():
    with shoal.Serial([SentinelEnv, partial(CrashEnv, 1, 1)]) as vec:
        vec.reset(seed=0)
        with pytest.raises(ValueError, match="failed as told"):
            vec.step([0, 0])
        outside = vec.stats()["seconds_outside"]
        vec.reset(seed=0)
        vec.step([0, 0])
        assert vec.stats()["seconds_outside"] == outside


def test_an_own_attribute_env_is_not_looked_into():
    class Holder(shoal.Env):
        observation_space = action_space = sp.Discrete(2)
        metadata = {"render_modes": ["ansi"]}
        render_mode = "ansi"

        def __init__(self):
            super().__init__()
            self.env = None

        def reset(self, seed=None, options=None):
            self.observations[:] = 0

    with shoal.Serial(Holder) as vec:
        assert vec.render_mode == "ansi"


def test_an_explicit_seed_comes_before_a_planned_one():
    with shoal.Serial(SentinelEnv, seed=5) as vec:
        assert vec.reset(seed=9)[0][0, 4] == 9
        assert vec.reset()[0][0, 4] == 9  # the planned one is not kept for later


def test_an_unknown_argument_is_an_error():
    with pytest.raises(TypeError, match="num_workers"):
        shoal.Serial(CARTPOLE, 2, num_workers=2)


# -- data ---------------------------------------------------------------------------------------------------


def test_an_env_may_keep_its_actions():
    class Keeper(gymnasium.Env):
        observation_space = sp.Box(-1, 1, (2,))
        action_space = sp.Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            self.kept = []
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.kept.append(action)
            return action, 0.0, False, False, {}

    with shoal.Serial(Keeper, 2) as vec:
        vec.reset()
        sent = [np.full((2, 2), x, np.float32) for x in (0.1, 0.2, 0.3)]
        for actions in sent:
            vec.step(actions)
        kept = vec.get_attr("kept")
        np.testing.assert_array_equal(np.array(kept[1]), np.array(sent)[:, 1])


def test_discrete_actions_are_numpy_integers():
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), sp.Discrete(3)), 2) as vec:
        vec.reset(seed=0)
        vec.step([1, 2])
        vec.step(np.array([0, 1], np.uint8))
        assert [type(a) for a in vec.get_attr("actions")[0]] == [np.int64, np.int64]


def test_dict_observations_with_copy_false_are_views_of_the_rows():
    space = sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(3)})
    with shoal.Serial(lambda: SampleEnv(space, sp.Discrete(2)), 3, copy=False) as vec:
        first, _ = vec.reset(seed=0)
        second, *_ = vec.step([0, 0, 0])
        assert first is not second
        assert np.shares_memory(first["a"], second["a"])
        first.pop("a")  # the caller's own dict
        assert set(vec.step([0, 0, 0])[0]) == {"a", "b"}


def test_dict_observations_with_copy_true_are_contiguous_and_owned():
    space = sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(3)})
    with shoal.Serial(lambda: SampleEnv(space, sp.Discrete(2)), 3) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs["a"].flags.c_contiguous
        assert obs["a"].base is None


def test_rewards_and_flags_are_always_the_callers():
    with shoal.Serial([partial(SentinelEnv, i) for i in range(3)], copy=False) as vec:
        vec.reset(seed=0)
        _, *kept, _ = vec.step([1, 2, 3])
        copies = [array.copy() for array in kept]
        for _ in range(5):
            vec.step([4, 5, 6])
        assert difference(kept, copies) is None


def test_final_info_of_an_env_that_reuses_its_arrays():
    class Reuses(SentinelEnv):
        def reset(self, **kwargs):
            self.marks = getattr(self, "marks", np.zeros(2))
            self.marks[:] = 0
            return super().reset(**kwargs)

        def step(self, action):
            *moment, _ = super().step(action)
            self.marks += 1
            return *moment, {"marks": self.marks}

    with shoal.Serial(partial(Reuses, 0, 1), autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        assert vec.step([0])[-1]["final_info"]["marks"].tolist() == [[1, 1]]


def test_final_obs_is_flat_when_the_vec_is():
    space = sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(3)})
    create = partial(SampleEnv, space, sp.Discrete(2), length=1)
    with shoal.Serial(create, flat=True, autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        infos = vec.step([0])[-1]
        assert infos["final_obs"][0] in vec.single_observation_space


@pytest.mark.parametrize(
    ("space", "flat"),
    [
        (sp.Discrete(3, start=4), sp.Discrete(3)),
        (sp.Box(-1, 1, (2, 2)), sp.Box(-1, 1, (2, 2))),
        (sp.MultiDiscrete([3, 4]), sp.MultiDiscrete([3, 4])),
        (sp.MultiBinary(3), sp.MultiDiscrete([2, 2, 2])),
        (sp.Dict({"a": sp.Discrete(3, start=-1), "b": sp.MultiBinary(2)}), sp.MultiDiscrete([3, 2, 2])),
        (
            sp.Tuple((sp.Box(-1, 1, (2,)), sp.Box(0, 5, ()))),
            sp.Box(np.float32([-1, -1, 0]), np.float32([1, 1, 5])),
        ),
        (sp.OneOf([sp.Discrete(3), sp.Discrete(2)]), sp.MultiDiscrete([2, 3, 2])),
    ],
    ids=str,
)
def test_flat_action_spaces(space, flat):
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), flat=True) as vec:
        assert vec.single_action_space == flat


def test_flat_actions_count_from_zero():
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), sp.Discrete(3, start=4)), 2, flat=True) as vec:
        vec.reset()
        vec.step([0, 2])
        assert vec.get_attr("actions") == ([4], [6])
        with pytest.raises(ValueError, match=r"expected integers from 4 to 6, got 7"):
            vec.step([0, 3])


def test_mixed_flat_actions_check_their_integers():
    space = sp.Dict({"force": sp.Box(-1, 1, (2,)), "move": sp.Discrete(3)})
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 2, flat=True) as vec:
        vec.reset()
        assert vec.single_action_space.shape == (3,)
        vec.step(np.array([[0.5, -0.5, 2], [0, 0, 0]], np.float32))
        assert vec.get_attr("actions")[0][0]["move"] == 2
        for wrong, text in [
            (1.5, "expected integers, got 1.5"),
            (3, "from 0 to 2, got 3"),
            (np.nan, "got nan"),
        ]:
            with pytest.raises(ValueError, match=rf'action\["move"\].*{text}'):
                vec.step([[0, 0, wrong], [0, 0, 0]])
        with pytest.raises(ValueError, match=r'action\["force"\] of env 1: expected numbers'):
            vec.step([[0, 0, 0], [np.nan, 0, 0]])
        with pytest.raises(ValueError, match=r"action: expected shape \(2, 3\)"):
            vec.step([[0, 0], [0, 0]])
        assert len(vec.get_attr("actions")[0]) == 1
        for _ in range(50):
            sample = vec.action_space.sample()
            assert sample in vec.action_space
            vec.step(sample)


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ({"a": [0, 0]}, r"expected a dict with the keys \['a', 'b'\], got the keys \['a'\]"),
        ([{"a": 0}, {"a": 0}], r"expected a dict with the keys \['a', 'b'\], got a list"),
        ({"a": [0, 0], "b": ["x"]}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": "xy"}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": 3}, r'action\["b"\]: expected a sequence of 2'),
        ({"a": [0, 0], "b": ["x", "yyyy"]}, r'action\["b"\]: expected at most 3 characters'),
    ],
)
def test_structured_actions_that_do_not_fit(actions, text):
    space = sp.Dict({"a": sp.Discrete(2), "b": sp.Text(3)})
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 2) as vec:
        vec.reset()
        with pytest.raises(shoal.errors.ActionError, match=text):
            vec.step(actions)


def test_tuple_actions_that_do_not_fit():
    space = sp.Tuple((sp.Discrete(2), sp.Discrete(2)))
    with shoal.Serial(lambda: SampleEnv(sp.Discrete(2), space), 3) as vec:
        vec.reset()
        with pytest.raises(shoal.errors.ActionError, match="expected a tuple of 2 batches"):
            vec.step([(0, 0), (0, 0), (0, 0)])


# -- statistics ---------------------------------------------------------------------------------------------


def test_stats_count_transitions_and_not_autoresets():
    with shoal.Serial([partial(SentinelEnv, i, 2) for i in range(3)]) as vec:
        vec.async_reset(seed=0)
        transitions = -3  # the first batch is a reset
        for _ in range(20):
            batch = vec.recv()
            transitions += int((~batch.resets).sum())
            vec.send([0, 0, 0])
        batch = vec.recv()
        transitions += int((~batch.resets).sum()) + 3
        stats = vec.stats()
        assert stats["transitions"] == transitions < 60
        assert stats["vector_steps"] == 20
        assert stats["steps_per_second"] > 0


def test_episode_stats_are_those_of_gymnasiums_wrapper():
    ours = shoal.Serial([CARTPOLE] * 3, episode_stats=True)
    theirs = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.vector.SyncVectorEnv([CARTPOLE] * 3))
    ours.reset(seed=0)
    theirs.reset(seed=0)
    theirs.action_space.seed(0)
    seen = 0
    for _ in range(200):
        actions = theirs.action_space.sample()
        mine, reference = ours.step(actions)[-1], theirs.step(actions)[-1]
        assert mine.keys() == reference.keys()
        if "episode" in mine:
            seen += 1
            assert difference(mine["_episode"], reference["_episode"]) is None
            for key in "rl":
                assert difference(mine["episode"][key], reference["episode"][key]) is None
            assert (mine["episode"]["t"][mine["_episode"]] > 0).all()
    assert seen > 5
    ours.close()
    theirs.close()


class Watch:
    """A clock that stands still unless told."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_episode_stats_count_the_seconds_of_their_episode(monkeypatch, mode):
    watch = Watch()
    monkeypatch.setattr("shoal.vector.statistics.time", watch)

    def step(vec):
        watch.now += 1.0
        return vec.step([0])[-1]

    create = partial(gymnasium.make, "CartPole-v1", max_episode_steps=3)
    with shoal.Serial(create, autoreset_mode=mode, episode_stats=True) as vec:
        watch.now = 100.0
        vec.reset(seed=0)
        step(vec)
        saved = vec.snapshot()
        watch.now += 1000.0
        vec.restore(saved)  # what happened in between has not happened
        step(vec)
        assert step(vec)["episode"]["t"].tolist() == [3.0]
        if mode == "NextStep":
            step(vec)
        elif mode == "Disabled":
            watch.now += 50.0
            vec.reset()
        step(vec)
        step(vec)
        assert step(vec)["episode"]["t"].tolist() == [3.0]


def test_episode_stats_twice_is_an_error():
    def create():
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=2))

    with shoal.Serial(create, episode_stats=True) as vec:
        vec.reset()
        vec.step([0])
        with pytest.raises(ArgumentError, match=r"the envs already give infos\[.episode.\] themselves"):
            vec.step([0])


# -- snapshots ----------------------------------------------------------------------------------------------


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
    with shoal.Serial(Tracked, 2) as vec:
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


# -- hierarchy ----------------------------------------------------------------------------------------------


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
