"""Envs that bring their workers into every state. Workers import this module, so it imports no pytest."""

import os
import signal
import time

import gymnasium.spaces as sp

from shoal.testing import SentinelEnv
from tests.vector.faulty import LONG, Bomb, Gated


class Odd(Gated):
    """Has an info that cannot be unpickled at a step whose action is 997."""

    def step(self, action):
        *results, info = super().step(action)
        return *results, {**info, "bomb": Bomb(divmod, 1, 0)} if action == 997 else info

    def large(self):
        """Return more than fits into a socket."""
        return bytes(1 << 24)


class Remade(SentinelEnv):
    """Does when it is made what its file says: "die", "hang", or have "other" spaces.

    Args:
        file: The file.
    """

    def __init__(self, file):
        super().__init__(0, LONG)
        what = file.read_text()
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang":
            time.sleep(3600)
        if what == "other":
            self.action_space = sp.Discrete(7)

    def pid(self):
        return os.getpid()
