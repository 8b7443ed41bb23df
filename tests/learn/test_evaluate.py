"""How well a policy plays."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import ArgumentError
from shoal.learn import Policy, evaluate

pettingzoo = pytest.importorskip("pettingzoo")


class Guests(pettingzoo.ParallelEnv):
    """The first leaves after 3 steps, the second after 10, and the third never comes."""

    metadata = {"name": "guests"}
    possible_agents = ["first", "second", "third"]
    render_mode = None
    end = 10

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = ["first", "second"], 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.time += 1
        there = self.agents
        leaves = {agent: self.time == self.end or (agent, self.time) == ("first", 3) for agent in there}
        self.agents = [agent for agent in there if not leaves[agent]]
        seen = {agent: np.zeros(1, np.float32) for agent in there}
        never = dict.fromkeys(there, False)
        return seen, dict.fromkeys(there, 1.0), leaves, never, {agent: {} for agent in there}


class Endless(Guests):
    """The second stays for ever, so that the first never comes again."""

    end = 10**9


def policy_for(vec):
    return Policy(vec.observation_layout, vec.single_action_space)


def test_who_never_comes_leaves_its_episodes_to_who_does():
    # CHECKLIST 20: agents that never act.
    with shoal.Serial(Guests, 4, flat=True) as vec:
        found = evaluate(policy_for(vec), vec, 12, max_steps=1000)
    assert sorted(found.lengths) == [3] * 8 + [10] * 4
    assert (found.returns == found.lengths).all()


def test_who_waits_for_an_env_that_never_ends_is_told():
    with (
        shoal.Serial(Endless, 2, flat=True) as vec,
        pytest.raises(ArgumentError, match="max_steps: expected"),
    ):
        evaluate(policy_for(vec), vec, 12, max_steps=200)
