"""Single compiled envs, and compiled envs on backends other than Native."""

from functools import partial

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.testing import SentinelEnv
from shoal.testing.contract import require_equal
from shoal.testing.native_envs import PairNative, SentinelNative

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")

# A worker takes half a second to import Numba. So one test has two workers, the others have one.
OTHERS = [{"backend": "serial"}, {"backend": "multiprocessing", "num_workers": 1}]
others = pytest.mark.parametrize("backend", OTHERS, ids=lambda backend: backend["backend"])


def play(env, num_envs, steps, **options):
    """All that a learner sees of some steps."""
    seen = []
    with shoal.make(env, num_envs, episode_stats=True, **options) as vec:
        vec.action_space.seed(3)
        seen.append(vec.reset(seed=5))
        for _ in range(steps):
            over = ~vec.mask.reshape(vec.num_envs, -1).any(1)
            if over.any() and vec.autoreset_mode is AutoresetMode.DISABLED:
                seen.append(vec.reset(options={"reset_mask": over}))
            *moment, infos = vec.step(vec.action_space.sample())
            infos.get("episode", {}).pop("t", None)
            infos.get("episode", {}).pop("_t", None)
            seen.append((*moment, infos, vec.mask))
    return seen


@pytest.mark.parametrize("mode", AutoresetMode)
@others
def test_compiled_agents_are_the_same_on_every_backend(backend, mode):
    options = {"autoreset_mode": mode}
    if "num_workers" in backend and mode is AutoresetMode.NEXT_STEP:
        backend = {**backend, "num_workers": 2}
    ours, native = play(PairNative, 3, 20, **backend, **options), play(PairNative, 3, 20, **options)
    require_equal(ours, native, "the same as Native")


@others
def test_snakes_are_the_same_on_every_backend(backend):
    ours, native = play("shoal/Snake-v0", 3, 100, **backend), play("shoal/Snake-v0", 3, 100)
    require_equal(ours, native, "the same as Native")


@others
def test_backends_take_the_class_itself(backend):
    options = dict(backend)
    kind = {"serial": shoal.Serial, "multiprocessing": shoal.Multiprocessing}[options.pop("backend")]
    with kind(PairNative, 2, **options) as vec:
        assert (vec.agents_per_env, vec.num_rows) == (2, 4)
        vec.reset(seed=0)
        assert vec.step([1, 2, 3, 4])[1].tolist() == [1, 2, 3, 4]


@others
def test_debug_on_every_backend(backend):
    expected = play(PairNative, 2, 7)
    require_equal(play(PairNative, 2, 7, debug=True, **backend), expected, "the same uncompiled")


def test_debug_is_of_compiled_envs_alone():
    with pytest.raises(ArgumentError, match="debug: only compiled envs have it"):
        shoal.make(SentinelEnv, 2, backend="serial", debug=True)


def test_agents_of_an_id_of_ones_own():
    gymnasium.register("PairOfMine-v0", entry_point=PairNative, max_episode_steps=4)
    try:
        # Uncompiled: another limit would be another kernel.
        ours, native = (play("PairOfMine-v0", 2, 9, debug=True, **backend) for backend in (OTHERS[0], {}))
    finally:
        del gymnasium.registry["PairOfMine-v0"]
    require_equal(ours, native, "the same as Native")
    assert native[4][3].tolist() == [False, True] * 2  # the limit is that of the id


@pytest.mark.parametrize("name", ["shoal/Snake-v0", "shoal/Foragers-v0"])
def test_gymnasium_has_no_agents(name):
    text = rf'{name} has \d+ agents, and Gymnasium\'s envs have one. Make a vec.* shoal.make\("{name}"'
    with pytest.raises(ArgumentError, match=text):
        gymnasium.make(name)


@others
@pytest.mark.parametrize("env", [SentinelNative, PairNative])
def test_fields_that_are_set_reach_the_kernel(env, backend):
    with shoal.make(env, 2, **backend) as vec:
        vec.reset(seed=0)
        vec.set_attr("count", [1, 0])
        vec.step(np.zeros(vec.num_rows, np.int64))
        assert vec.get_attr("count") == (2, 1)
        vec.set_attr("of_mine", 7)  # any other attribute is one of Python
        assert vec.get_attr("of_mine") == (7, 7)


@pytest.mark.parametrize("backend", [{}, *OTHERS], ids=str)
@pytest.mark.parametrize(("env", "name"), [("shoal/Snake-v0", "height"), ("shoal/Pendulum-v1", "g")])
def test_constants_cannot_be_set(env, name, backend):
    with shoal.make(env, 2, **backend) as vec:
        before = vec.get_attr(name)
        with pytest.raises(AttributeError, match=f"{name}: this is a constant of .*, compiled in"):
            vec.set_attr(name, 7)
        assert vec.get_attr(name) == before


@pytest.mark.parametrize("env", ["CartPole-v1", "shoal/Foragers-v0", SentinelEnv])
def test_native_is_for_compiled_envs(env):
    named = env if isinstance(env, str) else "SentinelEnv"
    with pytest.raises(ArgumentError, match=f"backend: 'native' runs compiled envs.*{named}.* is not one"):
        shoal.make(env, 2, backend="native")
    with pytest.raises(ArgumentTypeError, match=r"Native runs classes derived from .*, got .*CartPole"):
        shoal.Native(partial(gymnasium.make, "CartPole-v1"), 2)
