from collections import OrderedDict
from copy import deepcopy

import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal.errors import ArgumentError, ObservationError
from shoal.testing import check_env
from shoal.testing.contract import difference
from tests.envs import Turns

pytestmark = [pytest.mark.core, pytest.mark.twins]


class Herd(shoal.Env):
    """Three agents. Agent a dies at step lives[a]; ``returns`` brings the first back one step later."""

    observation_space = sp.Box(-100, 100, (1,))
    action_space = sp.Discrete(5)
    num_agents = 3

    def __init__(self, lives=(2, 3, 4), *, returns=False, buf=None):
        super().__init__(buf)
        self.lives, self.returns = np.array(lives), returns
        self.resets = 0

    def reset(self, seed=None, options=None):
        self.count = 0
        self.resets += 1
        self.observations[:] = 0
        return {"reset": self.resets}

    def step(self, actions):
        self.count += 1
        self.observations[self.mask, 0] = self.count
        self.rewards[:] = actions  # also for the dead: the vec must ignore it
        if self.returns and self.count == self.lives[0] + 1:
            self.mask[0] = True
        self.terminations[:] = self.count == self.lives
        return [{"agent": agent} for agent in range(3)] if self.count == 1 else None


def run(vec, steps):
    vec.async_reset(seed=0)
    batches = [vec.recv()]
    for _ in range(steps):
        vec.send([1, 2, 3])
        batches.append(vec.recv())
    return batches


def test_agents_die_one_by_one():
    with shoal.Serial(Herd, episode_stats=True) as vec:
        assert (vec.num_envs, vec.num_rows, vec.agents_per_env) == (1, 3, 3)
        batches = run(vec, 6)
    assert [b.rewards.tolist() for b in batches] == [
        [0, 0, 0],
        [1, 2, 3],
        [1, 2, 3],  # the first one's last
        [0, 2, 3],
        [0, 0, 3],  # nobody is left
        [0, 0, 0],  # autoreset
        [1, 2, 3],
    ]
    assert [b.terminations.tolist() for b in batches[2:5]] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    assert [b.mask.tolist() for b in batches[2:6]] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
        [True, True, True],
    ]
    assert [b.resets.tolist() for b in batches[3:6]] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert [b.infos["episode"]["r"].tolist() for b in batches[2:5]] == [[2, 0, 0], [0, 6, 0], [0, 0, 12]]
    assert [b.infos["episode"]["l"].tolist() for b in batches[2:5]] == [[2, 0, 0], [0, 3, 0], [0, 0, 4]]
    assert batches[1].infos["agent"].tolist() == [0, 1, 2]
    assert batches[5].infos["reset"].tolist() == [2, 0, 0]
    assert batches[0].agent_ids.tolist() == [0, 1, 2]


def test_the_same_in_one_step():
    with shoal.Serial(Herd, autoreset_mode="SameStep") as vec:
        batches = run(vec, 5)
    end = batches[4]
    assert end.terminations.tolist() == [False, False, True]
    assert end.mask.tolist() == [True, True, True]
    assert end.obs.tolist() == [[0], [0], [0]]
    assert [None if o is None else o.tolist() for o in end.infos["final_obs"]] == [None, None, [4]]
    assert batches[5].rewards.tolist() == [1, 2, 3]


def test_an_agent_may_return():
    with shoal.Serial(lambda: Herd((2, 9, 9), returns=True), episode_stats=True) as vec:
        batches = run(vec, 5)
    assert batches[2].mask.tolist() == [False, True, True]
    assert batches[3].mask.tolist() == [True, True, True]
    assert batches[3].resets.tolist() == [True, False, False]  # its row begins an episode
    assert batches[3].rewards.tolist() == [0, 2, 3]
    assert batches[4].rewards.tolist() == [1, 2, 3]


def test_actions_of_agents_that_do_not_act_are_not_read():
    with shoal.Serial(Herd) as vec:
        vec.reset()
        vec.step([1, 2, 3])
        vec.step([1, 2, 3])
        vec.step([999, 2, 3])
        with pytest.raises(ValueError, match="action of env 0, agent 2"):
            vec.step([1, 999, 999])


def test_a_snapshot_remembers_who_has_finished():
    class Stubborn(Herd):
        """Goes on to write flags for the dead, and brings the first one back at its fifth step."""

        def step(self, actions):
            super().step(actions)
            self.terminations[:] = self.count >= self.lives
            self.mask[0] = self.mask[0] or self.count == 5

    with shoal.Serial(lambda: Stubborn((2, 7, 7))) as vec:
        vec.reset(seed=0)
        for _ in range(3):
            vec.step([1, 1, 1])
        saved = vec.snapshot()
        futures = []
        for _ in range(2):
            vec.restore(saved)
            futures.append([(vec.step([1, 1, 1])[1:4], vec.mask.tolist()) for _ in range(6)])  # past its end
        assert difference(*futures) is None
        assert futures[0][1][1] == [True, True, True]  # back, whatever flag the env writes for it
        assert futures[0][2][1] == [False, True, True]  # and finished once more


def test_an_env_may_change_its_options():
    class Greedy(Herd):
        def reset(self, seed=None, options=None):
            super().reset()
            return {"level": options.pop("level")}

    options = {"level": 3}
    with shoal.Serial(Greedy, 2) as vec:
        assert vec.reset(options=options)[1]["level"].tolist() == [3, 0, 0, 3, 0, 0]
    assert options == {"level": 3}


def test_disabled():
    with shoal.Serial([Herd, lambda: Herd((1, 1, 1))], autoreset_mode="Disabled") as vec:
        vec.reset()
        vec.step([1] * 6)
        with pytest.raises(AssertionError, match=r"envs \[1\] have finished"):
            vec.step([1] * 6)
        vec.reset(options={"reset_mask": np.array([False, True])})
        assert vec.get_attr("resets") == (1, 2)
        vec.step([1] * 6)


def test_rows_as_envs():
    with shoal.Serial(Herd, num_envs=2, rows_as_envs=True) as vec:
        assert (vec.num_envs, vec.num_rows) == (6, 6)
        assert vec.get_attr("resets") == (0,) * 6
        vec.reset(seed=1, options={"reset_mask": np.ones(6, bool)})
        vec.set_attr("resets", vec.get_attr("resets"))
        vec.reset(seed=[1, 1, 1, 2, 2, 2])
        split = np.array([True] * 4 + [False] * 2)
        with pytest.raises(ArgumentError, match="splits env 1"):
            vec.reset(options={"reset_mask": split})


def test_an_env_alone_has_rows_of_its_own():
    herd = Herd()
    herd.reset()
    herd.step(np.array([1, 2, 3]))
    assert herd.observations.tolist() == [[1], [1], [1]]
    with pytest.raises(AttributeError, match="'Herd' object has no attribute 'typo'"):
        _ = herd.typo


def test_rows_may_be_given_to_the_constructor():
    from shoal.rows.arena import Arena

    layouts = shoal.layout(Herd.observation_space), shoal.layout(Herd.action_space)
    rows = Arena.allocate(3, *layouts)
    herd = Herd(buf=rows)
    herd.reset()
    herd.step(np.array([1, 2, 3]))
    assert rows.rewards.tolist() == [1, 2, 3]
    with pytest.raises(ArgumentError, match="expected 3 rows, one per agent, got 2"):
        herd.bind(Arena.allocate(2, *layouts))


class Scribe(shoal.Env):
    """Structured observations, packed whole."""

    observation_space = sp.Dict({"text": sp.Text(8), "n": sp.Discrete(99)})
    action_space = sp.Dict({"a": sp.Discrete(3), "b": sp.Box(-1, 1, (2,))})
    words = ("one", "two")

    def reset(self, seed=None, options=None):
        self.write(0, {"text": "begin", "n": 0})

    def step(self, actions):
        self.write(0, {"text": "step", "n": int(actions["a"][0])})


def test_structured_rows():
    with shoal.Serial(Scribe, num_envs=2) as vec:
        obs, _ = vec.reset()
        assert obs["text"] == ("begin", "begin")
        obs, *_ = vec.step({"a": [1, 2], "b": np.zeros((2, 2), np.float32)})
        assert (obs["text"], obs["n"].tolist()) == (("step", "step"), [1, 2])


def test_a_value_that_does_not_fit_names_the_env():
    class Wordy(Scribe):
        def step(self, actions):
            self.write(0, {"text": "far too long", "n": 0})

    with shoal.Serial([Scribe, Wordy]) as vec:
        vec.reset()
        with pytest.raises(ObservationError, match=r'observation\["text"\].* from step\(\) of env 1'):
            vec.step({"a": [0, 0], "b": np.zeros((2, 2))})


def test_an_env_that_raises_is_named():
    class Broken(Scribe):
        def step(self, actions):
            raise KeyError("oops")

    with shoal.Serial([Scribe, Broken]) as vec:
        vec.reset()
        with pytest.raises(KeyError, match="oops") as caught:
            vec.step({"a": [0, 0], "b": np.zeros((2, 2))})
        assert caught.value.__notes__ == ["raised by step() of env 1"]


def test_envs_with_different_numbers_of_agents_are_refused():
    class Two(Herd):
        num_agents = 2

    with pytest.raises(ArgumentError, match="same number of agents in every env, got 3 in the first and 2"):
        shoal.Serial([Herd, Two])


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_agent_that_waits_hears_what_its_last_action_led_to(mode):
    with shoal.Serial(Turns, autoreset_mode=mode, episode_stats=True) as vec:
        vec.async_reset(seed=0)
        batches = [vec.recv()]
        for _ in range(3):
            vec.send([0, 0])
            batches.append(vec.recv())
    assert [b.mask.tolist() for b in batches[:3]] == [[True, False], [False, True], [True, False]]
    # The second player has not acted yet in the first step; in the third it waits.
    assert [b.resets.tolist() for b in batches] == [
        [True, True],
        [False, True],
        [False, False],
        [False, False],
    ]
    assert batches[3].rewards.tolist() == [1, -1]
    assert batches[3].terminations.tolist() == [True, True]
    assert batches[3].infos["episode"]["r"].tolist() == [1, -1]
    assert batches[3].infos["episode"]["l"].tolist() == [2, 1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_game_that_ends_before_an_agent_has_acted_is_over(mode):
    class Blitz(Turns):
        def step(self, actions):
            assert self.moves == 0, "stepped after its end"
            self.moves += 1
            self.mask[:] = (False, True)
            self.terminations[:] = True

    with shoal.Serial(Blitz, autoreset_mode=mode) as vec:
        vec.reset()
        for _ in range(4):
            _, _, terminations, _, _ = vec.step([0, 0])
            assert terminations[0] == terminations[1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_agent_left_without_a_word_is_truncated(mode):
    class Silent(Turns):
        """Ends by clearing every mask after two moves."""

        def step(self, actions):
            super().step(actions)
            if self.moves == 2:
                self.mask[:] = False

    # Beside an env with flags, so that the two cannot depend on each other.
    with shoal.Serial([Silent, Turns], autoreset_mode=mode, episode_stats=True) as vec:
        vec.reset()
        lengths = []
        for _ in range(9):
            _, _, _, truncations, infos = vec.step([0] * 4)
            if truncations[:2].any():
                assert truncations[:2].tolist() == [True, True]
                lengths.append(infos["episode"]["l"][:2].tolist())
        assert len(lengths) >= 3
        assert lengths == [[1, 1]] * len(lengths)


def test_final_obs_of_an_agent_that_dies_before_its_env():
    with shoal.Serial(Herd, autoreset_mode="SameStep") as vec:
        vec.reset()
        vec.step([1, 1, 1])
        infos = vec.step([1, 1, 1])[-1]
        assert infos["_final_obs"].tolist() == [True, False, False]
        assert infos["final_obs"][0].tolist() == [2]


def test_equal_spaces_with_keys_in_another_order():
    def create(keys):
        class Ordered(shoal.Env):
            observation_space = sp.Dict(OrderedDict((key, sp.Box(0, 9, (1,))) for key in keys))
            action_space = sp.Discrete(2)

            def reset(self, seed=None, options=None):
                self.observations["a"][:] = 1
                self.observations["b"][:] = 2

        return Ordered

    with shoal.Serial([create("ab"), create("ba")]) as vec:
        obs, _ = vec.reset()
        assert (obs["a"].tolist(), obs["b"].tolist()) == ([[1], [1]], [[2], [2]])


def test_actions_are_a_dict_that_can_be_copied():
    seen = []

    class Copies(Scribe):
        def step(self, actions):
            seen.append(deepcopy(actions))
            assert isinstance(actions, dict)

    with shoal.Serial(Copies) as vec:
        vec.reset()
        for a in (1, 2):
            vec.step({"a": [a], "b": np.zeros((1, 2))})
    assert [int(actions["a"][0]) for actions in seen] == [1, 2]


def test_the_last_info_of_an_env_is_kept_in_the_same_step():
    class Counting(Herd):
        def step(self, actions):
            super().step(actions)
            return {"count": self.count}

    with shoal.Serial(lambda: Counting((1, 2, 2)), autoreset_mode="SameStep") as vec:
        vec.reset()
        vec.step([1, 1, 1])
        infos = vec.step([1, 1, 1])[-1]
        assert infos["final_info"]["count"].tolist() == [2, 0, 0]
        assert infos["_final_obs"].tolist() == [False, True, True]


def test_rows_bound_anew_are_the_ones_written():
    def used_before():
        scribe = Scribe()
        scribe.reset()
        return scribe

    with shoal.Serial(used_before) as vec:
        vec.reset()
        obs, *_ = vec.step({"a": [2], "b": np.zeros((1, 2))})
        assert (obs["text"], obs["n"].tolist()) == (("step",), [2])


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([{}, {}, {}, {"a": 1}], r"step\(\): expected nothing, an info or a list of up to 3, got a list"),
        ((np.zeros(3), 0.0, False, False, {}), r"step\(\): expected nothing, .* got a tuple"),
    ],
    ids=["too many", "Gymnasium's tuple"],
)
def test_infos_that_make_no_sense(said, text):
    class Talkative(Herd):
        def step(self, actions):
            return said

    with shoal.Serial([Talkative, Herd]) as vec:
        vec.reset()
        with pytest.raises(ObservationError, match=rf"{text}, from step\(\) of env 0"):
            vec.step([1] * 6)


@pytest.mark.parametrize("name", ["observations", "rewards", "terminations", "truncations", "mask"])
def test_an_array_put_in_the_place_of_a_row_is_noticed(name):
    class Forgetful(Herd):
        def step(self, actions):
            setattr(self, name, np.ones(3))

    with shoal.Serial(Forgetful) as vec:
        vec.reset()
        with pytest.raises(
            ObservationError, match=rf"write self.{name}\[...\] = x, not self.{name} = x, from"
        ):
            vec.step([1, 1, 1])


def test_a_leaf_put_in_the_place_of_a_view_is_refused():
    class Forgetful(Scribe):
        def step(self, actions):
            self.observations["n"] = np.ones(1)

    with shoal.Serial(Forgetful) as vec:
        vec.reset()
        with pytest.raises(TypeError, match=r"write into the row: \[.n.\]\[...\] = x"):
            vec.step({"a": [0], "b": np.zeros((1, 2))})


def test_somebody_must_act_after_a_reset():
    class Asleep(Herd):
        def reset(self, seed=None, options=None):
            self.mask[:] = False

    with (
        shoal.Serial(Asleep) as vec,
        pytest.raises(ObservationError, match=r"mask: expected an agent that acts"),
    ):
        vec.reset()


def test_a_first_step_needs_a_reset():
    with shoal.Serial(Herd) as vec:
        with pytest.raises(shoal.errors.ResetNeeded, match=r"before its first reset"):
            vec.step([1, 1, 1])
        vec.reset()
        vec.step([1, 1, 1])


def test_a_random_stream_as_in_gymnasium():
    class Random(Herd):
        def reset(self, seed=None, options=None):
            super(Herd, self).reset(seed=seed)
            self.count = 0
            self.observations[:, 0] = self.np_random.random(3)

    with shoal.Serial(Random, 2) as vec:
        first, _ = vec.reset(seed=3)
        again, _ = vec.reset(seed=3)
        assert first.tolist() == again.tolist()
        assert vec.reset()[0].tolist() != first.tolist()
        assert vec.np_random_seed == (3, 4)
    alone = Random()
    alone.reset()
    assert alone.np_random_seed >= 0


def test_an_env_needs_agents():
    class Nobody(Herd):
        num_agents = 0

    with pytest.raises(ArgumentError, match=r"num_agents of Nobody: expected a positive integer, got 0"):
        shoal.Serial(Nobody)


def test_a_value_that_does_not_fit_an_env_alone():
    with pytest.raises(ObservationError, match=r'value\["n"\]: missing'):
        Scribe().write(0, {"text": "a"})
    with pytest.raises(ArgumentError, match=r"agent: expected one from 0 to 0, got 7"):
        Scribe().write(7, {"text": "a", "n": 1})


def test_what_an_author_must_define():
    class Empty(shoal.Env):
        observation_space = sp.Discrete(2)
        action_space = sp.Discrete(2)

    with shoal.Serial(Empty) as vec:
        with pytest.raises(NotImplementedError, match=r"Empty must define reset\(\)"):
            vec.reset()
        with pytest.raises(NotImplementedError, match=r"does not define render"):
            vec.render()
    with shoal.Serial(Herd) as vec:
        vec.reset()
        with pytest.raises(NotImplementedError, match=r"Empty must define step\(\)"):
            Empty().step(0)


def test_check_env_takes_it():
    check_env(Herd)
    check_env(Scribe)
