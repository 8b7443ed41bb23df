"""Shoal's stand-in for PufferLib: steps, synchronous and asynchronous, and vector envs within others."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete

import shoal
from shoal.errors import (
    ArgumentError,
    ArgumentTypeError,
    CallError,
    NothingPending,
)
from shoal.testing import SentinelEnv
from tests.compat.pufferlib_envs import needs_processes, sentinels

pytestmark = pytest.mark.usefixtures("nothing_stays")


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

    with pytest.raises(ArgumentTypeError, match=r"Loud overrides step\(\)"):
        pufferlib.vectorization.Serial(partial(Loud, SentinelEnv, 2), num_envs=2)
    with pytest.raises(CallError, match="VectorEnv was made without envs"):
        pufferlib.vectorization.Serial(pufferlib.vectorization.VectorEnv, num_envs=2)
    with pytest.raises(ArgumentError, match=r"the vector env made by creator 0 uses .*NEXT_STEP"):
        pufferlib.vectorization.Serial(partial(gymnasium.make_vec, "CartPole-v1", 2), num_envs=2)
