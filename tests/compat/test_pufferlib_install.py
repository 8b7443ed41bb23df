"""Shoal's stand-in for PufferLib: installed when asked for, in workers too, and never over the real one."""

import importlib
import subprocess
import sys
import textwrap

import pytest

from shoal.compat import install_as_pufferlib
from shoal.compat import pufferlib as face
from shoal.errors import (
    CallError,
    MissingExtra,
)
from tests.compat.pufferlib_envs import Dice, forget, needs_processes

pytestmark = pytest.mark.usefixtures("nothing_stays")


def test_install_twice(pufferlib):
    install_as_pufferlib()
    assert importlib.import_module("pufferlib") is pufferlib
    assert importlib.import_module("pufferlib.vectorization") is pufferlib.vectorization
    assert importlib.util.find_spec("pufferlib").origin == "shoal.compat"
    assert sys.meta_path.count(face.FACADE) == 1


@pytest.mark.parametrize("imported", [False, True])
def test_the_real_one_is_not_replaced(tmp_path, monkeypatch, imported):
    package = tmp_path / "pufferlib"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    install_as_pufferlib()  # a mere folder
    forget()
    (package / "__init__.py").write_text("real = True")
    importlib.invalidate_caches()
    if imported:
        importlib.import_module("pufferlib")
    with pytest.raises(CallError, match=r"PufferLib itself is installed, in .*pufferlib/__init__.py"):
        install_as_pufferlib()
    assert importlib.import_module("pufferlib").real
    with face.make("CartPole-v1", num_envs=2, backend="serial") as env:
        assert env.reset().shape == (2, 4)


@pytest.mark.parametrize(
    "statement",
    [
        "import pufferlib.emulation",
        "from pufferlib import emulation",
        "from pufferlib.vectorization import Ray",
    ],
)
def test_names_that_are_not_offered(pufferlib, statement):
    with pytest.raises(
        MissingExtra, match=r"has only make, PufferEnv and vectorization, and that only Serial"
    ):
        exec(statement)
    assert not hasattr(pufferlib, "emulation")
    with pytest.raises(AttributeError, match=r"pufferlib.emulation: Shoal's stand-in for pufferlib has only"):
        _ = pufferlib.emulation


def test_importing_shoal_installs_nothing():
    run = "import sys, shoal, shoal.compat; print([name for name in sys.modules if 'puffer' in name])"
    assert subprocess.check_output([sys.executable, "-c", run], text=True) == "[]\n"


SCRIPT = """
import pufferlib
from pufferlib import PufferEnv
from pufferlib.vectorization import Serial

class Game(PufferEnv):
    def __init__(self, buf=None):
        super().__init__(buf)
        self.observation_space = self.action_space = self.make_space(3)

    def reset(self):
        import pufferlib.vectorization

        assert pufferlib.vectorization.Serial is Serial
        return 1

    def step(self, action):
        return action, 1.0, False, {}

def create():
    return pufferlib.vectorization.Serial(Game, num_envs=2)
"""


@needs_processes
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_have_it_too(pufferlib, method):
    names = {"__name__": "script"}  # as in a script, which no worker can import
    exec(SCRIPT, names)
    with pufferlib.make(names["create"], 2, num_workers=2, start_method=method) as env:
        assert env.reset().tolist() == [1] * 4
        assert env.step([0, 1, 2, 0])[0].tolist() == [0, 1, 2, 0]


@needs_processes
def test_workers_have_it_for_envs_in_files(pufferlib, tmp_path):
    (tmp_path / "game.py").write_text(SCRIPT)
    with pufferlib.make(f"{tmp_path}/game.py:Game", num_envs=2, num_workers=2) as env:
        assert env.reset().tolist() == [1, 1]
    sys.path.remove(str(tmp_path))


@needs_processes
def test_a_script_as_users_write_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import shoal.compat; shoal.compat.install_as_pufferlib()\n"
        + SCRIPT
        + textwrap.dedent("""
        env = pufferlib.vectorization.Multiprocessing(Game, num_envs=4, num_workers=2)
        env.reset()
        print(env.step(env.action_space.sample())[1])
        """)
    )
    assert subprocess.check_output([sys.executable, script], text=True) == "[1. 1. 1. 1.]\n"


@needs_processes
def test_workers_have_it_only_if_it_is_installed():
    def create():
        assert importlib.util.find_spec("pufferlib") is None
        return Dice()

    with face.Multiprocessing(create, num_envs=2, num_workers=2) as env:
        env.reset()
