"""Envs that bring their workers into every state. Workers import this module, so it imports no pytest."""

import os
import signal
import time

import gymnasium
import gymnasium.spaces as sp

from shoal.testing import SentinelEnv
from tests.vector.faulty import LONG, Bomb, Gated, Signalling


class Odd(Gated):
    """Has an info that cannot be unpickled at a step whose action is 997."""

    def step(self, action):
        *results, info = super().step(action)
        return *results, {**info, "bomb": Bomb(divmod, 1, 0)} if action == 997 else info

    def large(self):
        """Return more than fits into a socket."""
        return bytes(1 << 24)


class Bulky(gymnasium.Env):
    """Has infos at every reset and step that do not fit into a socket. Its actions are objects."""

    observation_space, action_space = sp.Discrete(2), sp.Sequence(sp.Discrete(2))

    def reset(self, *, seed=None, options=None):
        return 0, {"bulk": bytes(1 << 20)}

    def step(self, action):
        return 1, 0.0, False, False, {"bulk": bytes(1 << 20)}


class RaisesUnseen(Signalling):
    """Raises in the step in which it has signalled, when the gate is open."""

    def step(self, action):
        signals = self.verb == "step"
        result = super().step(action)
        if signals:
            raise ValueError("unseen")
        return result


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
