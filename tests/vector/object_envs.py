"""Envs with objects in their spaces, and checks of their rows. Workers import it: it imports no pytest."""

import os
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np

import shoal

COUNTS = sp.Sequence(sp.Discrete(10**9))


class Ledger(gymnasium.Env):
    """Says the same in its bytes and in its object: which env, episode and step this is.

    The object also repeats the object of the last action, which must begin with the env's own number.
    """

    observation_space = sp.Dict(bytes=sp.Box(-1, 10**9, (3,), np.int64), object=COUNTS)
    action_space = sp.Dict(bytes=sp.Discrete(1000), object=COUNTS)

    def __init__(self, env_id=0, length=4, dies_at=0):
        self.env_id, self.length, self.dies_at = env_id, length, dies_at
        self.life, self.episode = 0, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(()), {}

    def step(self, action):
        self.life, self.count = self.life + 1, self.count + 1
        assert action["object"][0] == action["bytes"] == self.env_id
        if self.life == self.dies_at:
            os._exit(3)
        return self._observe(action["object"]), 1.0, self.count == self.length, False, {}

    def process_id(self):
        return os.getpid()

    def _observe(self, last):
        moment = (self.env_id, self.episode, self.count)
        return {"bytes": np.array(moment), "object": (*moment, *last)}


def ledgers(count, dying=None):
    return [partial(Ledger, i, dies_at=6 if i == dying else 0) for i in range(count)]


class Bare(gymnasium.Space):
    """A custom space with nothing of its own: no sample, no contains, no ==."""


class Talking(gymnasium.Env):
    def __init__(self, space):
        self.observation_space, self.action_space = space, space

    def reset(self, *, seed=None, options=None):
        return "reset", {}

    def step(self, action):
        return f"step({action})", 0.0, False, False, {}


class Reusing(gymnasium.Env):
    """Gives the same list each time, which all envs of a process share, and keeps its actions."""

    observation_space = action_space = Bare()
    shared = [0]

    def __init__(self, env_id=0):
        self.env_id, self.actions = env_id, []

    def reset(self, *, seed=None, options=None):
        self.count = 0
        self.shared[:] = [self.env_id, 0]
        return self.shared, {}

    def step(self, action):
        self.count += 1
        self.shared[:] = [self.env_id, self.count]
        self.actions.append(action)
        return self.shared, 0.0, self.count == 3, False, {}


class Uncopied:
    """Can be handed on, but not pickled."""

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        raise RuntimeError("not to be pickled")


class Saying(gymnasium.Env):
    observation_space = sp.Dict(a=sp.Discrete(2), deep=sp.Tuple((sp.Discrete(2), Bare())))
    action_space = sp.Dict(word=Bare())

    def __init__(self, what=None):
        self.what, self.moved = what, 0

    def reset(self, *, seed=None, options=None):
        return {"a": 0, "deep": (0, 1)}, {}

    def step(self, action):
        self.moved += 1
        value = self.what() if callable(self.what) else self.what
        return {"a": 0, "deep": (0, value)}, 0.0, False, False, {}


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return int, ("no number",)


class Pair:
    """A PettingZoo env of two agents; the second leaves after two steps and sends nothing from then on."""

    possible_agents = ("long", "short")

    def __init__(self, env_id=0):
        self.env_id, self.agents = env_id, []

    def observation_space(self, agent):
        return Ledger.observation_space

    def action_space(self, agent):
        return Ledger.action_space

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        return self._moment({}), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert all(action["object"] == (self.env_id, 7) for action in actions.values())
        assert set(actions) == set(self.agents)
        self.count += 1
        now = self._moment(actions)
        over = {"long": self.count == 4, "short": self.count == 2}
        ends = {agent: over[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        nothing = dict.fromkeys(ends, False)
        return now, dict.fromkeys(ends, 1.0), ends, nothing, {agent: {} for agent in ends}

    def _moment(self, actions):
        moments = {agent: (self.env_id, row, self.count) for row, agent in enumerate(self.possible_agents)}
        said = {agent: (*moments[agent], *actions.get(agent, {"object": ()})["object"]) for agent in moments}
        return {agent: {"bytes": np.array(moments[agent]), "object": said[agent]} for agent in self.agents}


class PairRows(shoal.Env):
    """The same by the other contract: one agent written in place, one by `write`."""

    observation_space, action_space, num_agents = Ledger.observation_space, Ledger.action_space, 2

    def __init__(self, env_id=0):
        super().__init__()
        self.env_id = env_id

    def reset(self, seed=None, options=None):
        self.count = 0
        self._observe([(), ()])

    def step(self, actions):
        self.count += 1
        self._observe(actions["object"])
        self.terminations[:] = self.count == 4, self.count == 2
        if self.count == 4:
            self.terminations[1] = False

    def _observe(self, last):
        moment = (self.env_id, 0, self.count)
        self.observations["bytes"][0] = moment
        self.observations["object"][0] = (*moment, *last[0])
        if self.count <= 2:
            moment = (self.env_id, 1, self.count)
            self.write(1, {"bytes": np.array(moment), "object": (*moment, *last[1])})


def actions_for(env_ids):
    ids = [int(env) for env in env_ids]
    return {"bytes": np.array(ids), "object": tuple((env, 7) for env in ids)}


def check(obs, env_ids):
    """Bytes and objects are of the same moment, of the env of their row."""
    assert obs["bytes"][:, 0].tolist() == list(env_ids)
    for row, told in enumerate(obs["object"]):
        assert told[:3] == tuple(obs["bytes"][row])
        assert told[3:] in ((), (told[0], 7))


def check_finals(infos):
    for row in np.flatnonzero(infos.get("_final_obs", [])):
        final = infos["final_obs"][row]
        assert final["object"][:3] == tuple(final["bytes"])
        assert final["object"][0] == row or len(infos["_final_obs"]) < 8
