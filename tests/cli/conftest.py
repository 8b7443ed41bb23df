"""Commands run in this process too: load what the libraries behind them keep for good."""

import io
import multiprocessing

import pytest


@pytest.fixture(scope="session", autouse=True)
def _libraries_of_commands_that_hold_on():
    """Let matplotlib open its fonts, and multiprocessing its shared memory, before a test is blamed."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set(title="-")
    figure.savefig(io.BytesIO())
    block = multiprocessing.Array("b", 1)  # Gymnasium's async vector env takes its memory from the same block
    yield
    del block
