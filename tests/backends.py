"""The backends that exist where the tests run, each called like `shoal.Serial`."""

from functools import partial

import pytest
from gymnasium.spaces import Dict

import shoal
from shoal import _core


def processes(creators, num_envs=None, num_workers=2, **options):
    """As many workers as asked for, or as there are envs."""
    count = len(creators) if isinstance(creators, list) else num_envs or 1
    return shoal.Multiprocessing(creators, num_envs, num_workers=min(num_workers, count), **options)


def with_parent(creators, num_envs=None, **options):
    """The parent steps a share, if there is anything to share."""
    count = len(creators) if isinstance(creators, list) else num_envs or 1
    return shoal.Multiprocessing(creators, num_envs, num_workers=1, parent_steps=count > 1, **options)


BACKENDS = {"serial": shoal.Serial}
if _core.NAME == "native":
    BACKENDS |= {
        "one worker": partial(processes, num_workers=1),
        "two workers": processes,
        "parent steps": with_parent,
    }


# The sanitizers see the same paths of the core where a parent steps beside its worker.
AGAIN = ("one worker", "two workers")


def marks_of(name):
    """The marks of a parameter that is a backend."""
    return pytest.mark.again if name in AGAIN else ()


# Parameters: the name of each backend.
NAMES = [pytest.param(name, marks=marks_of(name)) for name in BACKENDS]


def with_spaces(spaces):
    """Parameters (backend, space): each space on Serial, and one Dict of all of them on each other backend.

    Rows are packed by the same code on every backend, so a pool for each space would show nothing more.
    """
    every = Dict({str(number): space for number, space in enumerate(spaces)})
    serial = [pytest.param(BACKENDS["serial"], space, id=f"serial-{space}") for space in spaces]
    others = [
        pytest.param(BACKENDS[name], every, id=name, marks=marks_of(name))
        for name in BACKENDS
        if name != "serial"
    ]
    return serial + others
