"""Code written for PufferLib runs on Shoal: a user's guide as it stands."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.compat import install_as_pufferlib
from shoal.compat import pufferlib as face
from shoal.errors import (
    ArgumentTypeError,
)
from tests.compat.pufferlib_envs import MyEnvironment, needs_processes

pytestmark = pytest.mark.usefixtures("nothing_stays")


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
