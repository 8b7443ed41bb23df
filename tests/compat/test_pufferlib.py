"""Code written for PufferLib runs on Shoal: a user's guide as it stands, then each promise by itself."""

import importlib
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import shoal
from shoal import _core, registry
from shoal.compat import install_as_pufferlib
from shoal.compat import pufferlib as face
from shoal.errors import (
    ActionError,
    ArgumentError,
    ArgumentTypeError,
    CallError,
    MissingExtra,
    NothingPending,
    ObservationTypeError,
)
from shoal.testing import SentinelEnv

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    forget()  # what other tests have installed
    yield
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "pufferlib"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not face._NothingElse]


@pytest.fixture
def pufferlib():
    install_as_pufferlib()
    return importlib.import_module("pufferlib")


class MyEnvironment:
    """A walk in the style of old gym, which ends where its seed says."""

    observation_space = Box(-100, 100, (2,), np.float32)
    action_space = Discrete(3)
    random = np.random.default_rng(0)

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.place = np.zeros(2, np.float32)
        self.place[1] = self.random.integers(2, 6)
        return self.place.copy()

    def step(self, action):
        self.place[0] += 1
        return self.place.copy(), float(action), bool(self.place[0] >= self.place[1]), {"action": int(action)}


class Pair(shoal.Env):
    """Two agents who see who they are, and what they did; the second leaves a step before the end."""

    observation_space = MultiDiscrete([2, 9, 4])
    action_space = Discrete(9)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.count = 0
        self.observations[:] = [[0, 0, 0], [1, 0, 0]]

    def step(self, actions):
        self.count += 1
        self.observations[:, 1], self.observations[:, 2] = actions, self.count
        self.rewards[:] = actions
        self.terminations[1] = self.count == 2
        self.truncations[0] = self.count == 3
        return [{"count": self.count}, {}]


# -- the guide ---------------------------------------------------------------------------------------------

GUIDE = Path(__file__).with_name("vectorization_guide.txt").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Counts for a large machine, in this order, and what does as well here.
SMALLER = {
    "num_envs=8,": "num_envs=2,",
    "num_envs=256": "num_envs=8",
    "num_envs=128": "num_envs=2",
    "num_envs=32\n": "num_envs=4\n",
    "num_envs=16": "num_envs=4",
    "num_workers=8": "num_workers=2",
    "envs_per_worker=32": "envs_per_worker=4",
    "surplus_envs=32": "surplus_envs=4",
    "num_steps=10000": "num_steps=40",
    "range(1000)": "range(10)",
    "% 1000 ==": "% 10 ==",
}


def in_guide():
    """Its blocks, each with the heading it stands under."""
    for match in BLOCK.finditer(GUIDE):
        code = match.group(1)
        for large, small in SMALLER.items():
            code = code.replace(large, small)
        heading = re.findall(r"^#+ (.*)$", GUIDE[: match.start()], re.MULTILINE)[-1]
        line = GUIDE[: match.start()].count("\n") + 1
        yield heading, compile("\n" * line + code, "vectorization_guide.txt", "exec")


def try_basic(names):
    stepped(names["env"], (8, 2))
    assert (names["env"].num_workers, names["env"].envs_per_worker) == (2, 4)


def try_async(names):
    env = names["vec_env"]
    stepped(env, (8, 2))
    assert (env.num_envs, env.vec.num_envs, env.vec.batch_size) == (8, 12, 8)


def try_buffers(names):
    class Camera(names["OptimizedEnv"]):
        def __init__(self, buf=None):
            super().__init__(buf)
            self.action_space = Discrete(256)

        def _update_state(self, action):
            self.action = action

        def _render_to_buffer(self, buffer):
            buffer[:] = getattr(self, "action", 7)

    for backend in (names["Serial"], partial(names["Multiprocessing"], num_workers=2)):
        with backend(Camera, num_envs=2) as env:
            assert (env.reset()["obs"] == 7).all()
            obs, rewards, dones, infos = env.step([8, 9])
            assert obs["obs"].shape == (2, 84, 84, 3)
            assert obs["obs"].dtype == np.uint8
            assert obs["obs"][:, 0, 0, 0].tolist() == [8, 9]
            assert (rewards.tolist(), dones.tolist(), infos) == ([0.5, 0.5], [False, False], [{}, {}])
    with pytest.raises(ArgumentTypeError, match="got OptimizedEnv without action_space"):
        names["Serial"](names["OptimizedEnv"], num_envs=2)


def try_custom(names):
    with names["CustomVectorEnv"](MyEnvironment, num_envs=3) as env:
        assert env.reset().shape == (3, 2)
        obs, rewards, dones, infos = env.step([0, 1, 2])
        assert (obs.shape, rewards.tolist(), dones.dtype) == ((3, 2), [0, 1, 2], bool)
        assert infos == [{"action": 0}, {"action": 1}, {"action": 2}]


def try_hierarchy(names):
    stepped(names["outer_vec_env"], (8, 2))


def try_agents(names):
    env = names["env"]
    obs = env.reset()
    assert list(obs) == ["archer_0", "archer_1", "knight_0", "knight_1"]
    obs, rewards, dones, infos = env.step(env.action_space.sample())
    for agent, space in env.observation_space.items():
        assert obs[agent].shape == space.shape
        assert rewards[agent].shape == dones[agent].shape == (2,)
    assert len(infos) == env.num_envs == 2


def try_custom_agents(names):
    class Mine(names["MultiAgentVectorEnv"]):
        def __init__(self):
            super().__init__()
            self.envs = [MyEnvironment(), MyEnvironment()]
            for env in self.envs:
                env.reset()

        def _distribute_actions(self, actions):
            return actions["walker"]

        def _batch_results(self, results):
            return {"walker": np.stack([result[0] for result in results])}

    assert Mine().step({"walker": [0, 1]})["walker"].shape == (2, 2)


def try_profiling(names):
    with names["Serial"](MyEnvironment, num_envs=2) as env:
        assert names["profile_vectorization"](env) > 0
        names["analyze_bottlenecks"](env)


def try_monitoring(names):
    with names["MonitoredVectorEnv"](MyEnvironment, num_envs=4, num_workers=2) as env:
        for _ in range(10):
            stepped(env, (4, 2))
        assert env.step_count == len(env.step_times) == 10


def try_locks(names):
    class Game(names["PufferEnv"]):
        observation_space = action_space = Discrete(2)

        def reset(self):
            return 0

        def step(self, action):
            return action, 1.0, False, {}

    class Mine(names["ThreadSafeEnv"], Game):
        pass

    with names["Serial"](Mine, num_envs=2) as env:
        env.reset()
        assert env.step([0, 1])[0].tolist() == [0, 1]
    with pytest.raises(NotImplementedError, match=r"class Mine\(ThreadSafeEnv, Game\)"):
        names["ThreadSafeEnv"]().step(0)


def try_design(names):
    class Complete(names["EfficientEnv"]):
        observation_space, action_space = Box(0, 255, (84, 84, 3), np.uint8), Discrete(2)

        def reset(self):
            return self._obs

        def _update_state_inplace(self, action):
            self._state += action

        def _render_to_obs(self):
            self._obs[:] = self._state[0]

    with names["Serial"](Complete, num_envs=2) as env:
        env.reset()
        assert env.step([0, 1])[0][:, 0, 0, 0].tolist() == [0, 1]


def try_testing(names):
    for _ in range(12):
        for ours, theirs in zip(
            names["serial_env"].step([0, 1, 2, 0]), names["vec_env"].step([0, 1, 2, 0]), strict=True
        ):
            np.testing.assert_equal(ours, theirs)


TRIALS = {
    "Basic Vectorization": try_basic,
    "Manual Vectorization": lambda names: stepped(names["vec_env"], (8, 2)),
    "Serial Vectorization": lambda names: stepped(names["vec_env"], (4, 2)),
    "Multiprocessing Vectorization": lambda names: stepped(names["vec_env"], (8, 2)),
    "Async Vectorization": try_async,
    "Buffer Management": try_buffers,
    "Custom Vectorization": try_custom,
    "Hierarchical Vectorization": try_hierarchy,
    "Native Multi-Agent Support": try_agents,
    "Custom Multi-Agent Vectorization": try_custom_agents,
    "Bottleneck Analysis": try_profiling,
    "Real-Time Monitoring": try_monitoring,
    "Synchronization Problems": try_locks,
    "Environment Design": try_design,
    "Testing": try_testing,
}


def stepped(env, shape):
    obs = env.reset()
    assert obs.shape == shape
    obs, rewards, dones, infos = env.step(env.action_space.sample())
    assert obs.shape == shape
    assert rewards.shape == dones.shape == (env.num_envs,) == shape[:1]
    moved = ~env.batch.resets  # all of them, unless it is asynchronous
    assert [info.get("action") is not None for info in infos] == moved.tolist()


@needs_processes
def test_every_block_of_the_guide_runs_and_what_it_defines_works(capsys):
    install_as_pufferlib()
    shoal.register("environment_name", MyEnvironment)
    names = {
        "__name__": "guide",
        "MyEnvironment": MyEnvironment,
        "env_creator_fn": MyEnvironment,
        "env_creator": MyEnvironment,
        "profile_single_env": lambda env: 1.0,
        "reward": 0.5,
        "done": False,
        "info": {},
        "sps": 1,
        "target_sps": 2,
        "memory_usage": 2,
        "threshold": 1,
    }
    tried = []
    for heading, code in in_guide():
        exec(code, names)
        if heading in TRIALS:
            TRIALS[heading](names)
            tried.append(heading)
    assert tried == list(TRIALS)
    said = capsys.readouterr().out
    assert "Num envs: 8\nNum workers: 2\nEnvs per worker: 4\n" in said
    assert re.search(r"SPS: [\d,]+ \| Step time", said)
    for thing in names.values():
        if isinstance(thing, face.VectorEnv):
            thing.close()


def test_all_of_the_guide_is_there():
    assert len(list(in_guide())) == GUIDE.count("```python") == 23
    assert all(large in GUIDE for large in SMALLER)


# -- the classic form --------------------------------------------------------------------------------------


def sentinels(count, max_length=3):
    return [partial(SentinelEnv, i, max_length) for i in range(count)]


def test_a_finished_env_is_reset_in_the_same_step(pufferlib):
    ends = set()
    with pufferlib.vectorization.Serial(sentinels(3)) as env:
        obs = env.reset(seed=0)
        assert obs[:, 0].tolist() == [0, 1, 2]
        for step in range(30):
            before = obs
            obs, rewards, dones, infos = env.step([step] * 3)
            assert dones.dtype == bool
            assert rewards.dtype == np.float64
            assert type(infos) is list
            for i, info in enumerate(infos):
                last = info["final_obs"] if dones[i] else obs[i]
                assert last.tolist() == [i, before[i, 1], before[i, 2] + 1, step, i]
                assert rewards[i] == SentinelEnv.reward_of(last)
                if not dones[i]:
                    assert info == ({"odd": last[2]} if last[2] % 2 else {})
                    continue
                assert obs[i].tolist() == [i, before[i, 1] + 1, 0, 0, i]  # of the next episode
                terminated, truncated = env.batch.terminations[i], env.batch.truncations[i]
                ends.add((terminated, truncated))
                assert info["last"] == {"env": i, "text": f"episode {last[1]}"}  # said by the last step
                assert "begun" not in info  # said by the reset
                assert info.get("TimeLimit.truncated") == (not terminated if truncated else None)
    assert ends == {(True, False), (False, True), (True, True)}


def test_episodes_are_counted(pufferlib):
    with pufferlib.vectorization.Serial(sentinels(2), episode_stats=True) as env:
        env.reset(seed=0)
        for _ in range(10):
            _, _, dones, infos = env.step([0, 0])
            for done, info in zip(dones, infos, strict=True):
                assert ("episode" in info) == done
                assert not done or info["episode"]["l"] == info["final_obs"][2]


def test_what_a_vector_env_says_of_itself(pufferlib):
    with pufferlib.vectorization.Serial("CartPole-v1", num_envs=3) as env:
        assert repr(env) == "<Serial: Serial(CartPole-v1, num_envs=3)>"
        assert (env.num_envs, env.num_workers, env.envs_per_worker) == (3, 1, 3)
        assert env.single_action_space == Discrete(2)
        assert env.action_space == MultiDiscrete([2, 2, 2])
        assert (env.single_observation_space.shape, env.observation_space.shape) == ((4,), (3, 4))
        assert [type(each.unwrapped).__name__ for each in env.envs] == ["CartPoleEnv"] * 3
        assert type(env.vec) is shoal.Serial
    env.close()
    assert env.vec.closed


@needs_processes
def test_the_same_on_both_backends(pufferlib):
    vectorization, create = pufferlib.vectorization, partial(gymnasium.make, "CartPole-v1")
    with (
        vectorization.Serial(create, num_envs=4) as serial,
        vectorization.Multiprocessing(create, 4, num_workers=2, envs_per_worker=2) as workers,
    ):
        serial.seed(42)
        workers.seed(42)
        first = serial.reset()
        np.testing.assert_array_equal(first, workers.reset())
        for step in range(60):
            actions = np.arange(4) % (1 + step % 2)
            np.testing.assert_equal(workers.step(actions), serial.step(actions))
        np.testing.assert_array_equal(serial.reset(seed=42), first)
        assert (serial.reset() != first).any()  # a seed is for one reset


# -- asynchronous ------------------------------------------------------------------------------------------


@needs_processes
@pytest.mark.parametrize("order", [None, "fifo"])
@pytest.mark.parametrize("counts", [{"surplus_envs": 2}, {"batch_size": 2}, {"mode": "async"}])
def test_asynchronous_steps_reach_the_envs_they_are_for(pufferlib, counts, order):
    asked = {} if order is None else {"order": order}
    create = partial(SentinelEnv, 0, 50)
    with pufferlib.vectorization.Multiprocessing(create, 4, num_workers=2, **counts, **asked) as env:
        assert env.num_envs == env.action_space.shape[0] == counts.get("batch_size", 4)
        assert env.vec.num_envs == 4 + counts.get("surplus_envs", 0)
        assert f"order={order or 'ready'!r}" in repr(env)
        last = np.zeros((env.vec.num_envs, 5), np.int64)
        sent = np.zeros(env.vec.num_envs, np.int64)
        obs = env.reset(seed=5)
        seen = set()
        for step in range(40):
            whose = env.batch.env_ids
            seen.update(whose.tolist())
            last[whose], sent[whose] = obs, step
            obs, rewards, dones, infos = env.step(np.full(env.num_envs, step))
            for row, i in enumerate(env.batch.env_ids):
                if env.batch.resets[row]:
                    assert obs[row].tolist() == [0, 0, 0, 0, 5 + i]
                elif not dones[row]:
                    assert obs[row].tolist() == [0, last[i, 1], last[i, 2] + 1, sent[i], 5 + i]
            assert len(obs) == len(rewards) == len(dones) == len(infos) == env.num_envs
        assert seen == set(range(env.vec.num_envs))


@needs_processes
def test_the_halves_of_a_step(pufferlib):
    with pufferlib.vectorization.Multiprocessing(
        sentinels(4), num_workers=2, batch_size=2, order="fifo"
    ) as env:
        env.async_reset(seed=0)
        obs, rewards, dones, infos = env.recv()
        assert (obs[:, 0].tolist(), rewards.tolist(), dones.tolist()) == ([0, 1], [0, 0], [False, False])
        assert infos == [{"begun": 0}, {"begun": 0}]
        first = env.batch.env_ids
        assert env.recv()[0][:, 0].tolist() == [2, 3]
        env.send([7, 8], env_ids=first)
        env.send([0, 0], env_ids=env.batch.env_ids)
        assert [info["final_obs"][3] if done else seen[3] for seen, _, done, info in rows(env.recv())] == [
            7,
            8,
        ]


def rows(batch):
    return zip(*batch, strict=True)


def test_the_halves_of_a_synchronous_step(pufferlib):
    with pufferlib.vectorization.Serial(sentinels(2)) as env:
        env.reset(seed=0)
        env.send([1, 2])
        obs, *_ = env.recv()
        with pytest.raises(NothingPending, match="nothing is under way"):
            env.recv()
        assert obs.shape == (2, 5)


# -- hierarchies -------------------------------------------------------------------------------------------


@needs_processes
def test_a_vector_env_in_each_worker(pufferlib):
    def inner():
        from pufferlib.vectorization import Serial

        return Serial(env_creator=SentinelEnv, num_envs=4)

    with pufferlib.vectorization.Multiprocessing(inner, num_envs=2, num_workers=2) as env:
        assert (env.num_envs, env.num_workers, env.envs_per_worker) == (8, 2, 4)
        assert env.reset(seed=3)[:, 4].tolist() == list(range(3, 11))
        obs, *_ = env.step(np.arange(8))
        carried_on = obs[:, 2] == 1
        assert carried_on.any()
        assert (obs[carried_on, 3] == np.arange(8)[carried_on]).all()


def test_what_cannot_be_inside_a_vector_env(pufferlib):
    class Loud(pufferlib.vectorization.Serial):
        def step(self, actions):
            return super().step(actions)

    with pytest.raises(ArgumentTypeError, match=r"Loud has a step\(\) of its own"):
        pufferlib.vectorization.Serial(partial(Loud, SentinelEnv, 2), num_envs=2)
    with pytest.raises(CallError, match="VectorEnv was made without envs"):
        pufferlib.vectorization.Serial(pufferlib.vectorization.VectorEnv, num_envs=2)
    with pytest.raises(ArgumentError, match=r"the vector env made by creator 0 uses .*NEXT_STEP"):
        pufferlib.vectorization.Serial(partial(gymnasium.make_vec, "CartPole-v1", 2), num_envs=2)


# -- several agents ----------------------------------------------------------------------------------------


def test_agents_come_and_go_as_dicts(pufferlib):
    with pufferlib.vectorization.Serial(Pair, num_envs=3, seed=0) as env:
        obs = env.reset()
        assert env.num_envs == 3
        assert {agent: seen[:, 0].tolist() for agent, seen in obs.items()} == {
            "agent_0": [0, 0, 0],
            "agent_1": [1, 1, 1],
        }
        assert env.observation_space.contains(obs)
        assert env.action_space == Dict(
            {"agent_0": MultiDiscrete([9] * 3), "agent_1": MultiDiscrete([9] * 3)}
        )

        obs, rewards, dones, infos = env.step({"agent_1": [4, 5, 6], "agent_0": [1, 2, 3]})
        assert obs["agent_0"][:, 1].tolist() == rewards["agent_0"].tolist() == [1, 2, 3]
        assert obs["agent_1"][:, 1].tolist() == rewards["agent_1"].tolist() == [4, 5, 6]
        assert infos == [{"agent_0": {"count": 1}}] * 3

        dones, infos = env.step(env.action_space.sample())[2:]
        assert {agent: done.tolist() for agent, done in dones.items()} == {
            "agent_0": [False] * 3,
            "agent_1": [True] * 3,
        }
        assert infos[0]["agent_1"]["final_obs"][2] == 2

        obs, rewards, dones, infos = env.step([7, 0, 7, 0, 7, 0])  # by rows
        assert (dones["agent_0"].all(), dones["agent_1"].any(), rewards["agent_1"].any()) == (
            True,
            False,
            False,
        )
        assert infos[2]["agent_0"]["count"] == 3
        assert infos[2]["agent_0"]["TimeLimit.truncated"] is True
        assert obs["agent_1"][:, 2].tolist() == [0, 0, 0]

        with pytest.raises(ArgumentError, match="expected a value for each of"):
            env.step({"agent_0": [0, 0, 0]})
        with pytest.raises(ActionError, match="expected integers from 0 to 8, got 9"):
            env.step({"agent_0": [0, 0, 0], "agent_1": [0, 0, 9]})


def test_seeded_actions_of_agents(pufferlib):
    samples = []
    for _ in range(2):
        with pufferlib.vectorization.Serial(Pair, num_envs=3, seed=7) as env:
            samples.append(env.action_space.sample())
    np.testing.assert_equal(*samples)


@needs_processes
def test_agents_in_an_asynchronous_vector_env(pufferlib):
    with pufferlib.make(Pair, 4, num_workers=2, batch_size=2, order="fifo", num_agents=2) as env:
        assert env.reset()["agent_1"].tolist() == [[1, 0, 0], [1, 0, 0]]
        env.step({"agent_0": [1, 2], "agent_1": [3, 4]})
        obs, rewards, _, infos = env.step({"agent_0": [5, 6], "agent_1": [7, 8]})
        assert obs["agent_1"].tolist() == [[1, 3, 1], [1, 4, 1]]
        assert rewards["agent_0"].tolist() == [1, 2]
        assert infos == [{"agent_0": {"count": 1}}] * 2


def test_rows_instead_of_agents(pufferlib):
    with pufferlib.vectorization.Serial(Pair, num_envs=3, rows_as_envs=True) as env:
        assert env.num_envs == 6
        assert env.reset()[:, 0].tolist() == [0, 1] * 3
        assert env.step(env.action_space.sample())[1].shape == (6,)


def test_the_number_of_agents_is_checked(pufferlib):
    with pytest.raises(ArgumentError, match="num_agents: expected 2, as many as the env has, got 4"):
        pufferlib.make(Pair, num_envs=2, num_agents=4, backend="serial")
    with pytest.raises(ArgumentError, match="num_agents: expected a positive integer, got 0"):
        pufferlib.make(Pair, num_envs=2, num_agents=0)
    pufferlib.make("CartPole-v1", num_agents=1).close()


@pytest.mark.parametrize(("num_agents", "archers", "knights"), [(4, 2, 2), (5, 3, 2), (2, 1, 1)])
def test_knights_and_archers(pufferlib, num_agents, archers, knights):
    name = "pettingzoo-knights-archers-zombies"
    with pufferlib.make(name, num_envs=1, num_agents=num_agents, backend="serial") as env:
        names = [f"archer_{i}" for i in range(archers)] + [f"knight_{i}" for i in range(knights)]
        assert list(env.reset(seed=0)) == names
    with pytest.raises(ArgumentError, match=f"num_agents: expected {archers + 9}, as many as the env has"):
        pufferlib.make(
            name, 1, num_agents=num_agents, env_kwargs={"num_knights": 9, "max_cycles": 5}, backend="serial"
        )


def test_agents_in_turn_with_nested_observations(pufferlib):
    with pufferlib.make("pettingzoo-tictactoe", num_envs=2, num_agents=2, backend="serial") as env:
        obs = env.reset()
        assert env.batch.mask.tolist() == [True, False] * 2
        assert obs["player_1"]["action_mask"].tolist() == [[1] * 9] * 2
        obs, *_ = env.step({"player_1": [0, 1], "player_2": [8, 8]})
        assert env.batch.mask.tolist() == [False, True] * 2
        assert np.argwhere(obs["player_2"]["action_mask"] == 0).tolist() == [[0, 0], [1, 1]]


# -- envs --------------------------------------------------------------------------------------------------


class Dice(face.PufferEnv):
    """Throws as its seed says."""

    def __init__(self, buf=None, sides=6):
        super().__init__(buf)
        self.observation_space = self.action_space = self.make_space(sides)

    def reset(self):
        return int(self.np_random.integers(6))

    def step(self, action):
        return self.reset(), 0.0, False, {}


class SeededDice(Dice):
    def reset(self, seed=None):
        super(Dice, self).reset(seed=seed)
        return int(self.np_random.integers(6))


@pytest.mark.parametrize("create", [Dice, SeededDice])
def test_an_env_follows_the_seed(pufferlib, create):
    throws = []
    for _ in range(2):
        with pufferlib.vectorization.Serial(create, num_envs=8, env_kwargs={"sides": 7}) as env:
            env.seed(1)
            throws.append([env.reset(), *(env.step([0] * 8)[0] for _ in range(4))])
            assert env.single_action_space == Discrete(7)
    np.testing.assert_array_equal(*throws)
    assert len(np.unique(throws)) > 2
    expected = [np.random.default_rng(1 + i).integers(6) for i in range(8)]
    assert throws[0][0].tolist() == expected


def test_what_an_env_is_born_with(pufferlib):
    rows = object()
    assert Dice(rows).buf is rows
    with pytest.raises(NotImplementedError, match=r"PufferEnv must define reset\(\)"):
        pufferlib.PufferEnv().reset()
    with pytest.raises(NotImplementedError, match=r"PufferEnv must define step\(\)"):
        pufferlib.PufferEnv().step(0)


@pytest.mark.parametrize(
    ("wanted", "options", "space"),
    [
        ({"obs": (84, 84, 3)}, {}, Dict({"obs": Box(0, 255, (84, 84, 3), np.uint8)})),
        ([2, 3], {}, Box(0, 255, (2, 3), np.uint8)),
        ((), {}, Box(0, 255, (), np.uint8)),
        ((2,), {"dtype": "int16"}, Box(-(2**15), 2**15 - 1, (2,), np.int16)),
        ((2,), {"dtype": bool}, Box(0, 1, (2,), bool)),
        ((2,), {"dtype": np.float32}, Box(-np.inf, np.inf, (2,), np.float32)),
        (4, {}, Discrete(4)),
        (np.int64(4), {}, Discrete(4)),
        (Discrete(4, start=1), {}, Discrete(4, start=1)),
        (
            {"a": {"b": (1,)}, "c": 2},
            {},
            Dict({"a": Dict({"b": Box(0, 255, (1,), np.uint8)}), "c": Discrete(2)}),
        ),
    ],
)
def test_make_space(pufferlib, wanted, options, space):
    assert pufferlib.PufferEnv().make_space(wanted, **options) == space


@pytest.mark.parametrize("wrong", [None, 0, -1, (2.5,), (2, 0), "abc", {"a": None}])
def test_what_is_no_space(pufferlib, wrong):
    with pytest.raises(ArgumentTypeError, match=r"expected a shape such as \(84, 84, 3\), .* got "):
        pufferlib.PufferEnv.make_space(wrong)


# -- arguments ---------------------------------------------------------------------------------------------


def test_a_vector_env_without_envs(pufferlib):
    empty = pufferlib.vectorization.VectorEnv()
    assert repr(empty) == "<VectorEnv: empty>"
    for verb in (empty.reset, empty.recv, partial(empty.step, [0]), partial(empty.seed, 0)):
        with pytest.raises(CallError, match="VectorEnv was made without envs: pass a creator and num_envs"):
            verb()
    empty.close()
    with pytest.raises(ArgumentError, match="env_creator: expected a creator or a name, got None"):
        pufferlib.vectorization.VectorEnv(num_envs=3)


def test_arguments_that_cannot_work(pufferlib):
    serial, make = pufferlib.vectorization.Serial, pufferlib.make
    with pytest.raises(ArgumentError, match=r"env_kwargs=\{'gravity': \.\.\.\}"):
        make("CartPole-v1", num_envs=2, gravity=9)
    with pytest.raises(ArgumentError, match="autoreset_mode: the classic form has only SAME_STEP"):
        make("CartPole-v1", num_envs=2, autoreset_mode="NextStep")
    with pytest.raises(ArgumentError, match="shares 8 envs out among 2 workers, got 3"):
        make("CartPole-v1", num_envs=8, num_workers=2, envs_per_worker=3)
    with pytest.raises(ArgumentError, match="num_workers: Serial runs all envs in this process"):
        serial("CartPole-v1", num_envs=2, num_workers=2)
    with pytest.raises(ArgumentTypeError, match="got one Dice that is made already"):
        serial(Dice(), num_envs=2)
    with pytest.raises(ArgumentTypeError, match="expected a creator or a list of creators, got 3"):
        serial([Dice, 3])
    with pytest.raises(ArgumentError, match="nothing is called 'no-such-env'"):
        make("no-such-env")
    with pytest.raises(ObservationTypeError, match=r"from reset\(\) of env 0"):
        serial(Wrong, num_envs=1).reset()


class Wrong(Dice):
    def reset(self):
        return "six"


# -- installing --------------------------------------------------------------------------------------------


def test_install_twice(pufferlib):
    install_as_pufferlib()
    assert importlib.import_module("pufferlib") is pufferlib
    assert importlib.import_module("pufferlib.vectorization") is pufferlib.vectorization
    assert importlib.util.find_spec("pufferlib").origin == "shoal.compat"
    assert sys.meta_path.count(face._NothingElse) == 1


@pytest.mark.parametrize("imported", [False, True])
def test_the_real_one_is_not_replaced(tmp_path, monkeypatch, imported):
    package = tmp_path / "pufferlib"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    install_as_pufferlib()  # a mere folder
    forget()
    (package / "__init__.py").write_text("real = True")
    importlib.invalidate_caches()
    if imported:
        importlib.import_module("pufferlib")
    with pytest.raises(CallError, match=r"PufferLib itself is installed, in .*pufferlib/__init__.py"):
        install_as_pufferlib()
    assert importlib.import_module("pufferlib").real
    with face.make("CartPole-v1", num_envs=2, backend="serial") as env:
        assert env.reset().shape == (2, 4)


@pytest.mark.parametrize(
    "statement",
    [
        "import pufferlib.emulation",
        "from pufferlib import emulation",
        "from pufferlib.vectorization import Ray",
    ],
)
def test_names_that_are_not_offered(pufferlib, statement):
    with pytest.raises(
        MissingExtra, match=r"has only make, PufferEnv and vectorization, and that only Serial"
    ):
        exec(statement)
    assert not hasattr(pufferlib, "emulation")
    with pytest.raises(AttributeError, match=r"pufferlib.emulation: Shoal's stand-in for pufferlib has only"):
        _ = pufferlib.emulation


def test_importing_shoal_installs_nothing():
    run = "import sys, shoal, shoal.compat; print([name for name in sys.modules if 'puffer' in name])"
    assert subprocess.check_output([sys.executable, "-c", run], text=True) == "[]\n"


SCRIPT = """
import pufferlib
from pufferlib import PufferEnv
from pufferlib.vectorization import Serial

class Game(PufferEnv):
    def __init__(self, buf=None):
        super().__init__(buf)
        self.observation_space = self.action_space = self.make_space(3)

    def reset(self):
        import pufferlib.vectorization

        assert pufferlib.vectorization.Serial is Serial
        return 1

    def step(self, action):
        return action, 1.0, False, {}

def create():
    return pufferlib.vectorization.Serial(Game, num_envs=2)
"""


@needs_processes
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_have_it_too(pufferlib, method):
    names = {"__name__": "script"}  # as in a script, which no worker can import
    exec(SCRIPT, names)
    with pufferlib.make(names["create"], 2, num_workers=2, start_method=method) as env:
        assert env.reset().tolist() == [1] * 4
        assert env.step([0, 1, 2, 0])[0].tolist() == [0, 1, 2, 0]


@needs_processes
def test_workers_have_it_for_envs_in_files(pufferlib, tmp_path):
    (tmp_path / "game.py").write_text(SCRIPT)
    with pufferlib.make(f"{tmp_path}/game.py:Game", num_envs=2, num_workers=2) as env:
        assert env.reset().tolist() == [1, 1]
    sys.path.remove(str(tmp_path))


@needs_processes
def test_a_script_as_users_write_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import shoal.compat; shoal.compat.install_as_pufferlib()\n"
        + SCRIPT
        + textwrap.dedent("""
        env = pufferlib.vectorization.Multiprocessing(Game, num_envs=4, num_workers=2)
        env.reset()
        print(env.step(env.action_space.sample())[1])
        """)
    )
    assert subprocess.check_output([sys.executable, script], text=True) == "[1. 1. 1. 1.]\n"


@needs_processes
def test_workers_have_it_only_if_it_is_installed():
    def create():
        assert importlib.util.find_spec("pufferlib") is None
        return Dice()

    with face.Multiprocessing(create, num_envs=2, num_workers=2) as env:
        env.reset()
