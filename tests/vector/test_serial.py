import gc
from dataclasses import dataclass
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
import torch

import shoal
from shoal import AutoresetMode
from shoal.errors import ArgumentError, ResetNeeded
from shoal.testing import CrashEnv, SampleEnv, SentinelEnv, SentinelRows
from shoal.testing.contract import difference

pytestmark = [pytest.mark.core, pytest.mark.twins]

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


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_error_names_the_verb_also_in_an_autoreset(mode):
    class BadReset(SentinelEnv):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return (obs, info) if self.episode == 0 else (obs[:2], info)

    with shoal.Serial(partial(BadReset, 0, 1), autoreset_mode=mode) as vec:
        vec.reset(seed=0)
        if mode == "NextStep":
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


def test_final_obs_is_the_value_that_the_env_gave():
    """As in Gymnasium: not what its row makes of it, such as an np.int64 for an int."""

    class Counts(gymnasium.Env):
        observation_space = sp.Dict({"n": sp.Discrete(5), "x": sp.Box(0, 9, (2,), np.float32)})
        action_space = sp.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"n": 0, "x": np.zeros(2, np.float32)}, {}

        def step(self, action):
            return {"n": 2, "x": [1, 2]}, 0.0, True, False, {}

    with shoal.Serial(Counts, autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        (last,) = vec.step([0])[-1]["final_obs"]
        assert type(last["n"]) is int
        assert last["x"] == [1, 2]


def test_final_obs_is_flat_when_the_vec_is():
    space = sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(3)})
    create = partial(SampleEnv, space, sp.Discrete(2), length=1)
    with shoal.Serial(create, flat=True, autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        infos = vec.step([0])[-1]
        assert infos["final_obs"][0] in vec.single_observation_space


def test_envs_may_share_an_info():
    shared = {"id": 0, "world": np.zeros(2), "deep": {"id": np.zeros(1)}}

    class Sharer(SampleEnv):
        def __init__(self, number):
            super().__init__(sp.Discrete(2), sp.Discrete(2))
            self.number = number

        def step(self, action):
            obs, reward, _, _, _ = super().step(action)
            shared["id"] = self.number
            shared["world"][:] = shared["deep"]["id"][:] = self.number
            return obs, reward, False, False, shared

    with shoal.Serial([partial(Sharer, number) for number in (1, 2, 3)]) as vec:
        vec.reset(seed=0)
        infos = vec.step([0, 0, 0])[-1]
        assert infos["id"].tolist() == [1, 2, 3]
        assert infos["world"].tolist() == [[1, 1], [2, 2], [3, 3]]
        assert infos["deep"]["id"].tolist() == [[1], [2], [3]]


def test_an_exception_that_refuses_notes_comes_out_all_the_same():
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    class Raises(SampleEnv):
        def step(self, action):
            raise Frozen(7)

    with shoal.Serial(partial(Raises, sp.Discrete(2), sp.Discrete(2))) as vec:
        vec.reset(seed=0)
        with pytest.raises(Frozen, match="7"):
            vec.step([0])


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ((0, 1.0, np.zeros(2), False, {}), r"terminated: expected a bool, got an array of shape \(2,\)"),
        ((0, 1.0, False, np.zeros(2), {}), r"truncated: expected a bool, got an array of shape \(2,\)"),
        ((0, 1.0, True, False, [1]), r"info: expected a dict, got a list"),
        ((0, 1.0, False, False, np.zeros(2)), r"info: expected a dict, got an array of shape \(2,\)"),
    ],
    ids=["terminated", "truncated", "info at the end", "info"],
)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_flags_and_infos_that_are_none_are_refused(result, text, mode):
    class Returns(SampleEnv):
        def step(self, action):
            return result

    with shoal.Serial(partial(Returns, sp.Discrete(2), sp.Discrete(2)), autoreset_mode=mode) as vec:
        vec.reset(seed=0)
        with pytest.raises(shoal.errors.ObservationTypeError, match=rf"{text}.*step\(\) of env 0"):
            vec.step([0])


@pytest.mark.parametrize("kind", [SentinelEnv, SentinelRows])
def test_attributes_of_envs_stay_where_cpython_finds_them_fast(kind):
    """CPython keeps attributes in a dict once `__dict__` is read: each step took 1.5 times as long."""
    with shoal.Serial(partial(kind, 7), 2) as vec:
        vec.reset(seed=0)
        vec.step(vec.action_space.sample())
        for env in vec.envs:
            assert not any(isinstance(part, dict) and "env_id" in part for part in gc.get_referents(env))
