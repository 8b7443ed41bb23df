"""Keys of an observation that its Dict space does not declare: one warning that names them."""

import subprocess
import sys
import warnings
from collections import OrderedDict, UserDict
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, OneOf

import shoal
from shoal import _core
from shoal.errors import UndeclaredKeyWarning
from shoal.rows.layout import Layout
from shoal.testing import SampleEnv, check_env
from shoal.testing.contract import ContractViolation

pytestmark = [pytest.mark.core, pytest.mark.twins]

SPACE = Dict({"place": Discrete(9), "body": Dict({"speed": Box(-1, 1, (2,), np.float32)})})


class Extra(SampleEnv):
    """Changes its observations, after the first ones."""

    def __init__(self, change, first=0, space=SPACE, **kwargs):
        super().__init__(space, Discrete(3), **kwargs)
        self.change, self.first, self.calls = change, first, 0

    def changed(self, obs):
        self.calls += 1
        return self.change(obs) if self.calls > self.first else obs

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return self.changed(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return self.changed(obs), *rest


def add_above(obs):
    return {**obs, "goal": 1}


def add_below(obs):
    return {**obs, "body": {**obs["body"], "mass": 1, "age": 2}}


def add_both(obs):
    return {**add_below(obs), "goal": 1}


def warned_by(env, *, num_envs=3, steps=12, flat=False):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with shoal.Serial(env, num_envs, flat=flat) as vec:
            vec.reset(seed=0)
            for _ in range(steps):
                vec.step([0] * vec.num_rows)
    assert {each.category for each in caught} <= {UndeclaredKeyWarning}
    assert {each.filename for each in caught} <= {__file__}  # it points to the caller's line
    return [str(each.message) for each in caught]


ABOVE = (
    "observation: the env returned the key 'goal', which its Dict space does not declare. It is left out. "
    "Declared: 'body', 'place'"
)
BELOW = (
    "observation[\"body\"]: the env returned the keys 'mass', 'age', which its Dict space does not declare. "
    "They are left out. Declared: 'speed'"
)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("first", [0, 10], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("change", "texts"), [(add_above, [ABOVE]), (add_below, [BELOW]), (add_both, [BELOW, ABOVE])]
)
def test_one_warning_for_each_dict(change, texts, first, flat):
    assert warned_by(partial(Extra, change, first), flat=flat) == texts


@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_mappings_of_other_types(kind):
    assert warned_by(partial(Extra, lambda obs: kind(add_above(obs)))) == [ABOVE]


def test_declared_keys_alone_do_not_warn():
    assert warned_by(partial(Extra, lambda obs: obs)) == []
    assert warned_by(partial(Extra, lambda obs: OrderedDict(reversed(obs.items())))) == []


def test_a_dict_inside_a_oneof():
    space = Dict({"one": OneOf([Dict({"place": Discrete(2)})])})
    (text,) = warned_by(partial(Extra, lambda obs: {"one": (0, {"place": 1, "x": 2})}, space=space))
    assert text.startswith("observation[\"one\"][0]: the env returned the key 'x'")


def test_many_keys_are_not_all_listed():
    (text,) = warned_by(partial(Extra, lambda obs: {**obs, **{f"key{n}": n for n in range(30)}}))
    assert "'key9' and 20 more, which" in text
    assert "key10" not in text


def test_every_vec_warns():
    for _ in range(2):
        assert warned_by(partial(Extra, add_above)) == [ABOVE]


def test_a_warning_that_is_an_error_names_the_env():
    with shoal.Serial([partial(Extra, lambda obs: obs), partial(Extra, add_above, 1)]) as vec:
        vec.reset(seed=0)
        with pytest.raises(UndeclaredKeyWarning, match="'goal'") as caught:
            vec.step([0, 0])
        assert caught.value.__notes__ == ["raised by step() of env 1"]


class InPlace(shoal.Env):
    observation_space, action_space = SPACE, Discrete(3)
    value = {"place": 1, "body": {"speed": np.zeros(2, np.float32)}, "goal": 2}

    def reset(self, seed=None, options=None):
        self.write(0, self.value)

    def step(self, actions):
        self.write(0, self.value)


def test_envs_that_write_in_place():
    assert warned_by(InPlace) == [ABOVE]


class Agents:
    """A PettingZoo env whose agents have different spaces, which are padded."""

    metadata, possible_agents = {}, ["small", "large"]
    sizes = {"small": 1, "large": 2}

    def observation_space(self, agent):
        return Dict({"sight": Box(0, 1, (self.sizes[agent],), np.float32)})

    def action_space(self, agent):
        return Discrete(3)

    def _seen(self):
        seen = {agent: {"sight": np.zeros(size, np.float32)} for agent, size in self.sizes.items()}
        seen["small"]["goal"] = 1  # of the agent whose observations are padded
        return seen

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents
        return self._seen(), {}

    def step(self, actions):
        flags = dict.fromkeys(self.agents, False)
        return self._seen(), dict.fromkeys(self.agents, 0.0), flags, flags, {}


def test_agents_with_different_spaces():
    (text,) = warned_by(Agents)
    assert "the key 'goal'" in text
    assert text.endswith("Declared: 'sight'")


class Many(gymnasium.vector.VectorEnv):
    num_envs, metadata = 2, {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = Dict({"place": Discrete(9)}), Discrete(3)

    def __init__(self):
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)

    def _obs(self):
        return {"place": np.zeros(2, np.int64), "goal": np.zeros(2)}

    def reset(self, *, seed=None, options=None):
        return self._obs(), {}

    def step(self, actions):
        return self._obs(), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}


def test_vector_envs_inside_a_vec():
    (text,) = warned_by([Many], num_envs=None)
    assert "the key 'goal'" in text
    assert text.endswith("Declared: 'place'")


def test_packing_by_hand_does_not_warn():
    value = {"place": 1, "body": {"speed": np.zeros(2, np.float32)}}
    layout = Layout(SPACE)
    assert np.array_equal(layout.pack(add_both(value)), layout.pack(value))


@pytest.mark.parametrize("first", [0, 50], ids=["at once", "later"])
def test_check_env_reports_it(first):
    check_env(partial(Extra, lambda obs: obs))
    promise = "observations must have only keys that the observation_space declares: observation: .*'goal'"
    with pytest.raises(ContractViolation, match=promise):
        check_env(partial(Extra, add_above, first))


IN_WORKERS = """
from functools import partial
import shoal
from tests.rows.test_undeclared import Extra, add_above
with shoal.Multiprocessing(partial(Extra, add_above, 4), 4, num_workers=2) as vec:
    vec.reset(seed=0)
    for _ in range(20):
        vec.step([0] * 4)
"""


@pytest.mark.skipif(_core.NAME != "native", reason="workers need the core")
def test_a_worker_warns_on_standard_error():
    done = subprocess.run(
        [sys.executable, "-c", IN_WORKERS], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stderr.count(f"UndeclaredKeyWarning: {ABOVE}\n") == 2  # one for each worker
