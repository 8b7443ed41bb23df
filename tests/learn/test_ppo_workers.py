"""PPO on envs in workers that die or hang: `timeout` and `on_error`."""

import os
import signal

import gymnasium
import pytest

import shoal
from shoal.errors import ArgumentError, RestartWarning, WorkerDied
from shoal.learn import PPO
from tests.learn.small_runs import quick


class Dying(gymnasium.Wrapper):
    """Kills its process in its 20th step, the first time that this folder sees it."""

    def __init__(self, folder):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.folder, self.steps = folder, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 20 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def dying(folder, **settings):
    config = quick(backend="multiprocessing", num_workers=1, **settings)
    return PPO(Dying, config, env_kwargs={"folder": folder})


def test_a_worker_that_dies_is_replaced(tmp_path):
    with dying(tmp_path, on_error="restart") as ppo, pytest.warns(RestartWarning, match="worker 0"):
        assert ppo.train().steps >= 1000


def test_otherwise_training_ends(tmp_path):
    with dying(tmp_path) as ppo, pytest.raises(WorkerDied, match="worker 0"):
        ppo.train()


def test_a_timeout_is_that_of_the_workers():
    with PPO("CartPole-v1", quick(timeout=100)) as ppo:
        assert isinstance(ppo.vec, shoal.Multiprocessing)
    with pytest.raises(ArgumentError, match="timeout: Serial runs all envs in this process"):
        PPO("CartPole-v1", quick(timeout=1, backend="serial"))


def test_settings_that_cannot_be():
    with pytest.raises(ArgumentError, match="on_error: expected 'raise' or 'restart', got 'ignore'"):
        quick(on_error="ignore")
    with pytest.raises(ArgumentError, match="timeout: expected more than 0 seconds, got 0"):
        quick(timeout=0)
