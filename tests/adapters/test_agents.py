"""PettingZoo envs as rows: who acts, who dies, who returns, in every backend and mode."""

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Text, Tuple
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import shoal
from shoal import _core
from shoal.adapters.padding import common_space, cutter, padder
from shoal.errors import ArgumentError, ArgumentTypeError, ObservationError, SpaceError
from shoal.testing.contract import difference
from shoal.testing.native_envs import PairNative
from tests.backends import BACKENDS

pytestmark = pytest.mark.twins

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


class Troupe:
    """Scripted: "a" dies at 2 and returns at 4, "b" plays on, "c" joins at 3 and is dropped at 6; 8 steps.

    An observation is the agent's number, the moment and its last action; a reward the moment and the action.
    """

    possible_agents = ("a", "b", "c")
    metadata = {"name": "troupe"}
    hangs_on = False  # whether the dead are still listed, as some envs do

    def __init__(self, name="troupe"):
        self.name, self.agents, self.got = name, [], []

    def observation_space(self, agent):
        return Box(-1, 1000, (3,), np.float32)

    def action_space(self, agent):
        return Discrete(10)

    def _observe(self, agents, actions):
        return {
            agent: np.array(
                [self.possible_agents.index(agent), self.moment, actions.get(agent, -1)], np.float32
            )
            for agent in agents
        }

    def reset(self, seed=None, options=None):
        self.moment, self.agents = 0, ["a", "b"]
        return self._observe(self.agents, {}), {"b": {"seed": -1 if seed is None else seed}}

    def step(self, actions):
        assert all(type(action) is np.int64 for action in actions.values())
        assert self.hangs_on or set(actions) == set(self.agents)
        self.got.append(actions)
        self.moment += 1
        played, now = list(actions), self.moment
        rewards = {agent: now + action / 10 for agent, action in actions.items()}
        terminations = dict.fromkeys(played, False) | {"a": now == 2}
        truncations = dict.fromkeys(played, now == 8)
        alive = {"a": now != 2 and (now == 1 or now >= 4), "b": True, "c": 3 <= now < 6}
        self.agents = [agent for agent in self.possible_agents if alive[agent] and now < 8]
        observations = self._observe({*played, *self.agents}, actions)
        if self.hangs_on and now == 2:
            self.agents = ["a", "b"]
            rewards["a"] += 0.0
        return observations, rewards, terminations, truncations, {"b": {"moment": now}}

    def render(self):
        return np.full((2, 2, 3), self.moment, np.uint8)


# Of each agent: the moments at which it has a transition, and those that end an episode of its own.
TRANSITIONS = {"a": [1, 2, 5, 6, 7, 8], "b": [1, 2, 3, 4, 5, 6, 7, 8], "c": [4, 5, 6]}
TERMINATED, TRUNCATED = {"a": [2]}, {"a": [8], "b": [8], "c": [6]}


def play(vec, steps):
    """Every row's transitions, as a learner would store them: observation, action, reward, ends, next one."""
    found = {row: [] for row in range(vec.num_rows)}
    obs, _ = vec.reset(seed=0)
    for step in range(steps):
        actions = (np.arange(vec.num_rows) + step) % 10
        acts = vec.mask
        previous, (obs, rewards, terminations, truncations, infos) = obs, vec.step(actions)
        finals = infos.get("final_obs", np.full(vec.num_rows, None))
        for row in np.flatnonzero(acts):
            after = obs[row] if finals[row] is None else finals[row]
            found[row].append(
                (
                    previous[row].tolist(),
                    actions[row],
                    rewards[row],
                    terminations[row],
                    truncations[row],
                    after.tolist(),
                )
            )
        idle = ~acts
        assert not rewards[idle].any()
        assert not (terminations | truncations)[idle].any()
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hangs_on", [False, True], ids=["dropped", "listed after death"])
def test_an_agent_that_dies_is_heard_once_and_may_return(backend, mode, hangs_on):
    create = Troupe
    if hangs_on:

        class create(Troupe):  # noqa: N801
            hangs_on = True

    with BACKENDS[backend](create, 2, autoreset_mode=mode) as vec:
        assert vec.agents == ("a", "b", "c")
        assert (vec.num_envs, vec.num_rows) == (2, 6)
        period = 8 if mode == "SameStep" else 9
        found = play(vec, 2 * period)
    for row, transitions in found.items():
        agent, number = "abc"[row % 3], row % 3
        moments = 2 * TRANSITIONS[agent]
        assert [after[1] for *_, after in transitions] == moments
        assert [before[1] for before, *_ in transitions] == [moment - 1 for moment in moments]
        for before, action, reward, terminated, truncated, after in transitions:
            moment = after[1]
            assert before[0] == after[0] == number
            assert after[2] == action
            assert reward == moment + action / 10
            assert terminated == (moment in TERMINATED.get(agent, []))
            assert truncated == (moment in TRUNCATED.get(agent, []))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rows_of_absent_agents_are_empty_after_a_reset(backend):
    with BACKENDS[backend](Troupe, 2) as vec:
        obs, infos = vec.reset(seed=5)
        assert vec.mask.tolist() == 2 * [True, True, False]
        assert obs[2::3].tolist() == [[0, 0, 0]] * 2
        assert infos["seed"].tolist() == [0, 5, 0, 0, 6, 0]
        for _ in range(9):
            obs, *_ = vec.step(np.zeros(6, int))
        assert obs[2::3].tolist() == [[0, 0, 0]] * 2


SEEDED = {
    **{name: partial(backend, Troupe, 4) for name, backend in BACKENDS.items()},
    "by rows": partial(shoal.Serial, Troupe, 4, rows_as_envs=True),
}
if _core.NAME == "native":
    SEEDED |= {
        "batches": partial(shoal.Multiprocessing, Troupe, 4, num_workers=2, batch_size=2),
        "compiled": partial(shoal.make, PairNative, 4),
        "compiled batches": partial(shoal.make, PairNative, 4, batch_size=2),
    }


@pytest.mark.parametrize("make", SEEDED)
def test_the_seed_of_a_vec_decides_which_actions_are_sampled(make):
    def sampled(seed):
        with SEEDED[make](seed=seed) as vec:
            rows = vec.batch_size if vec.rows_as_envs else vec.batch_size * vec.agents_per_env
            samples = np.stack([vec.action_space.sample() for _ in range(20)])
            assert samples.shape == (20, rows)
            return samples

    first, again, other = sampled(3), sampled(3), sampled(4)
    assert np.array_equal(first, again)
    assert (first != other).any(0).all()  # in each row
    assert all((first[:, row] != first[:, 0]).any() for row in range(1, first.shape[1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_of_a_vec_is_that_of_its_first_reset(backend):
    with BACKENDS[backend](Troupe, 2, seed=5) as vec:
        assert vec.reset()[1]["seed"].tolist() == [0, 5, 0, 0, 6, 0]
        assert vec.reset()[1]["seed"].tolist() == [0, -1, 0, 0, -1, 0]
        vec.seed(8)
        assert vec.reset()[1]["seed"].tolist() == [0, 8, 0, 0, 9, 0]
        vec.seed([4, None])
        assert vec.reset()[1]["seed"].tolist() == [0, 4, 0, 0, -1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_are_of_each_agents_own_episodes(backend):
    with BACKENDS[backend](Troupe, 1, autoreset_mode="SameStep", episode_stats=True) as vec:
        vec.reset(seed=0)
        episodes = []
        for _ in range(8):
            *_, infos = vec.step(np.zeros(3, int))
            rows = np.flatnonzero(infos.get("_episode", []))
            episodes += [("abc"[row], infos["episode"]["r"][row], infos["episode"]["l"][row]) for row in rows]
    assert episodes == [("a", 3, 2), ("c", 15, 3), ("a", 26, 4), ("b", 36, 8)]


@needs_processes
@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("flat", [False, True])
def test_asynchronously_every_agent_lives_the_same_life(order, flat):
    seen = {}
    with shoal.Multiprocessing(Troupe, 4, num_workers=2, batch_size=2, order=order, flat=flat) as vec:
        vec.async_reset(seed=0)
        # In ready order a worker that is not scheduled for a while holds its envs back.
        while len(seen) < 12 or min(map(len, seen.values())) < 9:
            batch = vec.recv()
            assert len(batch.obs) == 6
            for position, (env, agent) in enumerate(zip(batch.env_ids, batch.agent_ids, strict=True)):
                life = seen.setdefault((env, agent), [])
                if not batch.resets[position]:
                    ended = bool(batch.terminations[position]), bool(batch.truncations[position])
                    life.append((batch.obs[position, 1].item(), batch.rewards[position].item(), *ended))
            vec.send(np.zeros(6, int))
    assert len(seen) == 12
    for (_, agent), life in seen.items():
        name = "abc"[agent]
        expected = [
            (m, m, m in TERMINATED.get(name, []), m in TRUNCATED.get(name, [])) for m in TRANSITIONS[name]
        ]
        assert life == (expected * len(life))[: len(life)]


def test_by_agent_and_back():
    with shoal.Serial(Troupe, 3) as vec:
        obs, _ = vec.reset(seed=0)
        by_agent = vec.by_agent(obs)
        assert {agent: each.shape for agent, each in by_agent.items()} == dict.fromkeys("abc", (3, 3))
        assert by_agent["b"][:, 0].tolist() == [1, 1, 1]
        assert np.shares_memory(by_agent["b"], obs)
        assert np.array_equal(vec.from_agents(by_agent), obs)
        nested = {"x": np.arange(9), "y": (np.arange(18).reshape(9, 2),)}
        assert vec.by_agent(nested)["c"]["y"][0].tolist() == [[4, 5], [10, 11], [16, 17]]
        back = vec.from_agents(vec.by_agent(nested))
        assert back["x"].tolist() == list(range(9))
        assert np.array_equal(back["y"][0], nested["y"][0])
        _, rewards, *_ = vec.step(vec.from_agents({"a": [1, 2, 3], "b": [4, 5, 6], "c": [0, 0, 0]}))
        assert vec.by_agent(rewards)["a"].tolist() == [1.1, 1.2, 1.3]
        with pytest.raises(
            ArgumentError, match=r"expected a value for each of \('a', 'b', 'c'\), got \('a',\)"
        ):
            vec.from_agents({"a": [0, 0, 0]})


def test_by_agent_of_rows_that_are_no_arrays():
    words, choice = Text(3), OneOf([Discrete(3), Box(0, 1, (2,))])
    for space in (words, choice, Tuple([words, Discrete(4)]), Dict(a=Tuple([choice]))):
        with shoal.Serial(partial(Mixed, (space, space), (space, space)), 3) as vec:
            obs, _ = vec.reset(seed=0)
            back = vec.from_agents(vec.by_agent(obs))
            assert difference(back, obs) is None
            for env, last in enumerate(vec.call("last")):
                for agent in vec.agents:
                    own = list(iterate(batch_space(space, 3), vec.by_agent(obs)[agent]))
                    assert difference(own[env], last[agent]) is None
            vec.step(vec.from_agents(vec.by_agent(vec.action_space.sample())))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_env_itself_is_within_reach(backend):
    with BACKENDS[backend]([partial(Troupe, "first"), partial(Troupe, "second")]) as vec:
        vec.reset(seed=0)
        assert vec.get_attr("name") == ("first", "second")
        vec.set_attr("name", ["x", "y"])
        assert vec.call("name") == ("x", "y")
        vec.step(np.zeros(6, int))
        assert [frame.max() for frame in vec.render()] == [1, 1]
        saved = vec.snapshot()
        first = [vec.step(np.zeros(6, int))[0] for _ in range(9)]
        vec.restore(saved)
        assert np.array_equal(first, [vec.step(np.zeros(6, int))[0] for _ in range(9)])


def test_a_learner_that_knows_nothing_of_agents():
    vec = RecordEpisodeStatistics(shoal.Serial(Troupe, 2, rows_as_envs=True))
    assert vec.num_envs == 6
    vec.reset(seed=0)
    for _ in range(8):
        *_, infos = vec.step(np.zeros(6, int))
    assert infos["episode"]["r"][1] == 36
    vec.close()


class Mixed:
    """Two agents with spaces of their own."""

    possible_agents = agents = ("small", "large")

    def __init__(self, observations, actions):
        self.observations, self.actions = observations, actions
        self.got = []

    def observation_space(self, agent):
        return self.observations[agent == "large"]

    def action_space(self, agent):
        return self.actions[agent == "large"]

    def _moment(self):
        return {agent: self.observation_space(agent).sample() for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.last = self._moment()
        return self.last, {}

    def step(self, actions):
        self.got.append(actions)
        for agent, action in actions.items():
            own = self.action_space(agent)
            within = own.contains(action) or (isinstance(own, Box) and action.shape == own.shape)
            assert within, (agent, action)
        self.last, zeros = self._moment(), dict.fromkeys(self.agents, 0)
        return self.last, zeros, zeros, zeros, {}


PADDED = {
    "shapes": (
        (Box(1, 2, (2, 3), np.float32), Box(-1, 0, (4, 1), np.float32)),
        Box(
            np.array([[-1, 0, 0], [-1, 0, 0], [-1, 0, 0], [-1, 0, 0]], np.float32),
            np.array([[2, 2, 2], [2, 2, 2], [0, 0, 0], [0, 0, 0]], np.float32),
        ),
    ),
    "bytes": ((Box(0, 255, (2,), np.uint8), Box(0, 255, (3,), np.uint8)), Box(0, 255, (3,), np.uint8)),
    "choices": ((Discrete(2, start=1), Discrete(5, start=1)), Discrete(5, start=1)),
    "many choices": ((MultiDiscrete([2, 5]), MultiDiscrete([3, 4, 6])), MultiDiscrete([3, 5, 6])),
    "bits": ((MultiBinary(2), MultiBinary(4)), MultiBinary((4,))),
    "dict": (
        (Dict(x=Discrete(2), y=MultiBinary(1)), Dict(x=Discrete(3), y=MultiBinary(2))),
        Dict(x=Discrete(3), y=MultiBinary((2,))),
    ),
    "tuple": ((Tuple([Discrete(2)]), Tuple([Discrete(3)])), Tuple([Discrete(3)])),
}


@pytest.mark.parametrize("kind", PADDED)
def test_spaces_that_differ_are_padded(kind):
    spaces, expected = PADDED[kind]
    common = common_space(dict(zip(("small", "large"), spaces, strict=True)), "spaces")
    assert common == expected
    with shoal.Serial(partial(Mixed, spaces, spaces), 2) as vec:
        assert vec.single_observation_space == vec.single_action_space == expected
        vec.action_space.seed(0)
        obs, _ = vec.reset(seed=0)
        for _ in range(30):
            small, large = (vec.call("last")[1][agent] for agent in ("small", "large"))
            for agent, own, value in zip(("small", "large"), spaces, (small, large), strict=True):
                pad = padder(own, common)
                seen = shoal.layout(common).pack(value if pad is None else pad(value))
                mine = vec.by_agent(obs)[agent]
                row = (
                    {k: v[1] for k, v in mine.items()}
                    if kind == "dict"
                    else mine[0][1:]
                    if kind == "tuple"
                    else mine[1]
                )
                assert np.array_equal(shoal.layout(common).pack(row), seen)
            obs, *_ = vec.step(vec.action_space.sample())


def test_a_choice_that_only_others_have_counts_as_the_first():
    assert [cutter(Discrete(2, start=3), Discrete(4, start=3))(n) for n in (3, 4, 5, 6)] == [3, 4, 3, 3]
    cut = cutter(MultiDiscrete([2, 2]), MultiDiscrete([4, 4, 4]))
    assert cut(np.array([3, 1, 2])).tolist() == [0, 1]
    box = cutter(Box(0, 1, (2,)), Box(0, 1, (3,)))
    assert box(np.array([0.1, 0.2, 0.3])).tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    "spaces",
    [
        (Box(0, 1, (2,), np.float32), Discrete(2)),
        (Box(0, 1, (2,), np.float32), Box(0, 1, (2,), np.float64)),
        (Box(0, 1, (2,)), Box(0, 1, (2, 2))),
        (Discrete(2), Discrete(3, start=1)),
        (Dict(x=Discrete(2)), Dict(y=Discrete(2))),
        (Tuple([Discrete(2)]), Tuple([Discrete(2), Discrete(2)])),
        (Text(3), Text(4)),
        (Dict(x=Discrete(2)), Dict(x=Box(0, 1))),
    ],
)
def test_spaces_that_cannot_be_padded_are_refused(spaces):
    with pytest.raises(
        SpaceError, match=r"observation spaces of Mixed: expected spaces that can be padded.*small.*large"
    ):
        shoal.Serial(partial(Mixed, spaces, (Discrete(2), Discrete(2))))
    with pytest.raises(SpaceError, match=r"action spaces of Mixed: expected"):
        shoal.Serial(partial(Mixed, (Discrete(2), Discrete(2)), spaces))


def test_an_observation_that_is_too_small_is_not_padded_in_silence():
    class Wrong(Mixed):
        def _moment(self):
            return {"small": np.zeros(1, np.float32), "large": np.zeros(3, np.float32)}

    spaces = Box(0, 1, (2,)), Box(0, 1, (3,))
    with (
        shoal.Serial(partial(Wrong, spaces, spaces)) as vec,
        pytest.raises(ObservationError, match=r"expected shape \(3,\).*got an array of shape \(1,\).*env 0"),
    ):
        vec.reset(seed=0)


def test_a_space_without_bytes_cannot_be_flat():
    graph = Graph(Box(0, 1), None)
    with pytest.raises(SpaceError, match="Graph"):
        shoal.Serial(partial(Mixed, (graph, graph), (Discrete(2), Discrete(2))), flat=True)


class Nameless:
    """PettingZoo's parallel env, but for `possible_agents`."""

    agents = ("a", "b")
    observation_space, action_space = Troupe.observation_space, Troupe.action_space
    reset, step = Troupe.reset, Troupe.step


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_possible_agents(backend):
    text = r"Nameless has a method observation_space\(agent\), .* no possible_agents. Give it a list"
    with pytest.raises(ArgumentTypeError, match=text):
        BACKENDS[backend](Nameless, 2)


@pytest.mark.parametrize("names", [None, (), "player", 3, ["a", "a"]], ids=repr)
def test_possible_agents_that_are_no_names(names):
    env = type("Misnamed", (Nameless,), {"possible_agents": names})
    with pytest.raises(ArgumentTypeError, match="possible_agents of Misnamed: expected a list with the name"):
        shoal.Serial(env)
