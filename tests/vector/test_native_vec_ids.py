"""shoal.Native: single envs, rendering, and envs named by a file or an id of Gymnasium."""

import textwrap

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import _core

if _core.NAME != "native":
    pytest.skip("needs the compiled core", allow_module_level=True)

from shoal.native import compiling
from shoal.testing.native_envs import PairNative, SentinelNative


def test_gymnasium_makes_single_envs():
    env = gymnasium.make("shoal/CartPole-v1", render_mode="rgb_array")
    obs, _ = env.reset(seed=3)
    with shoal.make("shoal/CartPole-v1", 1) as vec:
        expected, _ = vec.reset(seed=3)
        assert np.array_equal(obs, expected[0])
        for action in (1, 0, 1):
            obs, reward, terminated, truncated, info = env.step(action)
            expected, *_ = vec.step(np.array([action]))
            assert np.array_equal(obs, expected[0])
            assert (reward, terminated, truncated, info) == (1.0, False, False, {})
    assert env.render().dtype == np.uint8
    assert env.unwrapped.theta == env.unwrapped._vec.get_attr("theta")[0]
    env.close()
    env = PairNative()
    assert (isinstance(env, shoal.Env), env.num_agents) == (True, 2)
    env.close()


def test_single_envs_do_not_check_their_class_again(monkeypatch):
    SentinelNative().close()
    monkeypatch.setattr(compiling, "check_syntax", lambda spec: pytest.fail("took most of the time"))
    SentinelNative(env_id=3).close()


def test_gymnasium_makes_vecs():
    with gymnasium.make_vec("shoal/CartPole-v1", num_envs=4, num_workers=1) as vec:
        assert isinstance(vec, shoal.Native)
        assert vec.spec.id == "shoal/CartPole-v1"
        wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(vec)
        wrapped.reset(seed=0)
        for _ in range(60):
            *_, infos = wrapped.step(vec.action_space.sample())
            if "episode" in infos:
                break
        assert infos["episode"]["l"].max() > 5


def test_frames():
    with shoal.make("shoal/CartPole-v1", 2, render_mode="rgb_array") as vec:
        vec.reset(seed=0)
        first, second = vec.render()
        assert first.shape == second.shape
        assert first.dtype == np.uint8
    with shoal.make("shoal/CartPole-v1", 2) as vec:
        vec.reset(seed=0)
        assert vec.render() == (None, None)


MINE = """
    import numpy as np
    import shoal
    from gymnasium.spaces import Box, Discrete

    class Mine(shoal.NativeEnv):
        observation_space = Box(0, 1, (1,), np.float32)
        action_space = Discrete(2)
        constants = {"size": 3}
        parameters = {"bonus": 0.0}
        max_episode_steps = lambda config: config.size

        @staticmethod
        def reset(obs):
            obs[0] = 0.5

        @staticmethod
        def step(action, config):
            return action + config.bonus, False
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """One file for all tests here, so that its kernel is compiled once."""
    path = tmp_path_factory.mktemp("envs") / "mine_in_a_file.py"
    path.write_text(textwrap.dedent(MINE))
    return path


@pytest.mark.parametrize("backend", ["auto", "serial", "multiprocessing"])
def test_in_a_file(mine, backend):
    with shoal.make(f"{mine}:Mine", 3, backend=backend) as vec:
        assert isinstance(vec, shoal.Native) == (backend == "auto")
        vec.reset(seed=0)
        assert vec.step(np.ones(3, np.int64))[1].tolist() == [1, 1, 1]


@pytest.fixture
def registered(mine, monkeypatch):
    """Gives the class an id of Gymnasium's; as users do, by the name of its module or itself."""
    monkeypatch.syspath_prepend(mine.parent)
    before = dict(gymnasium.registry)

    def register(name, **options):
        gymnasium.register(name, entry_point=f"{mine.stem}:Mine", **options)
        return name

    yield register
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def lengths(vec, count=2):
    """Of the first episodes."""
    vec.reset(seed=0)
    for step in range(1, 50):
        *_, truncations, _ = vec.step(np.zeros(count, np.int64))
        if truncations.all():
            return step
    return None


def test_an_id_that_gymnasium_was_told(registered):
    name = registered("Mine-v0", kwargs={"bonus": 2.0})
    with shoal.make(name, 2) as vec:
        assert isinstance(vec, shoal.Native)
        assert (vec.spec.id, lengths(vec)) == (name, 3)
        vec.reset(seed=0)
        assert vec.step([0, 1])[1].tolist() == [2, 3]
    with shoal.make([name, name], env_kwargs={"bonus": np.array([5.0, 6.0]), "size": 4}) as vec:
        assert vec.get_attr("bonus") == (5, 6)
        assert lengths(vec) == 4
    with gymnasium.make(name) as env:
        env.reset(seed=0)
        assert env.step(1)[1] == 3.0
    with shoal.make(name, 2, backend="multiprocessing") as vec:
        vec.reset(seed=0)
        assert vec.step([0, 1])[1].tolist() == [2, 3]


@pytest.mark.parametrize(("limit", "own", "expected"), [(2, 3, 2), (7, 3, 3), (7, 9, 7)])
def test_a_limit_that_gymnasium_was_told(registered, limit, own, expected):
    name = registered("Mine-v0", kwargs={"size": own}, max_episode_steps=limit)
    found = []
    for backend in ("auto", "serial"):  # which has Gymnasium's TimeLimit
        with shoal.make(name, 2, backend=backend) as vec:
            assert isinstance(vec, shoal.Native) == (backend == "auto")
            found.append(lengths(vec))
    assert found == [expected, expected]


def test_ids_that_only_gymnasium_can_make(registered, mine):
    import importlib

    wrapper = gymnasium.wrappers.TransformReward.wrapper_spec(func=abs)
    name = registered("Mine-v0", additional_wrappers=(wrapper,))
    with shoal.make(name, 2, backend="auto", num_workers=1) as vec:
        assert not isinstance(vec, shoal.Native)
    module = importlib.import_module(gymnasium.spec(name).entry_point.partition(":")[0])
    gymnasium.register("Itself-v0", entry_point=module.Mine)
    with shoal.make("Itself-v0", 2) as vec:
        assert isinstance(vec, shoal.Native)
    (mine.parent / "broken_at_birth.py").write_text(textwrap.dedent(MINE).replace("obs[0]", "obs"))
    gymnasium.register("Broken-v0", entry_point="broken_at_birth:Mine")
    with pytest.raises(shoal.errors.NativeError, match="the name obs to a new value"):
        shoal.make("Broken-v0", 2)
    gymnasium.register("Lost-v0", entry_point="nowhere_at_all:Mine")
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        shoal.make("Lost-v0")
