"""Commands run in this process too: load what the libraries behind them keep for good."""

import multiprocessing

import pytest


@pytest.fixture(scope="session", autouse=True)
def _libraries_of_commands_that_hold_on(fonts):
    """Let multiprocessing take its shared memory before a test is blamed."""
    block = multiprocessing.Array("b", 1)  # Gymnasium's async vector env takes its memory from the same block
    yield
    del block
