"""Every implementation of the rules of episodes agrees with `shoal.stepping.episodes`, column by column.

The action of an env is a word that says what the step gives each of its agents: a reward, flags and a mask.
A list of words is a script that Python envs, in-place envs, compiled envs and the specification all play.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal import _core
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.stepping.episodes import Episodes

pytestmark = [pytest.mark.core, pytest.mark.twins]

NUM_ENVS, LIMIT = 4, 6
COLUMNS = (
    "rewards", "terminations", "truncations", "mask", "resets", "starts", "episode_returns",
    "episode_lengths",
)  # fmt: skip
SPACES = {"observation_space": Box(0, 1, (1,), np.float32), "action_space": Discrete(1 << 18)}


# -------------------------------------------------------------------------------------------------- words


def word_of(rng):
    """A random word: five bits for each of three agents, in fields of six."""
    word = 0
    for agent in range(3):
        terminated, truncated, acts = rng.random(3) < (0.12, 0.08, 0.75)
        bits = int(rng.integers(4)) | terminated << 2 | truncated << 3 | acts << 4
        word |= int(bits) << 6 * agent
    return word


def reward_in(word, agent):
    return ((word >> 6 * agent & 3) - 1) * 0.5


def terminated_in(word, agent):
    return (word >> 6 * agent & 4) != 0


def truncated_in(word, agent):
    return (word >> 6 * agent & 8) != 0


def acts_in(word, agent):
    return (word >> 6 * agent & 16) != 0


def acts_first(env_id, agent):
    """Whether an agent acts in the first step of an episode; in some envs one of them waits."""
    return agent == 0 or (env_id + agent) % 3 != 0


# --------------------------------------------------------------------------------------- the specification


class Specification:
    """Plays words on an arena by the rules of `Episodes`, without a vec."""

    def __init__(self, agents, mode, limit=0, truncates=True):
        layouts = [Layout(space) for space in SPACES.values()]
        self.arena = Arena.allocate(NUM_ENVS * agents, *layouts)
        self.episodes = Episodes(self.arena, mode, agents)
        self.agents, self.mode, self.limit, self.truncates = agents, mode, limit, truncates
        self.elapsed = [0] * NUM_ENVS

    def over(self):
        return ~self.arena.mask.reshape(NUM_ENVS, -1).any(1)

    def reset(self, chosen):
        self.episodes.reset(np.repeat(chosen, self.agents))
        for env in np.flatnonzero(chosen):
            self.begin(env)

    def begin(self, env):
        rows = self.rows(env)
        self.episodes.restart(rows)
        self.arena.mask[rows] = [acts_first(env, agent) for agent in range(self.agents)]
        self.elapsed[env] = 0

    def step(self, words):
        acting = self.episodes.begin_step()
        for env, word in enumerate(words):
            if acting[self.rows(env)].any():
                self.play(env, word, acting)
            else:
                self.begin(env)
        over = self.episodes.end_step(acting)
        if self.mode is AutoresetMode.SAME_STEP:
            for env in np.flatnonzero(over):
                self.begin(env)

    def play(self, env, word, acting):
        arena, rows = self.arena, self.rows(env)
        agents = range(self.agents)
        arena.rewards[rows] = [reward_in(word, agent) for agent in agents]
        arena.terminations[rows] = [terminated_in(word, agent) for agent in agents]
        if self.truncates:
            arena.truncations[rows] = [truncated_in(word, agent) for agent in agents]
        if self.agents > 1:
            arena.mask[rows] = [acts_in(word, agent) for agent in agents]
        self.elapsed[env] += 1
        if self.elapsed[env] == self.limit:
            arena.truncations[rows] |= self.episodes.took_part(acting)[rows]
            arena.mask[rows] = False

    def rows(self, env):
        return slice(env * self.agents, (env + 1) * self.agents)


# --------------------------------------------------------------------------------------------------- envs


class Single(gymnasium.Env):
    observation_space, action_space = SPACES.values()

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, word):
        flags = bool(terminated_in(word, 0)), bool(truncated_in(word, 0))
        return np.zeros(1, np.float32), reward_in(word, 0), *flags, {}


class InPlace(shoal.Env):
    observation_space, action_space = SPACES.values()

    def __init__(self, env_id, num_agents):
        super().__init__()
        self.env_id, self.num_agents = env_id, num_agents

    def reset(self, seed=None, options=None):
        self.rewards[:] = 9  # the vec keeps what the last step wrote
        self.terminations[:] = self.truncations[:] = False
        self.mask[:] = [acts_first(self.env_id, agent) for agent in range(self.num_agents)]

    def step(self, words):
        word = words[np.flatnonzero(self.mask)[0]]
        for agent in range(self.num_agents):
            self.rewards[agent] = reward_in(word, agent)
            self.terminations[agent] = terminated_in(word, agent)
            self.truncations[agent] = truncated_in(word, agent)
            if self.num_agents > 1:
                self.mask[agent] = acts_in(word, agent)


class Compiled(shoal.NativeEnv):
    """One agent; its step is straight, so that it is called for envs that wait too."""

    observation_space, action_space = SPACES.values()
    max_episode_steps = LIMIT

    @staticmethod
    def reset(obs):
        obs[0] = 0

    @staticmethod
    def step(action):
        return reward_in(action, 0), terminated_in(action, 0), truncated_in(action, 0)


class CompiledNotStraight(Compiled):
    """One agent; the index that its step computes keeps envs that wait from being stepped."""

    @staticmethod
    def step(action, obs):
        obs[action & 0] = 0
        return reward_in(action, 0), terminated_in(action, 0), truncated_in(action, 0)


class CompiledTeam(shoal.NativeEnv):
    """Three agents."""

    observation_space, action_space = SPACES.values()
    max_episode_steps, num_agents = LIMIT, 3
    parameters = {"env_id": 0}

    @staticmethod
    def reset(obs, alive, config):
        for agent in range(3):
            obs[agent, 0] = 0
            alive[agent] = acts_first(config.env_id, agent)

    @staticmethod
    def step(actions, rewards, terminated, alive):
        word = 0
        for agent in range(3):
            if alive[agent]:
                word = actions[agent]
        for agent in range(3):
            rewards[agent] = reward_in(word, agent)
            terminated[agent] = terminated_in(word, agent)
            alive[agent] = acts_in(word, agent)


def in_place(agents):
    return [partial(InPlace, env_id, agents) for env_id in range(NUM_ENVS)]


def halves(creators, mode, kind=shoal.Serial):
    """A vec of two vector envs."""
    half = len(creators) // 2
    units = [partial(kind, part, autoreset_mode=mode) for part in (creators[:half], creators[half:])]
    return shoal.Serial(units, autoreset_mode=mode)


def native(cls, mode, **options):
    parameters = {"env_id": np.arange(NUM_ENVS)} if cls is CompiledTeam else {}
    return shoal.Native(cls, NUM_ENVS, env_kwargs=parameters, autoreset_mode=mode, **options)


IMPLEMENTATIONS = {
    "Python envs": (1, lambda mode: shoal.Serial(Single, NUM_ENVS, autoreset_mode=mode)),
    "in place, 1 agent": (1, lambda mode: shoal.Serial(in_place(1), autoreset_mode=mode)),
    "in place, 3 agents": (3, lambda mode: shoal.Serial(in_place(3), autoreset_mode=mode)),
    "vector envs of Python envs": (1, lambda mode: halves([Single] * NUM_ENVS, mode)),
    "vector envs of 3 agents": (3, lambda mode: halves(in_place(3), mode)),
    "Gymnasium's vector envs": (1, lambda mode: halves([Single] * NUM_ENVS, mode, SyncVectorEnv)),
    "compiled, not compiled": (1, lambda mode: native(Compiled, mode, debug=True)),
    "compiled, 3 agents, not compiled": (3, lambda mode: native(CompiledTeam, mode, debug=True)),
}
if _core.NAME == "native":
    IMPLEMENTATIONS |= {
        "compiled": (1, partial(native, Compiled)),
        "compiled, not straight": (1, partial(native, CompiledNotStraight)),
        "compiled, 3 agents": (3, partial(native, CompiledTeam)),
    }


# --------------------------------------------------------------------------------------------- comparison


# One process of pytest's for an implementation, so that its kernel is compiled and loaded once.
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in IMPLEMENTATIONS]
)
def test_columns_are_those_of_the_specification(name, mode):
    agents, make = IMPLEMENTATIONS[name]
    is_compiled = name.startswith("compiled")
    rng = np.random.default_rng(0)
    expected = Specification(agents, mode, LIMIT * is_compiled, truncates=not is_compiled or agents == 1)
    with make(mode) as vec:
        for count in range(300):
            chosen = rng.random(NUM_ENVS) < 0.4
            if mode is AutoresetMode.DISABLED:
                chosen |= expected.over()
                resets = chosen.any() and (expected.over().any() or rng.random() < 0.1)
            else:
                resets = chosen.any() and rng.random() < 0.1
            if count == 0 or resets:
                chosen |= count == 0
                vec.reset(options={"reset_mask": chosen})
                expected.reset(chosen)
                told = f"call {count}, reset {chosen}"
            else:
                words = [word_of(rng) for _ in range(NUM_ENVS)]
                vec.step(np.repeat(words, agents))
                expected.step(words)
                told = f"call {count}, step {words}"
            compare(vec._arena, expected, told)


def compare(arena, expected, told):
    goes_on = np.repeat(~expected.over(), expected.agents)
    for column in COLUMNS:
        # `starts` has no meaning while an env waits for its reset.
        rows = goes_on if column == "starts" else slice(None)
        got, wanted = getattr(arena, column)[rows], getattr(expected.arena, column)[rows]
        assert got.tolist() == wanted.tolist(), f"{column} after {told}"


# ---------------------------------------------------------------------------- the specification by example


def rows_of(values):
    """An arena with a row for each tuple of values, in the order of `COLUMNS`."""
    arena = Arena.allocate(len(values), *map(Layout, SPACES.values()))
    for column, entries in zip(COLUMNS, zip(*values, strict=True), strict=True):
        getattr(arena, column)[:] = entries
    return arena


def values_of(arena, row):
    return tuple(getattr(arena, column)[row].item() for column in COLUMNS)


T, F = True, False
OTHER = (0.0, F, F, T, F, F, 0.0, 1)  # an agent of the same env, which acts on and on
ACTS, FIRST = (1.0, F, F, T, F, F, 2.0, 3), (0.0, F, F, T, T, T, 0.0, 0)
WAITS, NOT_YET = (1.0, F, F, F, F, F, 2.0, 3), (1.0, F, F, F, T, T, 2.0, 0)
ENDED = (1.0, T, F, F, F, T, 2.0, 3)
# What happens: the row before, what the env writes (reward, terminated, truncated, mask), the row after.
STEPS = {
    "acts": (ACTS, (0.5, F, F, T), (0.5, F, F, T, F, F, 2.5, 4)),
    "acts and is to wait": (ACTS, (0.5, F, F, F), (0.5, F, F, F, F, F, 2.5, 4)),
    "acts and is terminated": (ACTS, (0.5, T, F, T), (0.5, T, F, F, F, T, 2.5, 4)),
    "acts and is truncated": (ACTS, (0.5, F, T, T), (0.5, F, T, F, F, T, 2.5, 4)),
    "acts for the first time": (FIRST, (0.5, F, F, T), (0.5, F, F, T, F, F, 0.5, 1)),
    "waits": (WAITS, (0.5, F, F, T), (0.5, F, F, T, F, F, 2.5, 3)),
    "waits and is terminated": (WAITS, (0.5, T, F, T), (0.5, T, F, F, F, T, 2.5, 3)),
    "has not acted yet": (NOT_YET, (0.5, F, F, T), (0.5, F, F, T, T, T, 2.5, 0)),
    "has not acted yet and is truncated": (NOT_YET, (0.5, F, T, T), (0.5, F, T, F, T, T, 2.5, 0)),
    "ended in the last step": (ENDED, (0.5, T, T, F), (0.0, F, F, F, T, T, 0.0, 0)),
    "ended and returns": (ENDED, (0.5, T, T, T), (0.0, F, F, T, T, T, 0.0, 0)),
}


def stepped(before, writes, other_acts):
    """The first of two agents after a step."""
    arena = rows_of([before, OTHER])
    episodes = Episodes(arena, AutoresetMode.NEXT_STEP, agents=2)
    episodes.ended[0] = before == ENDED
    acting = episodes.begin_step()
    arena.rewards[0], arena.terminations[0], arena.truncations[0], arena.mask[0] = writes
    arena.mask[1] = other_acts
    over = episodes.end_step(acting)
    return values_of(arena, 0), over.tolist()


@pytest.mark.parametrize("event", STEPS)
def test_a_step(event):
    before, writes, after = STEPS[event]
    assert stepped(before, writes, other_acts=True) == (after, [False])


@pytest.mark.parametrize(
    ("before", "reward", "truncated"),
    [(ACTS, 0.0, T), (WAITS, 0.0, T), (NOT_YET, 0.0, T), (NOT_YET, -2.0, F), (ENDED, 0.5, F)],
    ids=["acts", "waits", "was rewarded", "has no part", "ended earlier"],
)
def test_the_end_of_an_env_without_flags(before, reward, truncated):
    (_, _, got, *_), over = stepped(before, (reward, F, F, F), other_acts=False)
    assert over == [True]
    assert got == truncated


@pytest.mark.parametrize(
    ("before", "after"),
    [(ACTS, (0.0, F, F, T, T, F, 2.0, 3)), (WAITS, (0.0, F, F, F, T, F, 2.0, 3)),
     (ENDED, (0.0, F, F, F, T, T, 0.0, 0)), (NOT_YET, (0.0, F, F, F, T, T, 2.0, 0))],
    ids=["acts", "waits", "ended", "has not acted yet"],
)  # fmt: skip
def test_a_reset_by_the_caller(before, after):
    arena = rows_of([before, before])
    Episodes(arena, AutoresetMode.NEXT_STEP).reset(np.array([True, False]))
    assert values_of(arena, 0) == FIRST
    assert values_of(arena, 1) == after


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_reset_of_each_mode(mode):
    arena = rows_of([ACTS])
    episodes = Episodes(arena, mode)
    acting = episodes.begin_step()
    arena.rewards[0], arena.terminations[0] = 0.5, True
    episodes.end_step_of_single_rows(acting)
    assert values_of(arena, 0) == (0.5, T, F, mode is AutoresetMode.SAME_STEP, F, T, 2.5, 4)
    if mode is AutoresetMode.NEXT_STEP:
        episodes.end_step_of_single_rows(episodes.begin_step())
        assert values_of(arena, 0) == FIRST
