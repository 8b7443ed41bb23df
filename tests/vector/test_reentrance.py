"""Verbs that are called while the envs move: by an env, or from another thread."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, OneOf, Text

import shoal
from shoal.errors import AlreadyPending, CallError, Closed
from shoal.testing import SampleEnv

pytestmark = pytest.mark.core

ACTION_SPACES = {"plain": Discrete(2), "text": Text(5), "either": OneOf([Discrete(2), Text(3)])}


class Calls(gymnasium.Env):
    """Calls something in the middle of its second step."""

    observation_space = Box(0, 9, (1,))

    def __init__(self, action_space, call):
        self.action_space, self.call = action_space, call

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        self.steps += 1
        if self.steps == 2:
            self.call()
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("verb", ["reset", "step", "recv", "restore", "snapshot"])
@pytest.mark.parametrize("space", ACTION_SPACES.values(), ids=ACTION_SPACES)
def test_an_env_cannot_move_the_vec_that_it_is_part_of(space, verb):
    def call():
        arguments = {"step": [vec.action_space.sample()], "restore": [saved]}
        getattr(vec, verb)(*arguments.get(verb, []))

    with shoal.Serial(lambda: Calls(space, lambda: call()), 3) as vec:
        vec.reset(seed=0)
        saved = {"kind": {}}
        vec.step(vec.action_space.sample())
        with pytest.raises(AlreadyPending, match=r"the envs are moving.* called by an env"):
            vec.step(vec.action_space.sample())
        vec.reset(seed=0)
        vec.step(vec.action_space.sample())


def test_a_vec_that_an_env_closes_stays_closed():
    vec = shoal.Serial(lambda: Calls(Discrete(2), lambda: vec.close()), 3)
    vec.reset(seed=0)
    vec.step([0, 0, 0])
    with pytest.raises(Closed, match="closed while its envs were moving"):
        vec.step([0, 0, 0])
    with pytest.raises(Closed, match="has been closed"):
        vec.step([0, 0, 0])


def test_threads_get_a_whole_step_or_an_error():
    vec = shoal.Serial(partial(SampleEnv, Box(0, 1, (3,)), Text(5)), 4)
    vec.reset(seed=0)
    actions = vec.action_space.sample()
    unexpected = []

    def work():
        for _ in range(300):
            try:
                vec.step(actions)
            except CallError:
                pass  # a verb out of turn
            except Exception as error:
                unexpected.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    vec.close()
    assert not unexpected
