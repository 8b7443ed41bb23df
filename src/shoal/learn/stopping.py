"""Ctrl-C and SIGTERM: end training between two updates, when the run can be saved."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.learn.learner import Learner


@contextmanager
def stop_on_signals(learner: Learner) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM stop training after the current update; a second signal interrupts at once.

    Args:
        learner: Learner to stop. Only the main thread may enter the block.

    Example:
        >>> from shoal.learn import PPO, PPOConfig, stop_on_signals
        >>> with PPO("shoal/CartPole-v1", PPOConfig(total_steps=4096)) as ppo, stop_on_signals(ppo):
        ...     ppo.train().stopped
        False
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        learner.stop()
        print("shoal: stopping after this update; Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
