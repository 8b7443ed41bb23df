"""Stable-Baselines3's learners and wrappers on a vec, side by side with its own vector envs."""

import sys
from copy import deepcopy
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import shoal
from shoal import AutoresetMode, _core
from shoal.compat.sb3 import ShoalVecEnv, as_vec_env
from shoal.errors import (
    ActionError,
    AlreadyPending,
    ArgumentError,
    ArgumentTypeError,
    Closed,
    EnvsElsewhere,
    MissingExtra,
    NothingPending,
    ResetNeeded,
    RestartWarning,
)
from shoal.testing import SentinelEnv
from shoal.testing.contract import require_equal

# Else workers would import this file, and torch with it, for each env in it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")
workers = pytest.param({"num_workers": 2}, id="multiprocessing", marks=needs_processes)
BACKENDS = [pytest.param({"backend": "serial"}, id="serial"), workers]
WITH_PARENT = pytest.param({"num_workers": 1, "parent_steps": True}, id="parent steps", marks=needs_processes)

backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small networks wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Walk(gymnasium.Env):
    """Random observations, rewards, ends and infos, as its seed says."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, number=0, observation_space=None, action_space=None, render_mode=None):
        self.number, self.render_mode = number, render_mode
        # Copied, because each has a random stream.
        self.observation_space = deepcopy(observation_space or Box(-10, 10, (3,), np.float32))
        self.action_space = deepcopy(action_space or Discrete(4))
        self.resets, self.calls = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.resets.append((seed, options or None))
        self.moment = 0
        info = {"luck": self.np_random.random(), "episode": len(self.resets)}
        return self.observation_space.sample(), info if self.np_random.random() < 0.8 else {}

    def step(self, action):
        assert action in self.action_space, action
        self.moment += 1
        terminated, truncated = (self.np_random.random(2) < 0.15).tolist()
        reward = self.np_random.random() + float(np.sum(np.ravel(list(leaves(action)))))
        said = {
            "moment": self.moment,
            "half": self.moment / 2,
            "small": np.float32(reward),
            "flag": bool(self.moment % 2),
            "text": f"{self.number}: {self.moment}",
            "nothing": None,
            "mixed": self.moment if self.moment % 2 else "even",
            "many": np.arange(self.moment),
            "list": [self.moment, {"deep": 1}],
            "nested": {"number": self.number, "empty": {}},
            "_hidden": self.moment,
            "TimeLimit.truncated": True,  # whatever it says: this is for the vector env to tell
        }
        info = {key: value for key, value in said.items() if self.np_random.random() < 0.5}
        return self.observation_space.sample(), reward, terminated, truncated, info

    def render(self):
        return np.full((2, 3, 3), self.number, np.uint8)

    def count(self, by=1, *, times=1):
        self.calls += by * times
        return self.number, self.calls

    def modules(self):
        return {"torch", "stable_baselines3"} & set(sys.modules)

    def fail(self):
        raise LookupError(f"nothing in {self.number}")


def leaves(action):
    if isinstance(action, dict):
        action = tuple(action.values())
    for part in action if isinstance(action, tuple) else (action,):
        yield from np.ravel(part)


def creators(count, *args, **kwargs):
    return [partial(Walk, number, *args, **kwargs) for number in range(count)]


# -- beside DummyVecEnv ------------------------------------------------------------------------------------

IMAGE = Box(0, 255, (9, 8, 3), np.uint8)
SPACES = {
    "discrete": (Discrete(5), Discrete(3)),
    "discrete from 2": (Box(-1, 1, (2, 2), np.float64), Discrete(3, start=2)),
    "continuous": (Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)),
    "multi-binary": (MultiBinary(4), MultiBinary(3)),
    "multi-discrete": (MultiDiscrete([3, 2]), MultiDiscrete([2, 5])),
    "images": (IMAGE, Discrete(2)),
    "dicts": (Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3), "image": IMAGE}), Discrete(2)),
    "tuples": (Tuple((Discrete(2), Box(-1, 1, (2,)))), Discrete(2)),
    "structured actions": (Discrete(2), Dict({"a": Discrete(2), "b": Tuple((Box(-1, 1, (2,)),))})),
}


def side_by_side(ours, theirs, steps=60):
    """Play both with the same actions, and compare all that a learner can see."""
    assert (ours.num_envs, ours.render_mode) == (theirs.num_envs, theirs.render_mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.seed(3) == theirs.seed(3)
    ours.action_space.seed(3)
    require_equal(ours.reset(), theirs.reset(), "the same first observations")
    require_equal(list(ours.reset_infos), theirs.reset_infos, "the same infos of resets")
    ends = 0
    for step in range(steps):
        actions = [ours.action_space.sample() for _ in range(ours.num_envs)]
        if not isinstance(actions[0], dict):
            actions = np.array(actions)
        mine, others = ours.step(actions), theirs.step(actions)
        for name, one, other in zip(("obs", "rewards", "dones", "infos"), mine, others, strict=True):
            require_equal(one, other, f"the same {name} in step {step}")
        for one, other in zip(mine[3], others[3], strict=True):
            assert {key: type(value) for key, value in one.items()} == {
                key: type(value) for key, value in other.items()
            }
        require_equal(list(ours.reset_infos), theirs.reset_infos, "the same infos of resets")
        ends += mine[2].sum()
    assert ends > steps * ours.num_envs // 10
    require_equal(ours.reset(), theirs.reset(), "the same observations of a reset without a seed")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("spaces", SPACES.values(), ids=SPACES)
@backends
def test_the_same_as_dummy_vec_env(backend, spaces):
    create = creators(4, *spaces)
    side_by_side(ShoalVecEnv(create, **backend), DummyVecEnv(create))


@pytest.mark.parametrize("backend", [*BACKENDS, WITH_PARENT])
def test_a_vec_that_is_there_already(backend):
    create = creators(3)
    vec = shoal.make(create, autoreset_mode=AutoresetMode.SAME_STEP, **backend)
    side_by_side(as_vec_env(vec), DummyVecEnv(create))
    assert vec.closed


WRAPPERS = {
    "VecNormalize": (None, VecNormalize),
    "VecMonitor": (None, VecMonitor),
    "VecFrameStack": (IMAGE, partial(VecFrameStack, n_stack=3)),
    "VecTransposeImage": (IMAGE, VecTransposeImage),
    "VecCheckNan": (None, partial(VecCheckNan, raise_exception=True)),
    "VecExtractDictObs": (SPACES["dicts"][0], partial(VecExtractDictObs, key="a")),
    "several": (IMAGE, lambda env: VecTransposeImage(VecFrameStack(VecMonitor(env), 2))),
}


@pytest.mark.parametrize(("space", "wrapper"), WRAPPERS.values(), ids=WRAPPERS)
@backends
def test_wrappers_of_sb3(backend, space, wrapper, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)  # VecMonitor tells it
    create = creators(3, space)
    side_by_side(wrapper(ShoalVecEnv(create, **backend)), wrapper(DummyVecEnv(create)))


@backends
def test_normalized_observations_are_saved_without_the_envs(backend, tmp_path):
    env = VecNormalize(ShoalVecEnv(creators(2), **backend))
    env.seed(0)
    env.reset()
    env.step([0, 1])
    env.save(str(tmp_path / "normalized"))
    again = VecNormalize.load(str(tmp_path / "normalized"), env.venv)
    np.testing.assert_array_equal(again.obs_rms.mean, env.obs_rms.mean)
    env.close()


@backends
def test_floats_for_whole_numbers(backend):
    env = ShoalVecEnv(creators(2, None, MultiBinary(2)), **backend)
    env.seed(0)
    env.reset()
    env.step(np.array([[0.0, 1.0], [1.0, 1.0]], np.float32))  # as SB3's policies have them
    with pytest.raises(ActionError, match=r"float"):
        env.step(np.array([[0.0, 0.5], [1.0, 1.0]], np.float32))
    env.step(np.array([[0, 1], [1, 1]]))
    env.close()


@backends
@pytest.mark.parametrize("copy", [True, False])
def test_what_is_returned_stays(backend, copy):
    # Each of them has one buffer for all its observations.
    env = ShoalVecEnv([partial(SentinelEnv, number) for number in range(2)], copy=copy, **backend)
    env.seed(0)
    seen, last = [env.reset()], []
    for _ in range(10):
        obs, _, _, infos = env.step([1, 1])
        seen.append(obs)
        last += [info["terminal_observation"] for info in infos if "terminal_observation" in info]
    assert [obs[0, 2] for obs in seen[:2]] == [0, 1]
    assert last
    assert all(final[2] > 0 for final in last)
    assert all((obs[:, 0] == [0, 1]).all() for obs in seen)
    env.close()


# -- ends --------------------------------------------------------------------------------------------------


class Ending(gymnasium.Env):
    """Ends as its actions say: 1 terminated, 2 truncated, 3 both."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.moment = 0
        return np.zeros(1, np.float32), {"begun": True}

    def step(self, action):
        self.moment += 1
        return np.full(1, self.moment, np.float32), 1.5, bool(action & 1), bool(action & 2), {"said": action}


@backends
def test_ends(backend):
    env = ShoalVecEnv([Ending] * 4, **backend)
    assert env.reset_infos == [{}] * 4
    env.reset()
    assert env.reset_infos == [{"begun": True}] * 4
    env.reset_infos[:] = [{}] * 4
    obs, rewards, dones, infos = env.step([0, 1, 2, 3])
    assert obs.tolist() == [[1], [0], [0], [0]]
    assert (rewards.dtype, rewards.tolist()) == (np.float32, [1.5] * 4)
    assert (dones.dtype, dones.tolist()) == (np.bool_, [False, True, True, True])
    assert infos == [
        {"said": 0, "TimeLimit.truncated": False},
        {"said": 1, "TimeLimit.truncated": False, "terminal_observation": np.ones(1)},
        {"said": 2, "TimeLimit.truncated": True, "terminal_observation": np.ones(1)},
        {"said": 3, "TimeLimit.truncated": False, "terminal_observation": np.ones(1)},
    ]
    assert env.reset_infos == [{}, *[{"begun": True}] * 3]
    env.close()


@backends
def test_episode_statistics_instead_of_a_monitor(backend):
    env = ShoalVecEnv([Ending] * 2, episode_stats=True, **backend)
    env.reset()
    assert "episode" not in env.step([0, 0])[3][0]
    said, going = env.step([1, 0])[3]
    assert (said["episode"]["r"], said["episode"]["l"]) == (3.0, 2)
    assert {type(figure) for figure in said["episode"].values()} == {float, int}
    assert "episode" not in going
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(48)
    assert model.ep_info_buffer
    env.close()


# -- seeds and options -------------------------------------------------------------------------------------


@backends
def test_seeds_and_options_are_for_the_next_reset(backend):
    env = ShoalVecEnv(creators(3), **backend)
    env.seed(5)
    env.set_options({"level": 1})
    assert env.get_attr("resets") == [[]] * 3
    env.reset()
    env.reset()
    assert env.get_attr("resets") == [[(seed, {"level": 1}), (None, None)] for seed in (5, 6, 7)]
    env.close()


@backends
def test_options_of_each_env(backend):
    each = [{"level": 1}, {}, {"level": 1}, {"other": np.arange(2)}]
    env, other = ShoalVecEnv(creators(4), **backend), DummyVecEnv(creators(4))
    for vec_env in (env, other):
        vec_env.seed(5)
        vec_env.reset()
    for seed in (None, 8):
        for vec_env in (env, other):
            if seed is not None:
                vec_env.seed(seed)
            vec_env.set_options(each)
        require_equal(env.reset(), other.reset(), "the same as by DummyVecEnv")
        require_equal(env.reset_infos, other.reset_infos, "the same infos")
        require_equal(env.get_attr("resets"), other.get_attr("resets"), "one reset of each env")
    assert env.get_attr("resets", indices=0)[0][-1] == (8, {"level": 1})
    env.close()


@backends
def test_options_of_each_env_for_the_first_reset(backend):
    each = [{"level": 1}, {}, {"level": 2}]
    env, other = ShoalVecEnv(creators(3), **backend), DummyVecEnv(creators(3))
    for vec_env in (env, other):
        vec_env.seed(5)
        vec_env.set_options(each)
    require_equal(env.reset(), other.reset(), "the same as by DummyVecEnv")
    # A vec begins as a whole, so some envs have been reset before, but never with the options of another.
    assert env.get_attr("resets") == [
        [(5, None), (5, {"level": 1})],
        [(6, None)],
        [(7, None), (7, {"level": 2})],
    ]
    env.set_options([{}, {}])
    with pytest.raises(ArgumentError, match="options: expected a dict, or one for each of 3 envs, got 2"):
        env.reset()
    env.close()


# -- the verbs ---------------------------------------------------------------------------------------------


@backends
def test_halves_of_a_step(backend):
    env = ShoalVecEnv([Ending] * 2, **backend)
    with pytest.raises(NothingPending, match=r"call async_reset\(\) or send\(\) before recv\(\)"):
        env.step_wait()
    env.reset()
    env.step_async([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way: call recv\(\) before"):
        env.step_async([0, 0])
    with pytest.raises(AlreadyPending, match=r"a step is under way: call recv\(\) before call"):
        env.get_attr("moment")
    assert env.step_wait()[0].tolist() == [[1], [1]]
    env.step_async([0, 0])
    env.set_options([{"level": 1}, {}])
    assert env.reset().tolist() == [[0], [0]]  # what was under way is dropped
    assert env.step([0, 0])[0].tolist() == [[1], [1]]
    with pytest.raises(ActionError, match="expected integers from 0 to 3, got 4"):
        env.step([0, 4])
    assert env.step([0, 0])[0].tolist() == [[2], [2]]
    env.close()


@needs_processes
def test_waiting_is_time_in_steps():
    env = ShoalVecEnv([Ending] * 2, num_workers=2)
    env.reset()
    before = env._vec.stats()
    for _ in range(5):
        env.step([0, 1])
    after = env._vec.stats()
    spent = {name: after[name] - before[name] for name in ("seconds_in_step", "seconds_waiting")}
    assert spent["seconds_in_step"] >= spent["seconds_waiting"] > 0
    assert (after["vector_steps"], after["transitions"], after["episodes"]) == (5, 10, 5)
    env.close()


@backends
def test_close_in_any_state(backend):
    env = ShoalVecEnv(creators(2), **backend)
    env.reset()
    env.step_async([0, 0])
    env.close()
    env.close()
    with pytest.raises(Closed, match="the vec has been closed: make a new one"):
        env.reset()


class Brittle(Ending):
    def step(self, action):
        if action == 3:
            raise OSError("broken")
        return super().step(action)


@backends
def test_an_env_that_raises(backend):
    env = ShoalVecEnv([Brittle] * 2, **backend)
    env.reset()
    with pytest.raises(OSError, match="broken"):
        env.step([0, 3])
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step([0, 0])
    env.set_options([{"level": 1}, {}])
    assert env.reset().tolist() == [[0], [0]]
    assert env.step([0, 0])[0].tolist() == [[1], [1]]
    env.close()


@needs_processes
def test_an_env_whose_worker_is_replaced():
    env = ShoalVecEnv([Brittle] * 2, num_workers=2, on_error="restart")
    env.reset()
    env.step([0, 0])
    assert env.get_attr("moment", indices=1) == [1]
    with pytest.warns(RestartWarning, match="broken"):
        obs, _, dones, infos = env.step([0, 3])
    assert (obs.tolist(), dones.tolist()) == ([[2], [0]], [False, True])
    assert infos[1] == {"restarted": True, "TimeLimit.truncated": True, "terminal_observation": np.ones(1)}
    assert env.get_attr("moment", indices=[1, 0]) == [0, 2]
    env.close()


# -- access to the envs ------------------------------------------------------------------------------------


@backends
def test_methods_of_some_envs(backend):
    env = ShoalVecEnv([partial(wrapped, number) for number in range(4)], **backend)
    assert env.env_method("count") == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert env.env_method("count", 2, indices=[3, 1], times=2) == [(3, 5), (1, 5)]
    assert env.env_method("count", indices=-1) == [(3, 6)]
    assert env.env_method("count", indices=iter((0, 2))) == [(0, 2), (2, 2)]
    assert env.env_method("count", indices=[]) == []
    assert env.get_attr("calls") == [2, 5, 2, 6]
    assert env.get_attr("calls", indices=np.array([1, 1, -2])) == [5, 5, 2]
    for where in (None, [2]):
        with pytest.raises(LookupError, match="nothing in"):
            env.env_method("fail", indices=where)
    with pytest.raises(IndexError, match="out of range"):
        env.env_method("count", indices=[4])
    env.close()


def wrapped(number):
    return Tick(gymnasium.wrappers.TimeLimit(Walk(number), 100))


class Tick(gymnasium.Wrapper):
    ticks = 7


class Tock(Tick):
    pass


@backends
def test_attributes_of_some_envs(backend):
    env = ShoalVecEnv([partial(wrapped, number) for number in range(3)], **backend)
    assert env.get_attr("number", indices=[2, 0]) == [2, 0]
    assert env.get_attr("ticks") == [7, 7, 7]
    env.set_attr("number", 9, indices=[0, -1])
    assert env.get_attr("number") == [9, 1, 9]
    assert env.env_method("count") == [(9, 1), (1, 1), (9, 1)]  # set where it is, not at the wrapper
    env.set_attr("fresh", [1, 2])
    assert env.get_attr("fresh") == [[1, 2]] * 3
    assert env.has_attr("fresh")
    assert env.has_attr("ticks")
    assert env.has_attr("number")
    assert not env.has_attr("tocks")
    env.set_attr("rare", 1, indices=1)
    assert not env.has_attr("rare")
    assert env.get_attr("rare", indices=1) == [1]
    for where in (None, 0):
        with pytest.raises(AttributeError, match="rare"):
            env.get_attr("rare", indices=where)
    env.close()


@backends
def test_wrappers_of_each_env(backend):
    def plain():
        return Walk()

    env = ShoalVecEnv([plain, lambda: Tock(plain()), lambda: Tick(Tock(plain()))], **backend)
    assert env.env_is_wrapped(Tick) == [False, True, True]
    assert env.env_is_wrapped(Tock, indices=[2, 0]) == [True, False]
    assert env.env_is_wrapped(Monitor, indices=1) == [False]
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, True, True]
    env.close()


def test_the_envs_themselves():
    env = ShoalVecEnv([lambda each=each: Monitor(each()) for each in creators(3)], backend="serial")
    assert [type(each) for each in env.envs] == [Monitor] * 3
    assert [each.unwrapped.number for each in VecNormalize(VecCheckNan(env)).envs] == [0, 1, 2]
    env.envs[1].unwrapped.calls = 5
    assert env.get_attr("calls") == [0, 5, 0]
    env.close()


def test_the_envs_themselves_of_agents():
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", backend="serial")
    env = as_vec_env(vec)
    assert len(env.envs) == env.num_envs == 4
    assert env.envs[0] is env.envs[1] is not env.envs[2]
    env.close()


@pytest.mark.parametrize("backend", [workers, WITH_PARENT])
def test_envs_of_workers_are_not_here(backend):
    env = ShoalVecEnv(creators(2), **backend)
    for each in (env, VecNormalize(env)):
        assert not hasattr(each, "envs")
        text = r"envs of a Multiprocessing run in worker processes.* get_attr\(\), .*backend='serial'"
        with pytest.raises(EnvsElsewhere, match=text):
            each.envs  # noqa: B018
    env.close()


@needs_processes
def test_workers_need_not_import_sb3():
    env = ShoalVecEnv(creators(2), num_workers=2)
    assert env.env_is_wrapped(Monitor) == [False, False]
    env.env_method("count", indices=0)
    env.set_attr("calls", 3, indices=1)
    assert env.env_method("modules") == [set(), set()]
    env.close()


def test_nothing_is_left_at_the_envs(monkeypatch):
    monkeypatch.delattr(gymnasium.Env, "_shoal_let", raising=False)  # by other tests
    env = ShoalVecEnv(creators(2), backend="serial")
    env.env_method("count", indices=0)
    left = [name for walk in env._vec.envs for name in vars(walk) if "shoal" in name]
    assert not left
    env.close()


# -- pictures ----------------------------------------------------------------------------------------------


@backends
def test_pictures_are_tiled(backend):
    env = ShoalVecEnv(creators(3, render_mode="rgb_array"), **backend)
    other = DummyVecEnv(creators(3, render_mode="rgb_array"))
    assert [image.tolist() for image in env.get_images()] == [image.tolist() for image in other.get_images()]
    assert env.render().shape == (4, 6, 3)
    np.testing.assert_array_equal(env.render("rgb_array"), other.render())
    with pytest.warns(UserWarning, match="has to be the same as the environment render mode"):
        assert env.render("ansi") is None
    env.close()


@backends
def test_no_pictures(backend):
    env = ShoalVecEnv(creators(2), **backend)
    assert env.render_mode is None
    with pytest.warns(UserWarning, match="render_mode is None: 'rgb_array' would give images"):
        assert env.get_images() == [None, None]
    with pytest.warns(UserWarning, match="no `render_mode` was passed"):
        assert env.render() is None
    env.close()


# -- learners ----------------------------------------------------------------------------------------------


class Returns(BaseCallback):
    """Notes the return of every episode."""

    def __init__(self):
        super().__init__()
        self.found = []

    def _on_step(self):
        self.found += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


@backends
def test_ppo_is_the_same_as_on_dummy_vec_env(backend):
    found, create = [], [partial(gymnasium.make, "CartPole-v1")] * 4
    for env in (VecMonitor(ShoalVecEnv(create, **backend)), VecMonitor(DummyVecEnv(create))):
        model, returns = PPO("MlpPolicy", env, n_steps=64, n_epochs=2, seed=1, device="cpu"), Returns()
        model.learn(1024, callback=returns)
        found.append((returns.found, evaluate_policy(model, env, 4, return_episode_rewards=True)))
        env.close()
    assert len(found[0][0]) > 20
    assert found[0] == found[1]


ROLLOUT = {"seed": 0, "device": "cpu"}
REPLAY = {**ROLLOUT, "learning_starts": 20, "batch_size": 8, "buffer_size": 200}
LEARNERS = {
    "PPO": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, n_epochs=1, **ROLLOUT), Discrete(3)),
    "PPO, continuous": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), Box(-1, 1, (2,))),
    "PPO, bits": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), MultiBinary(3)),
    "PPO, choices": (partial(PPO, "MlpPolicy", n_steps=16, batch_size=16, **ROLLOUT), MultiDiscrete([2, 3])),
    "DQN": (partial(DQN, "MlpPolicy", **REPLAY), Discrete(3)),
    "SAC": (partial(SAC, "MlpPolicy", **REPLAY), Box(-1, 1, (2,))),
}


@pytest.mark.parametrize(("learner", "actions"), LEARNERS.values(), ids=LEARNERS)
@backends
def test_learners(backend, learner, actions):
    parameters, create = [], creators(2, None, actions)
    for vec_env in (ShoalVecEnv(create, **backend), DummyVecEnv(create)):
        model = learner(env=VecMonitor(vec_env))
        model.learn(64)
        assert model.num_timesteps >= 64
        assert len(model.ep_info_buffer) > 2
        parameters.append({name: values.numpy() for name, values in model.policy.state_dict().items()})
        vec_env.close()
    require_equal(*parameters, "the same policy as on DummyVecEnv")


class Goal(gymnasium.Env):
    """Ends where it should be, or after 5 steps."""

    PLACE = Box(0, 9, (1,), np.float32)
    observation_space = Dict({"observation": PLACE, "achieved_goal": PLACE, "desired_goal": PLACE})
    action_space = Discrete(2)
    asked = 0

    def _observe(self):
        place = np.full(1, self.place, np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": np.full(1, 3, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.place = self.moment = 0
        return self._observe(), {}

    def step(self, action):
        self.place, self.moment = self.place + int(action), self.moment + 1
        return self._observe(), -1.0, self.place == 3, self.moment == 5, {"place": self.place}

    def compute_reward(self, achieved, desired, infos):
        self.asked += 1
        return np.where(achieved == desired, 0.0, -1.0).ravel()


@backends
def test_hindsight_asks_one_env_for_rewards(backend):
    env = ShoalVecEnv([Goal] * 2, **backend)
    model = DQN("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, **REPLAY)
    model.learn(60)
    first, second = env.get_attr("asked")
    assert first > 0
    assert second == 0
    env.close()


@backends
def test_dicts_for_a_learner(backend):
    env = ShoalVecEnv(creators(2, Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)})), **backend)
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, **ROLLOUT)
    model.learn(16)
    obs = env.reset()
    actions, _ = model.predict(obs)
    assert actions.shape == (2,)
    env.close()


@backends
def test_make_vec_env(backend, tmp_path):
    env = make_vec_env(
        "CartPole-v1",
        n_envs=2,
        seed=0,
        monitor_dir=str(tmp_path),
        vec_env_cls=ShoalVecEnv,
        vec_env_kwargs=backend,
    )
    assert env.env_is_wrapped(Monitor) == [True, True]
    assert env.render_mode == "rgb_array"
    env.reset()
    lengths = [[], []]
    while not all(lengths):
        for own, info in zip(lengths, env.step(np.array([1, 1]))[3], strict=True):
            own += [info["episode"]["l"]] if "episode" in info else []
    assert env.env_method("get_episode_lengths") == lengths
    env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


class Short(Walk):
    """Its reset knows no options."""

    def reset(self, seed=None):
        return super().reset(seed=seed)


@backends
def test_make_vec_env_of_envs_whose_reset_takes_no_options(backend):
    ours = make_vec_env(Short, 2, seed=0, vec_env_cls=ShoalVecEnv, vec_env_kwargs=backend)
    theirs = make_vec_env(Short, 2, seed=0)
    require_equal(ours.reset(), theirs.reset(), "the same first observations")
    for step in range(20):
        for mine, other in zip(ours.step([0, 1])[:3], theirs.step([0, 1])[:3], strict=True):
            require_equal(mine, other, f"the same in step {step}")
    require_equal(ours.reset(), theirs.reset(), "the same observations of a reset without a seed")
    ours.close()


# -- several agents ----------------------------------------------------------------------------------------


class Pair(shoal.Env):
    """Two agents: the first one dies after as many steps as its seed says, the second one after 4."""

    observation_space = Box(-1, 9, (2,), np.float32)
    action_space = Discrete(3)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.first = self.first if seed is None else 1 + seed % 3
        self.moment = 0
        self.observations[:] = [[0, 0], [1, 0]]
        return [{"begun": 0}, {"begun": 1}]

    def step(self, actions):
        self.moment += 1
        self.observations[:, 1] = self.moment
        self.rewards[:] = actions
        self.terminations[0] = self.moment == self.first
        self.truncations[1] = self.moment == 4
        return [{"said": 10}, {"said": 11}]


@backends
def test_agents_as_envs(backend):
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", episode_stats=True, **backend)
    env = as_vec_env(vec)
    assert env.num_envs == 4
    env.seed(0)  # 0 and 2 are for the envs: the first agents die after 1 and 3 steps
    assert env.reset().tolist() == [[0, 0], [1, 0]] * 2
    assert env.reset_infos == [{"begun": 0}, {"begun": 1}] * 2
    ends = [[], [], [], []]
    for step in range(1, 9):
        env.reset_infos[:] = [{}] * 4
        obs, _, dones, infos = env.step([1, 2, 1, 2])
        for row in range(4):
            assert ("terminal_observation" in infos[row]) == ("episode" in infos[row]) == dones[row]
            if dones[row]:
                ends[row].append((step, infos[row]["TimeLimit.truncated"], infos[row]["episode"]["l"]))
                assert infos[row]["said"] == 10 + row % 2
                assert infos[row]["terminal_observation"][1] == (step - 1) % 4 + 1
        if step % 4 == 0:
            assert obs.tolist() == [[0, 0], [1, 0]] * 2
            assert env.reset_infos == [{"begun": 0}, {"begun": 1}] * 2
        else:
            assert env.reset_infos == [{}] * 4
    assert ends == [
        [(1, False, 1), (5, False, 1)],
        [(4, True, 4), (8, True, 4)],
        [(3, False, 3), (7, False, 3)],
        [(4, True, 4), (8, True, 4)],
    ]
    assert env.get_attr("moment") == [0] * 4
    env.set_attr("first", 2)
    assert env.get_attr("first") == [2] * 4
    assert (env.has_attr("first"), env.has_attr("second")) == (True, False)
    assert env.env_method("close") == [None] * 4
    env.close()


def test_envs_by_name():
    env = ShoalVecEnv("CartPole-v1", num_envs=3, backend="serial")
    assert env.reset().shape == (3, 4)
    env.close()


class Plain:
    """An env that is nobody's child."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)
    level = 3

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


@backends
def test_envs_that_are_not_gymnasiums(backend):
    env = ShoalVecEnv([Plain] * 2, **backend)
    assert (env.render_mode, env.get_attr("render_mode", indices=0)) == (None, [None])
    env.set_attr("level", [4, 5])
    assert env.get_attr("level", indices=[1]) == [[4, 5]]
    assert (env.has_attr("level"), env.has_attr("floor")) == (True, False)
    assert env.env_method("__sizeof__") == [Plain().__sizeof__()] * 2
    assert env.env_is_wrapped(Monitor, indices=[0]) == [False]
    for ask in (partial(env.env_method, "reset"), partial(env.set_attr, "level", 1)):
        with pytest.raises(ArgumentError, match=r"indices: expected None, got \[1\]: only Gymnasium's envs"):
            ask(indices=[1])
    env.close()


@needs_processes
@pytest.mark.slow  # where they have not been compiled yet
def test_compiled_envs():
    pytest.importorskip("numba")
    vec = shoal.make("shoal/CartPole-v1", 3, autoreset_mode="SAME_STEP", episode_stats=True)
    env = as_vec_env(vec)
    env.seed(0)
    obs = env.reset()
    np.testing.assert_allclose(env.get_attr("x", indices=[2, 0]), obs[[2, 0], 0], rtol=1e-6)
    assert not env.has_attr("y")
    with pytest.raises(EnvsElsewhere, match="envs of a Native are compiled, so there are no objects here"):
        env.envs  # noqa: B018
    done = False
    while not done:
        _, _, dones, infos = env.step(np.ones(3, np.int64))
        done = dones.any()
    for ended, info in zip(dones, infos, strict=True):
        assert ended == ("terminal_observation" in info) == ("episode" in info)
    env.close()


@backends
def test_options_for_agents(backend):
    class Optional(Pair):
        def reset(self, seed=None, options=None):
            self.options = options
            return super().reset(seed, options)

    vec = shoal.make(Optional, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", **backend)
    env = as_vec_env(vec)
    env.seed(0)
    env.set_options([{"level": 1}, {}, {}, {"level": 2}])  # the first agent's counts
    env.reset()
    assert env.get_attr("options") == [{"level": 1}, {"level": 1}, None, None]
    env.close()


def test_a_learner_for_agents():
    vec = shoal.make(Pair, 2, rows_as_envs=True, autoreset_mode="SAME_STEP", backend="serial")
    env = VecMonitor(as_vec_env(vec))
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, **ROLLOUT).learn(64)
    env.close()


# -- what cannot work --------------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("wrapper", [lambda env: env, Tick], ids=["bare", "wrapped"])
def test_the_same_env_twice_in_a_process(backend, wrapper):
    one = Walk()
    with pytest.raises(ArgumentError, match="expected a new env from every call, got the same one twice"):
        ShoalVecEnv([lambda: wrapper(one)] * 4, **backend)


@needs_processes
def test_the_same_env_is_copied_to_each_worker():
    one = Walk()
    env = ShoalVecEnv([lambda: one] * 2, num_workers=2)
    env.set_attr("number", 7, indices=1)
    assert env.get_attr("number") == [0, 7]
    env.close()
    assert one.number == 0


def test_vecs_that_do_not_fit():
    create = partial(gymnasium.make, "CartPole-v1")
    theirs = gymnasium.vector.SyncVectorEnv([create])
    with pytest.raises(ArgumentTypeError, match=r"expected a vec of Shoal's.* got SyncVectorEnv"):
        as_vec_env(theirs)
    theirs.close()
    for mode in ("NEXT_STEP", "DISABLED"):
        with shoal.Serial(create, 2, autoreset_mode=mode) as vec:
            with pytest.raises(ArgumentError, match=f"reset in the step that ends them, got {mode}"):
                as_vec_env(vec)
            assert not vec.closed  # it is still the caller's
        with pytest.raises(ArgumentError, match=f"reset in the step that ends them, got {mode}"):
            ShoalVecEnv([create], autoreset_mode=mode)
    with (
        shoal.Serial(Pair, 2, autoreset_mode="SAME_STEP") as vec,
        pytest.raises(ArgumentError, match=r"the envs have 2. Make the vec with rows_as_envs=True"),
    ):
        as_vec_env(vec)
    with pytest.raises(ArgumentError, match="num_workers: Serial runs all envs in this process"):
        ShoalVecEnv([create], backend="serial", num_workers=2)
    with pytest.raises(ArgumentTypeError, match="one Walk that is made already"):
        ShoalVecEnv([Walk()])
    with pytest.raises(TypeError, match="no_such_option"):
        ShoalVecEnv([create], no_such_option=1)


@needs_processes
@pytest.mark.parametrize("options", [{"batch_size": 2}, {"mode": "async"}])
def test_asynchronous_vecs_do_not_fit(options):
    with pytest.raises(ArgumentError, match="expected a synchronous one, got one that is asynchronous"):
        ShoalVecEnv(creators(4), num_workers=2, **options)


def test_without_sb3(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, "shoal.compat.sb3")
    with pytest.raises(MissingExtra, match=r'needs Stable-Baselines3 .*pip install "shoal\[sb3\]"'):
        import shoal.compat.sb3  # noqa: F401
