"""Ctrl-C while envs hang."""

import os
import signal
import subprocess
import sys

import pytest

from shoal import _core

SCRIPT = """
import os
import sys
from shoal.learn import PPO, PPOConfig, stop_on_signals
from shoal.testing import HangEnv


class Says(HangEnv):
    def step(self, action):
        if self.life + 1 == self.at:
            os.write(1, b"hangs\\n")  # whole, whoever else writes
        return super().step(action)


config = PPOConfig(num_envs=2, num_workers=2, horizon=2, minibatch_size=2, epochs=1, mode=sys.argv[1])
with PPO(lambda: Says(at=3, max_length=50), config) as ppo, stop_on_signals(ppo):
    ppo.train()
"""


@pytest.mark.skipif(_core.NAME != "native", reason="there are no processes without the core")
@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_second_ctrl_c_waits_for_nobody(mode):
    command = [sys.executable, "-c", SCRIPT, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert any(line == "hangs\n" for line in process.stdout)
        os.kill(process.pid, signal.SIGINT)
        assert any("Ctrl-C again to stop at once" in line for line in process.stderr)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert err.rstrip().endswith("KeyboardInterrupt")
