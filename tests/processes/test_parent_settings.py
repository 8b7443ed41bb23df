"""Settings of the parent that a worker takes over."""

import multiprocessing

import gymnasium
import pytest

import shoal
from shoal import _core

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_creator_reaches_a_manager_of_the_parent(method):
    """A proxy of `multiprocessing.Manager` identifies itself by the parent's key."""
    with multiprocessing.Manager() as manager:
        made = manager.list()

        def create() -> gymnasium.Env:
            made.append("env")
            return gymnasium.make("CartPole-v1")

        with shoal.Multiprocessing([create, create], num_workers=2, start_method=method):
            assert list(made) == ["env", "env"]


def test_a_timeout_is_the_one_that_async_vector_env_raises():
    """Code written for AsyncVectorEnv catches `multiprocessing.TimeoutError`."""
    assert issubclass(shoal.errors.WorkerTimeout, multiprocessing.TimeoutError)
    assert issubclass(shoal.errors.WorkerTimeout, TimeoutError)
