"""Kernels on disk: found again, and never out of date."""

import subprocess
import sys
import textwrap
from enum import IntEnum

import pytest

import shoal

pytestmark = pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core")

ENV = """
import numpy as np
import shoal
from gymnasium.spaces import Box, Discrete
import tables

FACTOR = 2.0

def worth(place):
    return place * FACTOR + tables.BONUS

class Walk(shoal.NativeEnv):
    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(3)
    state = np.dtype([("place", np.float64)])
    constants = {"step_size": 1.0}

    @staticmethod
    def reset(obs):
        obs[0] = 0.0

    @staticmethod
    def step(state, action, obs, config):
        state.place += config.step_size
        obs[0] = state.place
        return worth(state.place), False
"""

RUN = """
import numpy as np, shoal, sys
from walk import Walk
from shoal.native import compiling
with shoal.make(Walk, 2, **eval(sys.argv[1])) as vec:
    vec.reset(seed=0)
    rewards = vec.step(np.zeros(2, np.int64))[1]
    print(rewards[0], vec._kernel.was_cached)
"""


@pytest.fixture
def project(tmp_path):
    """A folder with an env, a cache of its own, and what its first use says."""
    (tmp_path / "walk.py").write_text(ENV)
    (tmp_path / "tables.py").write_text("BONUS = 0.5\n")
    (tmp_path / "run.py").write_text(RUN)

    def run(options="{}", cache="cache"):
        import os

        environment = {**os.environ, "SHOAL_CACHE_DIR": str(tmp_path / cache), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "run.py", options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        reward, cached = done.stdout.split()
        return float(reward), cached == "True"

    run.folder = tmp_path
    return run


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.timeout(400)  # each of its processes compiles
def test_an_edited_env_is_compiled_anew(project):
    assert project() == (2.5, False)
    assert project() == (2.5, True)
    walk = project.folder / "walk.py"
    edits = [
        (walk, "state.place += config.step_size", "state.place += 3 * config.step_size", 6.5),
        (walk, "place * FACTOR", "place * FACTOR * 10", 60.5),  # a function that it calls
        (walk, "FACTOR = 2.0", "FACTOR = 4.0", 120.5),  # a number that function reads
        (project.folder / "tables.py", "0.5", "0.25", 120.25),  # in another file
    ]
    for path, old, new, reward in edits:
        change(path, old, new)
        assert project() == (reward, False)
    assert project() == (reward, True)
    change(walk, "\nclass Walk", "\n# A word.\nclass Walk")  # says nothing new
    assert project() == (reward, True)
    assert project("{'env_kwargs': {'step_size': 2.0}}") == (240.25, False)


@pytest.mark.slow
@pytest.mark.timeout(400)  # each of its processes compiles
def test_a_torn_file_is_made_anew_and_a_cache_that_cannot_be_written_is_done_without(project):
    assert project() == (2.5, False)
    (kernel,) = (project.folder / "cache").glob("*.kernel")
    whole = kernel.read_bytes()
    kernel.write_bytes(whole[: len(whole) // 2])
    assert project() == (2.5, False)
    assert project() == (2.5, True)
    assert [path.suffix for path in (project.folder / "cache").iterdir()] == [".kernel"]
    (project.folder / "no folder").write_text("")
    assert project(cache="no folder") == (2.5, False)


def test_the_fingerprint_tells_apart_what_differs():
    from shoal.native.fingerprint import fingerprint
    from shoal.native.spec import Spec

    def made(factor, table=(1, 2), text=""):
        def worth(place):
            return place * factor + table[0] if isinstance(table[0], float) else 0.0

        namespace = {"shoal": shoal, "worth": worth}
        exec("import numpy as np\nfrom gymnasium.spaces import Box, Discrete\n", namespace)
        source = f"""
        class Walk(Base):
            observation_space = Box(0, 1, (1,), np.float64)
            action_space = Discrete(3)
            {text}
            @staticmethod
            def reset(obs):
                obs[0] = 0.0
            @staticmethod
            def step(obs):
                return worth(1.0), False
        """
        namespace["Base"] = type(
            "Base", (shoal.NativeEnv,), {"__init_subclass__": classmethod(lambda cls: None)}
        )
        exec(textwrap.dedent(source), namespace)
        return fingerprint(Spec.of(namespace["Walk"]))

    plain = made(2.0)
    assert plain == made(2.0)
    assert None not in (plain, made(3.0))
    others = [
        made(3.0),
        made(2.0, (2, 2)),
        made(2.0, text="max_episode_steps = 3"),
        made(2.0, text="num_agents = 1;state = [('x', 'f4')]"),
    ]
    assert len({plain, *others}) == 5
    assert made(object()) is None  # it has no value that could be told
    first, second = (IntEnum("Move", {"UP": number}) for number in (0, 3))
    assert made(first.UP) != made(second.UP)
    assert made(2.0, (first, 1)) != made(2.0, (second, 1))
    assert made(2.0, (type("Mine", (), {}), 1)) is None
