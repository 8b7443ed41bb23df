"""make(): which backend, with which arguments."""

import dataclasses
import inspect
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

import shoal
from shoal import _core, making
from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.testing import SentinelEnv

native = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


@pytest.fixture
def cores(monkeypatch):
    return lambda count: monkeypatch.setattr(making, "usable_cores", lambda: count)


def sentinel(env_id=0, max_length=10):
    return SentinelEnv(env_id, max_length)


# -- the backend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "num_envs", "why"),
    [(1, 4, "one core"), (2, 1, "nothing to step beside it"), (2, None, "nothing to step beside it")],
)
def test_one_env_or_one_core(cores, count, num_envs, why):
    cores(count)
    with shoal.make("CartPole-v1", num_envs) as vec:
        assert repr(vec) == f"Serial(CartPole-v1, num_envs={num_envs or 1}, auto: {why})"


def test_without_the_compiled_core(cores, monkeypatch):
    cores(2)
    monkeypatch.setattr(_core, "NAME", "reference")
    with shoal.make("CartPole-v1", num_envs=4) as vec:
        assert type(vec) is shoal.Serial


@native
@pytest.mark.parametrize(
    "argument",
    [
        {"num_workers": 1},
        {"envs_per_worker": 1},
        {"timeout": 30.0},
        {"on_error": "restart"},
        {"start_method": "fork"},
        {"surplus_envs": 1},
        {"mode": "async"},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_an_argument_that_only_processes_have_chooses_them(cores, argument):
    cores(1)
    with shoal.make("CartPole-v1", num_envs=1, **argument) as vec:
        assert isinstance(vec, shoal.Multiprocessing)
    name = next(iter(argument))
    with pytest.raises(ArgumentError, match=f"^{name}: Serial runs all envs in this process"):
        shoal.make("CartPole-v1", num_envs=1, backend="serial", **argument)


def test_serial_is_always_in_step():
    with shoal.make("CartPole-v1", num_envs=2, backend="serial", mode="sync") as vec:
        assert type(vec) is shoal.Serial


@native
def test_asynchronous():
    with shoal.make("CartPole-v1", num_envs=4, batch_size=2, order="ready", num_workers=2) as vec:
        vec.async_reset(seed=0)
        assert len(vec.recv().env_ids) == 2


def test_a_backend_that_is_none():
    with pytest.raises(
        ArgumentError, match="expected one of 'auto', 'serial', 'multiprocessing', 'native', got 'ray'"
    ):
        shoal.make("CartPole-v1", backend="ray")


def test_make_has_every_argument_of_the_backends():
    own = inspect.signature(shoal.make).parameters
    for backend in (shoal.Serial, shoal.Multiprocessing):
        theirs = inspect.signature(backend.__init__).parameters
        for name in set(theirs) - {"self", "env"}:
            assert own[name].default == theirs[name].default, name
    only_processes = set(inspect.signature(shoal.Multiprocessing.__init__).parameters) - set(
        inspect.signature(shoal.Serial.__init__).parameters
    )
    assert set(making.PROCESS_ARGUMENTS) == only_processes
    assert all(own[name].default == default for name, default in making.PROCESS_ARGUMENTS.items())


# -- what is made ------------------------------------------------------------------------------------------


def test_spec_and_name():
    with shoal.make("CartPole-v1") as vec:
        assert vec.spec.id == vec.env_name == "CartPole-v1"
    with shoal.make("classic-cartpole") as vec:
        assert vec.spec is None
        assert vec.env_name == "classic-cartpole"
    with shoal.make(sentinel) as vec:
        assert vec.env_name == ""
        assert repr(vec).startswith("Serial(num_envs=1, ")


@pytest.mark.parametrize("backend", ["serial", pytest.param("multiprocessing", marks=native)])
def test_arguments_and_wrappers_of_the_envs(backend):
    wrappers = [partial(TimeLimit, max_episode_steps=2), partial(TransformReward, func=lambda reward: 7.0)]
    arguments = {"env_kwargs": {"env_id": 3}, "wrappers": wrappers, "backend": backend}
    with shoal.make(sentinel, num_envs=2, **arguments) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs[:, 0].tolist() == [3, 3]
        vec.step([1, 1])
        _, rewards, _, truncations, _ = vec.step([1, 1])
    assert rewards.tolist() == [7, 7]
    assert truncations.tolist() == [True, True]


def test_frames():
    with shoal.make("CartPole-v1", num_envs=2, render_mode="rgb_array", backend="serial") as vec:
        vec.reset(seed=0)
        assert [frame.shape for frame in vec.render()] == [(400, 600, 3)] * 2


def test_a_list_of_names_and_creators():
    with shoal.make(["CartPole-v1", lambda: gymnasium.make("CartPole-v1")], backend="serial") as vec:
        assert vec.num_envs == 2
        assert vec.env_name == ""
    with pytest.raises(ArgumentError, match="expected 2, the length of the list of creators, got 3"):
        shoal.make(["CartPole-v1", "CartPole-v1"], num_envs=3)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            gymnasium.make("CartPole-v1"),
            r"something that makes envs, got one \w+ that is made already",
        ),
        (3, "expected a creator or a list of creators, got 3"),
        ([sentinel, 3], "expected a creator or a list of creators, got 3"),
    ],
    ids=["an env", "a number", "in a list"],
)
def test_what_makes_no_envs(wrong, text):
    with pytest.raises(ArgumentTypeError, match=text):
        shoal.make(wrong)


def test_the_same_as_the_backend_by_hand():
    with shoal.make("CartPole-v1", num_envs=3, seed=5, backend="serial", flat=True) as vec:
        by_hand = shoal.Serial(lambda: gymnasium.make("CartPole-v1"), 3, seed=5, flat=True)
        actions = vec.action_space.sample()
        assert actions.tolist() == by_hand.action_space.sample().tolist()
        assert np.array_equal(vec.reset()[0], by_hand.reset()[0])
        assert np.array_equal(vec.step(actions)[0], by_hand.step(actions)[0])
        by_hand.close()


@native
@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_every_env_of_a_worker_has_the_parents_registrations(start_method, monkeypatch):
    """Also the second, though the package that the first one imported has registered its ids again."""
    import ale_py  # noqa: F401

    spec = gymnasium.spec("ALE/Pong-v5")
    monkeypatch.setitem(
        gymnasium.registry,
        "ALE/Pong-v5",
        dataclasses.replace(spec, kwargs={**spec.kwargs, "obs_type": "ram"}),
    )
    with shoal.make("ALE/Pong-v5", num_envs=2, num_workers=1, start_method=start_method) as vec:
        assert vec.single_observation_space.shape == (128,)


def test_engines_stand_alone():
    for wrong in (
        {"batch_size": 2},
        {"parent_steps": True},
        {"wrappers": [lambda env: env]},
        {"env_kwargs": {"num_envs": 3}},
    ):
        with pytest.raises(ArgumentError, match="'ale-pong' steps many envs by itself"):
            shoal.make("ale-pong", num_envs=4, **wrong)


def test_arguments_of_the_wrong_type():
    with pytest.raises(ArgumentTypeError, match=r"env_kwargs: expected a dict or None, got \[1\]"):
        shoal.make("CartPole-v1", env_kwargs=[1])
    with pytest.raises(ArgumentTypeError, match="wrappers: expected a list of functions or classes"):
        shoal.make("CartPole-v1", wrappers=TimeLimit)


def test_mujocos_actions_are_clipped_within_their_bounds():
    with shoal.make("mujoco-pusher", num_envs=1) as vec, shoal.make("Pusher-v5", num_envs=1) as bare:
        assert vec.single_action_space == bare.single_action_space
        vec.reset(seed=0)
        bare.reset(seed=0)
        far = np.full((1, 7), 9.0, np.float32)
        assert np.array_equal(vec.step(far)[0], bare.step(np.clip(far, -2, 2))[0])
