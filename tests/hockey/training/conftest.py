"""Training plays compiled games, and draws plots."""

import pytest

from shoal import _core
from tests.cli.conftest import _libraries_of_commands_that_hold_on  # noqa: F401


def pytest_collection_modifyitems(items):
    if _core.NAME == "native":
        return
    for item in items:
        if item.path.parent.name == "training" and item.path.name not in ("test_config.py"):
            item.add_marker(pytest.mark.skip(reason="there are no compiled envs without the core"))
