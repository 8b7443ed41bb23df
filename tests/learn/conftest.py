"""Learners are tested on compiled envs, which need the compiled core."""

import pytest

from shoal import _core

COMPILED = (
    "test_ppo.py",
    "test_ppo_masks.py",
    "test_ppo_nan.py",
    "test_ppo_refusals.py",
    "test_ppo_spaces.py",
    "test_probes_ppo.py",
)


def pytest_collection_modifyitems(items):
    if _core.NAME == "native":
        return
    for item in items:
        if item.path.name in COMPILED or item.path.parent.name == "runs":
            item.add_marker(pytest.mark.skip(reason="there are no compiled envs without the core"))
