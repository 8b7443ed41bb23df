"""Last observations: a value of the space, or a flat row, that no later reset or step changes."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence

import shoal
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.stepping.results import last_observation
from shoal.testing.contract import difference
from shoal.testing.spaces import SPACES

pytestmark = [pytest.mark.core, pytest.mark.twins]


class Played(gymnasium.Env):
    """Ends with each step; its observations are those of a list, one after another."""

    action_space = Discrete(2)

    def __init__(self, space):
        space.seed(0)
        self.observation_space, self.observations = space, [space.sample() for _ in range(5)]
        self.count = -1

    def observe(self):
        self.count += 1
        return self.observations[self.count]

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, True, False, {}


class PlayedInPlace(shoal.Env):
    action_space, num_agents = Discrete(2), 1

    def __init__(self, space):
        super().__init__()
        self.played = Played(space)
        self.observation_space = space

    def reset(self, seed=None, options=None):
        self.write(0, self.played.observe())

    def step(self, actions):
        self.write(0, self.played.observe())
        self.terminations[:] = True


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("kind", [Played, PlayedInPlace])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: str(space)[:60])
def test_last_observations_are_those_of_the_env(space, kind, flat):
    layout = Layout(space)
    expected = Played(space).observations[1]
    with shoal.Serial(lambda: kind(space), 1, autoreset_mode="SameStep", flat=flat) as vec:
        vec.reset()
        final = vec.step([0])[-1]["final_obs"][0]
        if flat:
            assert final in vec.single_observation_space
            expected = layout.pack(expected)
        vec.step([0])
        assert difference(final, expected) is None, difference(final, expected)


@pytest.mark.parametrize("kind", [Played, PlayedInPlace])
def test_objects_of_last_observations_are_copied(kind):
    space = Dict({"bag": Sequence(Box(0, 1, (2,))), "place": Discrete(5)})
    played = []

    def make():
        played.append(kind(space))
        return played[0]

    with shoal.Serial(make, 1, autoreset_mode="SameStep") as vec:
        vec.reset()
        final = vec.step([0])[-1]["final_obs"][0]
        own = getattr(played[0], "played", played[0]).observations
        assert difference(final, own[1]) is None, difference(final, own[1])
        assert final["bag"] is not own[1]["bag"]


def test_a_last_observation_shares_nothing_with_its_row():
    layout = Layout(Dict({"object": Sequence(Discrete(3)), "array": Box(0, 9, (2,))}), objects=True)
    arena = Arena.allocate(2, layout, Layout(Discrete(2)))
    arena.observation_objects[1, 0] = kept = [np.zeros(1)]
    last = last_observation(arena, 1, layout, flat=False)
    arena.observations[:] = 99
    kept[0][:] = 99
    assert last["array"].tolist() == [0, 0]
    assert last["object"][0].tolist() == [0]
