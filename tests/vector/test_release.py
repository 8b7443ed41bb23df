"""A vec gives its memory back when it is closed, without the garbage collector."""

import gc
import os
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.errors import Closed
from shoal.testing import SampleEnv, SentinelAgent, SentinelEnv, SentinelRows

needs_workers = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

NESTED = sp.Dict({"place": sp.Box(0, 1, (3,)), "text": sp.Text(5), "deep": sp.Tuple([sp.Discrete(3)])})


def vector_env(env_id):
    return partial(shoal.Serial, partial(SentinelEnv, env_id), 2)


ENVS = {
    "plain": [partial(SentinelEnv, i) for i in range(4)],
    "nested spaces": [partial(SampleEnv, NESTED, NESTED)] * 4,
    "in place": [partial(SentinelRows, i) for i in range(4)],
    "agents": [partial(SentinelAgent, i) for i in range(4)],
    "vector envs": [vector_env(i) for i in range(4)],
    "mixed": [partial(SentinelEnv, 0), partial(SentinelRows, 1), vector_env(2), SentinelEnv],
}
OPTIONS = {
    "copy": {},
    "views": {"copy": False},
    "flat": {"flat": True},
    "statistics": {"episode_stats": True},
    "restart": {"on_error": "restart"},
    "parent steps": {"parent_steps": True},
    "fifo": {"batch_size": 2},
    "ready": {"batch_size": 2, "order": "ready"},
    "async views": {"batch_size": 2, "copy": False},
}


@contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def shared_memory():
    """Descriptors and mappings of a vec's memory that this process has."""
    found = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:shoal" in line]
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would hold one open itself
        target = f"/proc/self/fd/{entry}"
        if os.path.islink(target) and "memfd:shoal" in os.readlink(target):  # noqa: PTH114, PTH115
            found.append(target)
    return found


def use(vec):
    if vec.batch_size < vec.num_envs:
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.recv()
            vec.send(vec.action_space.sample())
    else:
        vec.reset(seed=0)
        for _ in range(4):
            vec.step(vec.action_space.sample())


@needs_workers
@pytest.mark.parametrize(
    ("envs", "options"),
    [(envs, "copy") for envs in ENVS]
    + [(envs, "parent steps") for envs in ENVS]
    + [("nested spaces", options) for options in OPTIONS if options not in ("copy", "parent steps")],
)
def test_42_close_gives_the_shared_memory_back(envs, options):
    before = shared_memory()
    with without_collector():
        vec = shoal.Multiprocessing(ENVS[envs], num_workers=2, **OPTIONS[options])
        use(vec)
        assert len(shared_memory()) > len(before)
        vec.close()
        assert shared_memory() == before
        assert vec.stats()["vector_steps"] >= 4
        vec.close()


@needs_workers
@pytest.mark.parametrize("envs", ENVS)
def test_42_a_forgotten_vec_gives_its_shared_memory_back(envs):
    before = shared_memory()
    with without_collector():
        vec = shoal.Multiprocessing(ENVS[envs], num_workers=2)
        use(vec)
        del vec
        assert shared_memory() == before


@needs_workers
def test_42_views_keep_the_shared_memory_until_they_are_dropped():
    before = shared_memory()
    with without_collector():
        vec = shoal.Multiprocessing(ENVS["plain"], num_workers=2, copy=False)
        obs, _ = vec.reset(seed=0)
        vec.close()
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert len(shared_memory()) > len(before)
        del obs
        assert shared_memory() == before


@pytest.mark.parametrize("options", ["copy", "views", "flat", "statistics"])
@pytest.mark.parametrize("envs", ENVS)
def test_42_a_serial_vec_is_in_no_reference_cycle(envs, options):
    with without_collector():
        vec = shoal.Serial(ENVS[envs], **OPTIONS[options])
        use(vec)
        alive = weakref.ref(vec), weakref.ref(vec._arena.rewards.base)
        vec.close()
        del vec
        assert [each() for each in alive] == [None, None]


def rows_of(vec):
    return weakref.ref(vec._arena.rewards.base)


@pytest.mark.parametrize("envs", ["plain", "nested spaces", "vector envs"])  # others write into their rows
def test_42_a_closed_serial_vec_has_no_rows(envs):
    with without_collector():
        vec = shoal.Serial(ENVS[envs], copy=False)
        use(vec)
        rows = rows_of(vec)
        vec.close()
        assert rows() is None
        assert len(vec.envs) == vec.num_envs


@needs_workers
@pytest.mark.parametrize("options", [{"copy": False}, {"batch_size": 2}, {"check": True}], ids=str)
def test_42_a_closed_native_vec_has_no_rows(options):
    with without_collector():
        vec = shoal.make("shoal/CartPole-v1", 4, backend="native", **options)
        use(vec)
        rows = rows_of(vec)
        vec.close()
        assert rows() is None
        vec.close()
        with pytest.raises(Closed, match="the vec has been closed"):
            vec.column_of("x")


@needs_workers
def test_42_views_keep_the_rows_of_a_native_vec():
    with without_collector():
        vec = shoal.make("shoal/CartPole-v1", 4, backend="native", copy=False)
        obs, _ = vec.reset(seed=0)
        kept, rows = obs.copy(), rows_of(vec)
        vec.close()
        assert np.array_equal(obs, kept)
        del obs
        assert rows() is None
