"""Classic control, compiled: step by step beside Gymnasium's own envs."""

import math
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
from shoal import _core
from shoal.native.drawing import BLACK, Canvas
from shoal.native.spec import Spec
from shoal.native.straight import is_straight
from shoal.registry import find

# Of a step from the same state. Ours multiplies where Gymnasium's divides, and has its own sine: both change
# the last digit of numbers up to 80.
TOLERANCE = 1e-12
# At its highest speeds a step of Acrobot is so unstable that the last digit of a state changes the next one
# by up to 1e-10, in Gymnasium's own env as well.
UNSTABLE = 1e-9
# Gymnasium rounds the state of MountainCarContinuous, up to 1.2, to float32 after every step.
SINGLE = 1e-7
# Of Pendulum's reward: in Gymnasium's, the square of the torque, at most 4 and times 0.001, is a float32.
SQUARED = 1e-9
# Of trajectories with and without compiling, which are the same operations in the same order.
TRAJECTORY_TOLERANCE = 1e-12
# Of observations, beside that of the state: the last digit of float32 may be rounded the other way.
ROUNDED = 2.5e-7

needs_core = pytest.mark.skipif(
    _core.NAME != "native", reason="without the core envs run with debug=True only"
)
HOW = [pytest.param(False, id="compiled", marks=needs_core), pytest.param(True, id="debug")]


@dataclass(frozen=True)
class Twin:
    """An env here and in Gymnasium.

    Attributes:
        id: The same in both.
        begins: The range of each field of the state after a reset, in the order of Gymnasium's state.
        anywhere: The range of each field from which steps are compared.
        kwargs: Arguments that both understand, and that change something.
        tolerance: Of the next state, in episodes.
        tolerance_anywhere: Of the next state, from anywhere.
        reward_tolerance: Of the reward.
    """

    id: str
    begins: dict[str, tuple[float, float]]
    anywhere: dict[str, tuple[float, float]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    tolerance_anywhere: float = TOLERANCE
    reward_tolerance: float = TOLERANCE

    @property
    def name(self):
        return f"shoal/{self.id}"


CAR = {"position": (-0.6, -0.4), "velocity": (0.0, 0.0)}
CAR_ANYWHERE = {"position": (-1.2, 0.6), "velocity": (-0.07, 0.07)}
TWINS = [
    Twin(
        "CartPole-v1",
        dict.fromkeys(("x", "x_dot", "theta", "theta_dot"), (-0.05, 0.05)),
        {"x": (-2.5, 2.5), "x_dot": (-4.0, 4.0), "theta": (-0.25, 0.25), "theta_dot": (-5.0, 5.0)},
        {"sutton_barto_reward": True},
    ),
    Twin("MountainCar-v0", CAR, CAR_ANYWHERE, {"goal_velocity": 0.02}),
    Twin("MountainCarContinuous-v0", CAR, CAR_ANYWHERE, {"goal_velocity": 0.02}, SINGLE, SINGLE),
    Twin(
        "Pendulum-v1",
        {"theta": (-math.pi, math.pi), "theta_dot": (-1.0, 1.0)},
        {"theta": (-80.0, 80.0), "theta_dot": (-8.0, 8.0)},
        {"g": 3.7},
        reward_tolerance=SQUARED,
    ),
    Twin(
        "Acrobot-v1",
        dict.fromkeys(("theta_1", "theta_2", "theta_1_dot", "theta_2_dot"), (-0.1, 0.1)),
        {
            "theta_1": (-math.pi, math.pi),
            "theta_2": (-math.pi, math.pi),
            "theta_1_dot": (-4 * math.pi, 4 * math.pi),
            "theta_2_dot": (-9 * math.pi, 9 * math.pi),
        },
        tolerance_anywhere=UNSTABLE,
    ),
]
each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.id)


def state_of(vec, twin):
    return np.stack([np.array(vec.get_attr(name)) for name in twin.begins], axis=1)


def put(vec, twin, states):
    for name, values in zip(twin.begins, states.T, strict=True):
        vec.set_attr(name, values.tolist())


def step_theirs(env, state, action):
    """Gymnasium's env, from a state of ours."""
    env.unwrapped.state = state.copy()
    if hasattr(env.unwrapped, "steps_beyond_terminated"):
        env.unwrapped.steps_beyond_terminated = None  # CartPole counts them, and warns
    if env.spec.id == "MountainCarContinuous-v0":
        action = action.astype(np.float64)  # or else it computes in float32
    obs, reward, terminated, truncated, _ = env.unwrapped.step(action)
    assert not truncated
    return obs, np.array(env.unwrapped.state, np.float64), reward, terminated


def compare(vec, env, twin, before, actions, result, envs, tolerance):
    """A step of ours with Gymnasium's, for some envs; returns how many have terminated."""
    obs, rewards, terminations, _, _ = result
    after, count = state_of(vec, twin), 0
    for i in envs:
        their_obs, their_state, their_reward, their_end = step_theirs(env, before[i], actions[i])
        np.testing.assert_allclose(after[i], their_state, rtol=0, atol=tolerance)
        np.testing.assert_allclose(obs[i], their_obs, rtol=ROUNDED, atol=tolerance)
        assert rewards[i] == pytest.approx(their_reward, rel=0, abs=twin.reward_tolerance)
        assert terminations[i] == their_end
        count += their_end
    return count


@pytest.mark.parametrize("debug", HOW)
@each_twin
def test_steps_from_anywhere(twin, debug):
    check_steps_from_anywhere(twin, {}, debug)


# Slow: each is compiled anew.
@pytest.mark.parametrize(
    "debug", [pytest.param(*HOW[0].values, id="compiled", marks=[needs_core, pytest.mark.slow]), HOW[1]]
)
@pytest.mark.parametrize("twin", [twin for twin in TWINS if twin.kwargs], ids=lambda twin: twin.id)
def test_arguments(twin, debug):
    check_steps_from_anywhere(twin, twin.kwargs, debug)


def check_steps_from_anywhere(twin, kwargs, debug):
    """Also from walls and limits, and with actions beyond those of the space, which are clipped."""
    random = np.random.default_rng(3)
    low, high = np.array(list(twin.anywhere.values())).T
    terminated = compared = 0
    with (
        shoal.make(twin.name, num_envs=64, env_kwargs=kwargs, debug=debug) as vec,
        gymnasium.make(twin.id, **kwargs) as env,
    ):
        vec.action_space.seed(3)
        env.reset(seed=3)
        for _ in range(10 if debug else 25):
            vec.reset()
            before = random.uniform(low, high, (64, len(low)))
            edges = random.random(before.shape) < 0.1
            before = np.where(edges, np.where(random.random(before.shape) < 0.5, low, high), before)
            put(vec, twin, before)
            actions = vec.action_space.sample()
            if actions.dtype.kind == "f":
                actions *= np.float32(1.5)
            terminated += compare(
                vec, env, twin, before, actions, vec.step(actions), range(64), twin.tolerance_anywhere
            )
            compared += 64
    assert twin.id == "Pendulum-v1" or 0 < terminated < compared


@pytest.mark.parametrize("debug", HOW)
@each_twin
def test_steps_of_episodes(twin, debug):
    """From resets on, as they come."""
    num_envs = 16
    ready = np.ones(num_envs, bool)
    with shoal.make(twin.name, num_envs=num_envs, debug=debug) as vec, gymnasium.make(twin.id) as env:
        vec.action_space.seed(4)
        vec.reset(seed=4)
        env.reset(seed=4)
        for _ in range(50 if debug else 100):
            before, actions = state_of(vec, twin), vec.action_space.sample()
            result = vec.step(actions)
            compare(vec, env, twin, before, actions, result, np.flatnonzero(ready), twin.tolerance)
            ready = ~(result[2] | result[3])  # the others begin anew in the next step


@each_twin
def test_spaces(twin):
    with gymnasium.make(twin.id) as env:
        cls = find(twin.name).create
        assert cls.observation_space == env.observation_space
        assert cls.action_space == env.action_space
        assert cls.metadata["render_fps"] == env.metadata["render_fps"]
        assert cls.max_episode_steps == env.spec.max_episode_steps


@each_twin
def test_is_straight(twin):
    """Or else it is stepped one env at a time."""
    assert is_straight(Spec.of(find(twin.name).create))
    assert is_straight(Spec.of(find(twin.name).create, twin.kwargs))


@pytest.mark.parametrize("debug", HOW)
@each_twin
def test_resets_are_spread_evenly(twin, debug):
    count = 2000
    with shoal.make(twin.name, num_envs=count, debug=debug) as vec:
        obs, _ = vec.reset(seed=5)
        states = state_of(vec, twin)
        assert all(map(vec.single_observation_space.contains, obs[:100]))
    for values, (low, high) in zip(states.T, twin.begins.values(), strict=True):
        if low == high:
            assert (values == low).all()
            continue
        assert values.min() >= low
        assert values.max() < high
        # Kolmogorov-Smirnov: the greatest distance from the line is 0.036 once in a hundred times.
        evenly = (np.arange(count) + 0.5) / count
        assert np.abs((np.sort(values) - low) / (high - low) - evenly).max() < 0.036
    moving = states[:, [low != high for low, high in twin.begins.values()]]
    apart = np.corrcoef(moving, rowvar=False) - np.eye(moving.shape[1])
    assert np.abs(apart).max() < 0.1


@pytest.mark.parametrize("debug", HOW)
@each_twin
def test_seeds(twin, debug):
    with shoal.make(twin.name, num_envs=8, debug=debug) as vec:
        first, _ = vec.reset(seed=6)
        again, _ = vec.reset(seed=6)
        on, _ = vec.reset()
        other, _ = vec.reset(seed=600)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, on, other])[:, 0])) == 24


@pytest.mark.parametrize("debug", HOW)
@each_twin
def test_truncation_at_the_limit(twin, debug):
    limit = gymnasium.spec(twin.id).max_episode_steps
    with shoal.make(twin.name, num_envs=2, debug=debug) as vec:
        vec.action_space.seed(7)
        vec.reset(seed=7)
        calm = state_of(vec, twin)
        for step in range(1, limit + 1):
            put(vec, twin, calm)  # or else it ends before that
            _, _, terminations, truncations, _ = vec.step(vec.action_space.sample())
            assert not terminations.any()
            assert (truncations == (step == limit)).all()
        _, rewards, _, truncations, _ = vec.step(vec.action_space.sample())  # the reset
        assert not rewards.any()
        assert not truncations.any()


@needs_core
@each_twin
def test_debugging_changes_nothing(twin):
    """All that a step returns, and the state."""
    with (
        shoal.make(twin.name, num_envs=8) as compiled,
        shoal.make(twin.name, num_envs=8, debug=True) as plain,
    ):
        compiled.action_space.seed(8)
        for step in range(120):
            if step % 40 == 0:
                seed = 8 if step == 0 else None
                np.testing.assert_array_equal(compiled.reset(seed=seed)[0], plain.reset(seed=seed)[0])
            actions = compiled.action_space.sample()
            obs, *results, _ = compiled.step(actions)
            plain_obs, *plain_results, _ = plain.step(actions)
            np.testing.assert_allclose(obs, plain_obs, rtol=ROUNDED, atol=TRAJECTORY_TOLERANCE)
            for ours, theirs in zip(results, plain_results, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=TRAJECTORY_TOLERANCE)
            np.testing.assert_allclose(
                state_of(compiled, twin), state_of(plain, twin), rtol=0, atol=TRAJECTORY_TOLERANCE
            )


@pytest.mark.parametrize(
    ("twin", "debug"),
    # A frame is drawn uncompiled, from the state of either.
    [pytest.param(twin, True, id=twin.id) for twin in TWINS]
    + [pytest.param(TWINS[0], False, id="compiled", marks=needs_core)],
)
def test_render(twin, debug):
    with shoal.make(twin.name, num_envs=2, render_mode="rgb_array", debug=debug) as vec:
        vec.reset(seed=9)
        first = vec.render()
        assert [(frame.shape, frame.dtype) for frame in first] == [((400, 600, 3), np.uint8)] * 2
        again = vec.render()
        low, high = np.array(list(twin.anywhere.values())).T
        put(vec, twin, np.tile(low + 0.8 * (high - low), (2, 1)))
        moved = vec.render()
    for before, same, after in zip(first, again, moved, strict=True):
        np.testing.assert_array_equal(before, same)
        assert len(np.unique(before.reshape(-1, 3), axis=0)) >= 3
        # Something has moved, and most of the picture has not.
        changed = (before != after).any(axis=2).mean()
        assert 0.002 < changed < 0.2


@pytest.mark.parametrize(
    ("draw", "area"),
    [
        (lambda canvas: canvas.rectangle((0.5, 1.0), (-1.0, -0.5), BLACK), 2.25),
        (lambda canvas: canvas.polygon([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], BLACK), 0.5),
        (lambda canvas: canvas.polygon([(0, 0), (2, 0), (0, 1), (2, 1)], BLACK), 1.0),  # crosses itself
        (lambda canvas: canvas.line((0.0, 0.0), (1.2, 0.9), 0.2, BLACK), 1.5 * 0.2 + math.pi * 0.1**2),
        (lambda canvas: canvas.disc((0.3, -0.2), 0.8, BLACK), math.pi * 0.8**2),
        (lambda canvas: canvas.disc((3.0, 0.0), 1.0, BLACK), math.pi / 2),  # half of it outside
        (lambda canvas: canvas.disc((9.0, 9.0), 1.0, BLACK), 0.0),
        (lambda canvas: canvas.below(canvas.xs / 3, BLACK), 12.0),
    ],
)
def test_shapes_have_their_areas(draw, area):
    canvas = Canvas(width=6.0)  # and 4 high
    draw(canvas)
    pixels = (canvas.frame == BLACK).all(axis=2).sum()
    assert pixels / 100**2 == pytest.approx(area, rel=0.02)


@needs_core
# What Gymnasium says of these two spaces of its own, too.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m:UserWarning")
@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend:UserWarning")
@each_twin
def test_gymnasium_makes_it(twin):
    with gymnasium.make(twin.name, render_mode="rgb_array") as env:
        check_env(env.unwrapped)
