"""Shoal's stand-in for PufferLib: several agents, envs of its style, and its arguments."""

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from shoal.errors import (
    ActionError,
    ArgumentError,
    ArgumentTypeError,
    CallError,
    ObservationTypeError,
)
from tests.compat.pufferlib_envs import Dice, Pair, needs_processes

pytestmark = pytest.mark.usefixtures("nothing_stays")


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
    def sampled(seed):
        with pufferlib.vectorization.Serial(Pair, num_envs=20, seed=seed) as env:
            return env.action_space.sample()

    first, again, other = sampled(7), sampled(7), sampled(8)
    np.testing.assert_equal(first, again)
    assert all((first[agent] != other[agent]).any() for agent in ("agent_0", "agent_1"))


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
    with pytest.raises(ArgumentError, match="divides 8 envs among 2 workers, got 3"):
        make("CartPole-v1", num_envs=8, num_workers=2, envs_per_worker=3)
    with pytest.raises(ArgumentError, match="num_workers: Serial runs all envs in this process"):
        serial("CartPole-v1", num_envs=2, num_workers=2)
    with pytest.raises(ArgumentTypeError, match="got one Dice that is made already"):
        serial(Dice(), num_envs=2)
    with pytest.raises(ArgumentTypeError, match="expected a creator or a list of creators, got 3"):
        serial([Dice, 3])
    with pytest.raises(ArgumentError, match="no env is called 'no-such-env'"):
        make("no-such-env")
    with pytest.raises(ObservationTypeError, match=r"from reset\(\) of env 0"):
        serial(Wrong, num_envs=1).reset()


class Wrong(Dice):
    def reset(self):
        return "six"
