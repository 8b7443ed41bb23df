import importlib

import pytest
import torch

from shoal import registry
from shoal.compat import install_as_pufferlib
from tests.compat.pufferlib_envs import forget


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small networks wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_stays(monkeypatch):
    """Neither names of envs nor the stand-in for PufferLib outlive a test."""
    monkeypatch.setattr(registry, "_registered", {})
    forget()  # what other tests have installed
    yield
    forget()


@pytest.fixture
def pufferlib(nothing_stays):
    install_as_pufferlib()
    return importlib.import_module("pufferlib")
