"""Ctrl-C: once for an end that can be saved, twice for one at once."""

import os
import signal
import subprocess
import sys

import gymnasium
import pytest

import shoal
from shoal import _core
from shoal.learn import PPO, PPOConfig, stop_on_signals

SCRIPT = """
import os
from shoal.learn import PPO, PPOConfig, stop_on_signals
from shoal.testing import HangEnv


class Says(HangEnv):
    def step(self, action):
        if self.life + 1 == self.at:
            os.write(1, b"hangs\\n")  # in one piece, while another process writes
        return super().step(action)


def train(mode):
    config = PPOConfig(num_envs=2, num_workers=2, horizon=2, minibatch_size=2, epochs=1, mode=mode)
    with PPO(lambda: Says(at=3, max_length=50), config) as ppo, stop_on_signals(ppo):
        ppo.train()


try:
    train("sync")
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
train("overlap")
"""


def interrupt_twice(process):
    """When an env hangs: the first Ctrl-C is answered, the second one ends the training."""
    assert any(line == "hangs\n" for line in process.stdout)
    os.kill(process.pid, signal.SIGINT)
    assert any("Ctrl-C again to stop at once" in line for line in process.stderr)
    os.kill(process.pid, signal.SIGINT)


@pytest.mark.skipif(_core.NAME != "native", reason="there are no processes without the core")
def test_a_second_ctrl_c_does_not_wait_for_envs_that_hang():
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        interrupt_twice(process)
        assert any(line == "interrupted\n" for line in process.stdout)
        interrupt_twice(process)  # here the envs are stepped by a thread of their own
        _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.fixture
def others_handler():
    """Handles both signals before and after training, and notes those that come through."""
    numbers, found = (signal.SIGINT, signal.SIGTERM), []

    def handle(number, _):
        found.append(number)

    before = [signal.signal(number, handle) for number in numbers]
    yield handle, found
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_update(number, capsys, others_handler):
    handle, came_through = others_handler
    config = PPOConfig(total_steps=10_000, horizon=16, minibatch_size=16, epochs=1)
    with (
        shoal.Serial(lambda: gymnasium.make("CartPole-v1"), 2) as vec,
        PPO(vec, config) as ppo,
        stop_on_signals(ppo),
    ):
        result = ppo.train(lambda update: update.updates == 2 and signal.raise_signal(number))
    assert (result.stopped, result.updates, came_through) == (True, 2, [])
    assert "stopping after this update" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handle
