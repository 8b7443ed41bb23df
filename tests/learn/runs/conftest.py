"""Commands run here too, and load what their libraries keep for good; and a run that tests may change."""

import shutil

import pytest

from tests.cli.conftest import _libraries_of_commands_that_hold_on  # noqa: F401
from tests.learn.runs.folders import evaluated_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    evaluated_run(folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a run with all files that a run can have."""
    return shutil.copytree(trained, tmp_path / "run")
