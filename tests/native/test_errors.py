"""A class that cannot work is refused when it is made, with the line and what to do."""

import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, OneOf, Sequence

import shoal
from shoal.errors import ArgumentError, ArgumentTypeError, NativeError, SpaceError

UNKNOWN = object()


def make(reset=None, step=None, **attributes):
    """A class with what is usual, but for this."""

    def usual_reset(obs):
        obs[0] = 0.0

    def usual_step(obs):
        return 0.0, False

    body = {
        "observation_space": Box(-1, 1, (2,), np.float32),
        "action_space": Discrete(2),
        "state": np.dtype([("place", np.int32), ("map", np.int8, (3,))]),
        "reset": staticmethod(reset or usual_reset),
        "step": staticmethod(step or usual_step),
        **attributes,
    }
    body = {name: value for name, value in body.items() if value is not None}
    return type("Mine", (shoal.NativeEnv,), body)


def compile_it(**attributes):
    """Use such a class, whose checks find nothing, for the first time."""
    mine = make(**attributes)
    shoal.make(mine).close()


def wrong_raise(state):
    if state.place > 3:
        raise ValueError("too far")
    return 0.0, False


def wrong_assert(state):
    assert state.place < 3
    return 0.0, False


def wrong_try(state):
    try:
        state.place += 1
    except ValueError:
        state.place = 0
    return 0.0, False


def wrong_dict():
    table = {"a": 1}
    return table["a"], False


def wrong_text(state):
    name = f"{state.place}"
    return len(name), False


def wrong_import():
    import math

    return math.pi, False


def wrong_index(obs):
    obs[2] = 1.0
    return 0.0, False


def wrong_shape(obs):
    obs[:] = np.zeros(3)
    return 0.0, False


def wrong_name():
    return nothing_of_that_name, False  # noqa: F821


def wrong_field(state):
    state.plaice = 1
    return 0.0, False


def wrong_result():
    return 1.0


def wrong_random(state):
    return np.random.random(), False  # noqa: NPY002


def drawn():
    return np.random.random()  # noqa: NPY002


def wrong_random_elsewhere(state):
    return drawn(), False


def wrong_action(action):
    action[0] = 0.0
    return 0.0, False


def wrong_rare_path(state):
    if state.place > 100:
        return None, False
    return None, True


def wrong_text_in_number(state):
    state.place = "far"
    return 0.0, False


@pytest.mark.parametrize(
    ("step", "line", "text"),
    [
        (wrong_raise, 'raise ValueError("too far")', "nobody to raise to inside a kernel"),
        (wrong_assert, "assert state.place < 3", "nobody to raise to inside a kernel"),
        (wrong_try, "try:", "nothing is raised inside a kernel.* Test with if, before it happens"),
        (wrong_dict, 'table = {"a": 1}', "dicts are not compiled"),
        (wrong_text, 'name = f"{state.place}"', "text is not compiled"),
        (wrong_import, "import math", "import at the top of the file"),
        (wrong_index, "obs[2] = 1.0", "IndexError: index 2 is out of bounds for axis 0 with size 2"),
        (wrong_shape, "obs[:] = np.zeros(3)", r"ValueError: could not broadcast"),
        (wrong_name, "return nothing_of_that_name, False", "NameError: .* Define it above the class"),
        (wrong_field, "state.plaice = 1", "there is no field 'plaice'. The fields are place, map"),
        (wrong_random, "return np.random.random(), False", "would not follow the seed.* Ask for rng"),
        (wrong_text_in_number, 'state.place = "far"', "ValueError: invalid literal"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_line_is_shown(step, line, text):
    with pytest.raises(NativeError, match=text) as caught:
        make(step=step)
    said = str(caught.value)
    assert said.startswith("Mine.step, line ")
    assert line in said.splitlines()[1]
    number = int(re.match(r"Mine.step, line (\d+) of .*test_errors.py:", said)[1])
    assert line in Path(__file__).read_text().splitlines()[number - 1]


def of_gymnasium(state, obs):
    info = {"place": state.place}
    if state.place < 100:
        return obs, 1.0, False, False, info
    return obs, 1.0, True, False, {}


def of_old_gym(obs):
    return obs, 1.0, False, {}


def rebinds(state, obs):
    obs = np.array([state.place, 0.0], np.float32)
    return float(obs[0]), False


def rebinds_in_passing(obs):
    obs, reward = np.zeros(2), 1.0  # noqa: F841
    return reward, False


def rebinds_the_state(state):
    state = 3
    return state, False


def looks(state, obs):
    obs = np.array([state.place, 0.0], np.float32)  # noqa: F841


def rebinds_elsewhere(state, obs):
    looks(state, obs)
    return 0.0, False


@pytest.mark.parametrize(
    ("step", "verb", "line", "text"),
    [
        (of_gymnasium, "step", "return obs, 1.0, False, False, info", "step must return .reward, terminated"),
        (of_old_gym, "step", "return obs, 1.0, False, {}", "Write observations into obs"),
        (rebinds, "step", "obs = np.array", r"the name obs to a new value.* in place: obs\[:\] = \.\.\."),
        (rebinds_in_passing, "step", "obs, reward = np.zeros(2), 1.0", "the name obs to a new value"),
        (rebinds_the_state, "step", "state = 3", r"in place: state.field = \.\.\."),
        (rebinds_elsewhere, "looks", "obs = np.array", "the name obs to a new value"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_gymnasiums_envs_do_and_these_do_not(step, verb, line, text):
    with pytest.raises(NativeError, match=text) as caught:
        make(step=step)
    where, shown, *_ = str(caught.value).splitlines()
    assert where.startswith(f"Mine.{verb}, line ")
    assert line in shown


def returns_both(obs):
    obs[:] = 0.0
    return obs, {}


def returns_what_is_called(obs):
    return np.zeros(2)


def rebinds_at_reset(obs):
    obs = np.zeros(2)  # noqa: F841


def returns_nothing(state, obs):
    if state.place > 3:
        return None
    return looks_well(state, obs)


def looks_well(state, obs):
    obs[0] = state.place
    scaled = [2 * obs for obs in range(3)]  # a name of its own
    obs[1] = scaled[0]


@pytest.mark.parametrize(
    ("reset", "text"),
    [
        (returns_both, r"(?s)return obs, {}\nreset must return nothing. Write the observation into obs"),
        (returns_what_is_called, "Mine.reset must return nothing, got array.* Write into obs"),
        (rebinds_at_reset, "the name obs to a new value"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_reset_must_return(reset, text):
    make(reset=returns_nothing)
    with pytest.raises(NativeError, match=text):
        make(reset=reset)


def rebinds_alive(alive):
    alive = np.zeros(2, np.bool_)  # noqa: F841


def rebinds_rewards(rewards, terminated):
    terminated[0] = True
    rewards = terminated * 1.0  # noqa: F841


def returns_rewards(obs, rewards):
    return rewards, obs[:, 0] > 1


def adds_in_place(obs, rewards):
    rewards += 1.0
    obs += 0.0


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (rebinds_alive, r"the name alive .* in place: alive\[:\]"),
        (rebinds_rewards, r"the name rewards .* in place: rewards\[:\]"),
        (returns_rewards, "step of several agents must return nothing. Write into obs, rewards and termin"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_teams_must_write(step, text):
    def reset(obs):
        obs[:] = 0.0

    make(reset=reset, step=adds_in_place, num_agents=2)
    with pytest.raises(NativeError, match=text):
        make(reset=reset, step=step, num_agents=2)


def chooses(rng):
    return rng.choice(3), False


def chooses_rarely(state, rng):
    if state.place > 100:
        return rng.choice(3), False
    return 0.0, False


def test_what_a_stream_has():
    text = (
        r"rng has uniform\(low, high\), normal\(mean, deviation\) and integers\(low, high\), and no choice: "
    )
    with pytest.raises(NativeError, match=text):
        make(step=chooses)
    if shoal._core.NAME == "native":
        with pytest.raises(NativeError, match=text):
            compile_it(step=chooses_rarely)


def goes_too_far(state, obs):
    state.place += 1
    obs[0 if state.place < 25 else state.place] = 0.0
    return 0.0, False


def test_an_index_that_is_wrong_later():
    mine = make(step=goes_too_far)
    with pytest.raises(IndexError, match="index 25 is out of bounds") as caught:
        shoal.testing.check_env(mine)
    assert caught.value.__notes__ == ["raised by Mine.step() of env 0, in step 25 of its episode"]
    with pytest.raises(IndexError, match="index 25 is out of bounds"):
        shoal.testing.check_env(lambda: mine(debug=True))


def falls_behind(state, obs, config):
    state.place += 1
    obs[0 if state.place < config.limit else 2] = 0.0
    return 0.0, state.place == 4


def test_debugging_tells_which_env_and_step():
    mine = make(step=falls_behind, parameters={"limit": 1000})
    limits = {"limit": np.array([1000, 1000, 3])}
    for options in ({}, {"batch_size": 1}):
        with shoal.make(mine, 3, env_kwargs=limits, debug=True, **options) as vec:
            vec.async_reset(seed=0)

            def play(vec=vec):
                for _ in range(20):
                    vec.send(np.zeros(len(vec.recv().rewards), np.int64))

            with pytest.raises(IndexError, match="index 2 is out of bounds") as caught:
                play()
        assert caught.value.__notes__ == ["raised by Mine.step() of env 2, in step 3 of its episode"]


def crowds(state, rewards, obs):
    state.place += 1
    rewards[0] = obs[2 if state.place == 7 else 0, 0]


def test_debugging_tells_of_teams_and_resets():
    def reset(state, obs, config):
        obs[0 if config.fine else 2] = 0.0

    mine = make(reset=reset, step=crowds, num_agents=2, parameters={"fine": True})
    with pytest.raises(IndexError, match="index 2 is out of bounds") as caught:
        shoal.testing.check_env(mine)
    assert caught.value.__notes__ == ["raised by Mine.step() of env 0, in step 7 of its episode"]
    with (
        shoal.make(mine, 2, env_kwargs={"fine": [True, False]}, debug=True) as vec,
        pytest.raises(IndexError, match="index 2 is out of bounds") as caught,
    ):
        vec.reset(seed=0)
    assert caught.value.__notes__ == ["raised by Mine.reset() of env 1"]


def test_what_step_must_return():
    with pytest.raises(NativeError, match=r"Mine.step must return \(reward, terminated\).*got 1.0"):
        make(step=wrong_result)


def test_that_both_are_numbers():
    with pytest.raises(
        NativeError, match=r"Mine.step must return \(reward, terminated\).*got \(None, True\)"
    ):
        make(step=wrong_rare_path)


def nothing_on_a_rare_path(state):
    if state.place > 100:
        return None
    return 0.0, False


def a_field_on_a_rare_path(state):
    if state.place > 100:
        state.plaice = 1
    return 0.0, False


@pytest.mark.skipif(shoal._core.NAME != "native", reason="says nothing of Numba")
def test_paths_that_no_check_has_taken():
    with pytest.raises(NativeError, match=r"Mine.step must return \(reward, terminated\) on every path"):
        compile_it(step=nothing_on_a_rare_path)
    with pytest.raises(NativeError, match="there is no field 'plaice'"):
        compile_it(step=a_field_on_a_rare_path)


def prints(state):
    print("here", state.place)
    return 1.0, False


def test_what_only_debugging_can_do(capsys):
    mine = make(step=prints)
    with shoal.make(mine, 1, debug=True) as vec:
        vec.reset(seed=0)
        vec.step([0])
    assert capsys.readouterr().out == "here 0\n"
    if shoal._core.NAME == "native":
        with pytest.raises(
            NativeError, match=r'(?s)print\("here", state.place\)\nonly debug=True can do that'
        ):
            shoal.make(mine, 1)


def test_random_numbers_in_a_function_that_is_called():
    with pytest.raises(NativeError, match=r"(?s)Mine.drawn, line \d+.*np.random.random.*Ask for rng"):
        make(step=wrong_random_elsewhere)


def clipped(action):
    action[0] = min(action[0], 0.5)
    return action[0]


def wrong_action_elsewhere(action):
    return clipped(action), False


def test_actions_are_only_to_be_read():
    box = Box(-1, 1, (2,), np.float32)
    with pytest.raises(NativeError, match="actions are the caller's, and only to be read"):
        make(step=wrong_action, action_space=box)
    with pytest.raises(NativeError, match=r"caller's, and only to be read|read-only"):
        make(step=wrong_action_elsewhere, action_space=box)


def test_constants_are_copied():
    table = np.array([1, 2])
    mine = make(constants={"table": table})
    with shoal.make(mine, 1, env_kwargs={"table": table}, debug=True):
        table[0] = 5  # still the caller's
    with pytest.raises(ArgumentError, match=r"constants\['table'\]: expected an array of int64"):
        shoal.make(mine, 1, env_kwargs={"table": [0.5, 1.5]}, debug=True)


def only_in_python(state):
    state.place = len(str(UNKNOWN)) * 0
    return 0.0, False


def two_kinds(state):
    value = 1.0
    if state.place > 100:
        value = np.zeros(3)
    state.place = int(np.sum(value))
    return 0.0, False


@pytest.mark.skipif(shoal._core.NAME != "native", reason="says nothing of Numba")
@pytest.mark.parametrize(
    ("step", "line", "text"),
    [
        (only_in_python, "state.place = len(str(UNKNOWN)) * 0", "cannot be compiled|UNKNOWN is nothing"),
        (two_kinds, "value", "the variable value is once .* and once|cannot be compiled"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_numba_refuses_is_said_in_words(step, line, text):
    with pytest.raises(NativeError, match=text) as caught:
        compile_it(step=step)
    said = str(caught.value)
    assert "Mine.step, line " in said
    assert line in said
    assert "nopython" not in said
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"observation_space": None}, "Mine must define observation_space"),
        ({"observation_space": 3}, "Mine.observation_space: expected a Gymnasium space, got 3"),
        ({"action_space": OneOf([Discrete(2), Discrete(3)])}, "Mine.action_space: expected Box, Discrete"),
        ({"observation_space": Box(0, 1, (2,), np.float16)}, "Mine.observation_space: expected Box"),
        ({"state": np.dtype(np.int32)}, "Mine.state: expected fields with names"),
        ({"state": np.dtype([("what", object)])}, r"Mine.state\['what'\]: expected numbers or bools"),
        ({"state": "nothing"}, "Mine.state: expected a structured dtype"),
        (
            {"state": {"place": 0.0}},
            r"Mine.state: expected a structured dtype, such as np.dtype\(.*\), got {'place': 0.0}$",
        ),
        ({"num_agents": 0}, "Mine.num_agents: expected a positive integer, got 0"),
        ({"max_episode_steps": -1}, "Mine.max_episode_steps: expected a positive integer, got -1"),
        ({"constants": {"x": 1}, "parameters": {"x": 1}}, "'x' is both a constant and a parameter"),
        ({"constants": {"place": 1}}, "'place' is both a field of the state and of the config"),
        (
            {"reset": lambda state, speed: None},
            "Mine.reset: expected arguments among state, rng, obs.*got speed",
        ),
        ({"step": lambda self, action: (0.0, False)}, "Mine.step: .*got self. Write @staticmethod above it"),
        ({"step": lambda *args: (0.0, False)}, "Mine.step: expected arguments among"),
        ({"step": 3}, "Mine.step: expected a static method, got 3"),
    ],
    ids=[f"wrong {number}" for number in range(16)],
)
def test_what_the_class_says_of_itself(attributes, text):
    with pytest.raises(NativeError, match=text):
        make(**attributes)


def test_spaces_without_a_size():
    with pytest.raises(SpaceError, match="a Sequence has no fixed size"):
        make(observation_space=Sequence(Discrete(2)))


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"constants": {"name": "far"}}, r"Mine.constants\['name'\]: expected a number, a bool or an array"),
        ({"parameters": {"table": [1, 2]}}, r"Mine.parameters\['table'\]: expected a number or a bool"),
    ],
    ids=["constant", "parameter"],
)
def test_values_that_cannot_be_config(attributes, text):
    with pytest.raises(ArgumentTypeError, match=text):
        make(**attributes)


def test_arguments_that_do_not_fit():
    mine = make(constants={"length": 3}, parameters={"wind": 0.5})
    with pytest.raises(ArgumentError, match="speed: Mine has no such argument"):
        shoal.make(mine, 2, env_kwargs={"speed": 1}, debug=True)
    with pytest.raises(ArgumentError, match=r"constants\['length'\]: expected a value like 3, got 2.5"):
        shoal.make(mine, 2, env_kwargs={"length": 2.5}, debug=True)
    with pytest.raises(ArgumentError, match="wind: expected one value, or one for each of 2 envs, got 3"):
        shoal.make(mine, 2, env_kwargs={"wind": [1.0, 2.0, 3.0]}, debug=True)
    with pytest.raises(ArgumentTypeError, match=r"parameters\['wind'\]: expected a value like 0.5"):
        shoal.make(mine, 2, env_kwargs={"wind": "strong"}, debug=True)


def test_a_base_class_is_not_checked():
    class Base(shoal.NativeEnv):
        max_episode_steps = 3

    assert Base.max_episode_steps == 3


def test_without_numba(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "numba" else real(name, *args)
    )
    mine = make()  # checked, not compiled
    with shoal.make(mine, 2, debug=True) as vec:
        vec.reset(seed=0)
    if shoal._core.NAME == "native":
        with pytest.raises(shoal.errors.MissingExtra, match=r'pip install "shoal\[native\]"'):
            shoal.make(mine, 2)
