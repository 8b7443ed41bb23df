"""`shoal bench`, as a command."""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
from types import ModuleType

import gymnasium
import pytest

from shoal import _core, registry
from shoal.cli import main
from tests.cli.running import in_a_terminal, python, shoal
from tests.conftest import wait_until

NAMES = ["bare loop", "shoal.Serial", "shoal.Multiprocessing", "gymnasium Sync", "gymnasium Async"]
NATIVE = _core.NAME == "native"
NO_CORE = "needs Linux and the compiled core"


@pytest.fixture(autouse=True)
def _names_are_forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def file(tmp_path):
    """Writes a file of envs; returns its path."""

    def write(text):
        path = tmp_path / "own.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def lines_of(out):
    """What stands beside each name."""
    found = {name: re.search(rf"^{name}  +(.*)$", out, re.MULTILINE) for name in NAMES}
    return {name: match[1].strip() for name, match in found.items() if match}


def measured(out):
    """The names that have figures."""
    return [name for name, rest in lines_of(out).items() if re.match(r"[\d,]+  ", rest)]


def test_an_env_in_a_file_with_arguments(file):
    path = file(
        """
        import sys
        import warnings

        from gymnasium.spaces import Box, Dict, Discrete, Text
        from shoal.testing import SampleEnv


        class Maze(SampleEnv):
            def __init__(self, size, text="none"):
                assert (size, text) == (3, "some")
                warnings.warn("the maze is small")
                space = Dict({"map": Box(0, 1, (size, size)), "task": Text(5)})
                super().__init__(space, Dict({"move": Discrete(4), "look": Box(-1, 1, (2,))}))

            def step(self, action):
                print("moved")
                print("really", file=sys.stderr)
                return super().step(action)
        """
    )
    kwargs = '{"size": 3, "text": "some"}'
    done = shoal("bench", f"{path}:Maze", "--num-envs", 3, "--seconds", 0.5, "--env-kwargs", kwargs)
    assert (done.returncode, done.stderr) == (0, "note: the maze is small\n")
    assert done.stdout.startswith(f"3 x {path}:Maze, ")
    assert "\x1b" not in done.stdout
    assert "moved" not in done.stdout
    assert measured(done.stdout) == [name for name in NAMES if NATIVE or name != "shoal.Multiprocessing"]
    assert "of bare  quartiles  of Sync  quartiles" in re.sub("  +", "  ", done.stdout)
    if not NATIVE:
        assert lines_of(done.stdout)["shoal.Multiprocessing"] == NO_CORE
        assert "no compiled core" in done.stdout


def test_who_cannot_run_an_env_says_why(file):
    path = file(
        """
        import os

        from gymnasium.spaces import Discrete
        from shoal.testing import SentinelEnv

        OWNER = int(os.environ.setdefault("OWNER_OF_THIS_TEST", str(os.getpid())))


        class Homely(SentinelEnv):
            metadata = None  # which Gymnasium's vector envs look into

            def step(self, action):
                if os.getpid() != OWNER:
                    raise OSError("far from home")
                return super().step(action)
        """
    )
    done = shoal("bench", f"{path}:Homely", "--num-envs", 2, "--seconds", 0.3)
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done.stdout)
    assert measured(done.stdout) == ["bare loop", "shoal.Serial"]
    assert lines["shoal.Multiprocessing"] == ("OSError: far from home" if NATIVE else NO_CORE)
    assert lines["gymnasium Sync"].startswith("TypeError: ")
    assert lines["gymnasium Async"].startswith("TypeError: ")


def test_nobody_can_run_it(file):
    path = file(
        """
        from shoal.testing import SentinelEnv


        class Useless(SentinelEnv):
            def step(self, action):
                raise ValueError("out of order")
        """
    )
    done = shoal("bench", f"{path}:Useless", "--num-envs", 2)
    assert done.returncode == 1
    assert re.findall(r'File "(.*)", line \d+, in (\w+)', done.stderr) == [(str(path), "step")]
    assert re.search(r"\nshoal: ValueError: out of order, raised by step\(\) of env \d\n$", done.stderr)
    lines = lines_of(done.stdout)
    assert list(lines) == NAMES
    for name, why_not in lines.items():
        expected = "ValueError: out of order" if NATIVE or name != "shoal.Multiprocessing" else NO_CORE
        assert why_not == expected


MORTAL = """
    import os
    import signal

    from shoal.testing import SentinelEnv

    OWNER = int(os.environ.setdefault("OWNER_OF_THIS_TEST", str(os.getpid())))


    class Mortal(SentinelEnv):
        def __init__(self, hangs=False):
            super().__init__()
            self.hangs = hangs

        def step(self, action):
            if os.getpid() != OWNER:
                while self.hangs:
                    signal.pause()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)
"""


def test_workers_that_die(file):
    done = shoal("bench", f"{file(MORTAL)}:Mortal", "--num-envs", 2, "--seconds", 0.3)
    assert (done.returncode, done.stderr) == (0, "")
    assert measured(done.stdout) == ["bare loop", "shoal.Serial", "gymnasium Sync"]
    lines = lines_of(done.stdout)
    assert lines["gymnasium Async"] == "a worker process has died"
    assert re.match("WorkerDied: " if NATIVE else NO_CORE, lines["shoal.Multiprocessing"])


@pytest.mark.slow
def test_workers_that_hang(file):
    impatient = """
        import sys
        from shoal.cli import _turns, main

        _turns.PATIENCE_SECONDS = 3.0
        sys.exit(main(sys.argv[1:]))
    """
    options = ["--num-envs", 2, "--seconds", 0.3, "--env-kwargs", '{"hangs": true}']
    done = python(textwrap.dedent(impatient), "bench", f"{file(MORTAL)}:Mortal", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert measured(done.stdout) == ["bare loop", "shoal.Serial", "gymnasium Sync"]
    lines = lines_of(done.stdout)
    silent = r"no answer for \d+ s"
    assert re.fullmatch(silent, lines["gymnasium Async"])
    assert re.fullmatch(silent if NATIVE else NO_CORE, lines["shoal.Multiprocessing"])


def test_envs_that_are_no_gymnasium_envs(file):
    path = file(
        """
        import gymnasium
        from tests.envs import Turns


        def pair():
            return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}  # noqa: PTH109 - the tests are a package
    rows = shoal("bench", f"{path}:Turns", "--num-envs", 2, "--seconds", 0.3, env=environment)
    vector = shoal("bench", f"{path}:pair", "--num-envs", 2, "--seconds", 0.3, env=environment)
    for done, said in ((rows, "steps one agent at a time"), (vector, "is a vector env already")):
        assert (done.returncode, done.stderr) == (0, "")
        lines = lines_of(done.stdout)
        assert lines["bare loop"] == said
        assert lines["gymnasium Sync"] == lines["gymnasium Async"] == "runs Gymnasium's envs only"
        assert measured(done.stdout) == (NAMES[1:3] if NATIVE else NAMES[1:2])
        assert "of Serial" in done.stdout
    assert "Counted are the steps of agents." in rows.stdout
    assert "Counted are the steps of agents." not in vector.stdout


COMPILED = """
    import numpy as np
    import shoal
    from gymnasium.spaces import Box, Discrete

    class Mine(shoal.NativeEnv):
        observation_space = Box(0, 1, (1,), np.float32)
        action_space = Discrete(2)
        max_episode_steps = 9

        @staticmethod
        def reset(obs):
            obs[0] = 0.5

        @staticmethod
        def step(action):
            return action, False
"""


@pytest.mark.skipif(not NATIVE, reason="needs the compiled core")
def test_compiled_envs_run_compiled(file):
    done = shoal("bench", f"{file(COMPILED)}:Mine", "--num-envs", 3, "--seconds", 0.5)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(\w[\w. ]*?)  +[\d,]+  ", done.stdout, re.MULTILINE)
    assert rows == ["bare loop", "shoal.Native", *NAMES[1:]]
    assert re.search(r"^3 x .*, \d+ workers?, \d+ threads?, ", done.stdout)


@pytest.mark.skipif(not NATIVE, reason="needs the compiled core")
def test_many_compiled_envs_are_no_objects(capsys):
    assert main(["bench", "shoal/CartPole-v1", "--num-envs", "4096", "--seconds", "0.3"]) == 0
    out = capsys.readouterr().out
    assert measured(out) == ["bare loop"]
    assert re.search(r"^shoal\.Native +[\d,]+ ", out, re.MULTILINE)
    assert "workers" not in out
    for name in NAMES[1:]:
        assert lines_of(out)[name] == "makes an object for each env: measured up to 128 compiled envs"


def test_an_engine_is_compared_with_itself(monkeypatch, capsys):
    engine = ModuleType("some_engine")

    def create(name, *, num_envs, autoreset_mode):
        assert name == "carts"
        creators = [lambda: gymnasium.make("CartPole-v1")] * num_envs
        return gymnasium.vector.SyncVectorEnv(creators, autoreset_mode=autoreset_mode)

    engine.names, engine.create = lambda: ["carts"], create
    monkeypatch.setitem(sys.modules, "some_engine", engine)
    family = registry.Family("many", "one engine", "some_engine", steps_many=True)
    monkeypatch.setitem(registry.FAMILIES, "many", family)
    assert main(["bench", "many-carts", "--num-envs", "2", "--seconds", "0.2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^direct use +[\d,]+ +1\.00$", out, re.MULTILINE)
    assert re.search(r"^shoal\.make +[\d,]+ +\d\.\d\d +\S+-\S+$", out, re.MULTILINE)
    assert "of direct" in out
    gc.collect()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["CartPole-v1", "--num-envs", "0"], "--num-envs: expected at least 1, got 0"),
        (["CartPole-v1", "--num-envs", "2", "--num-workers", "3"], "--num-workers: expected 1 to 2"),
        (["CartPole-v1", "--seconds", "0"], "--seconds: expected a positive number, got 0.0"),
        (["CartPole-v1", "--seconds", "nan"], "--seconds: expected a positive number, got nan"),
        (
            ["CartPole-v1", "--env-kwargs", "{size: 3}"],
            "expected a JSON object such as .*, got '{size: 3}': ",
        ),
        (["CartPole-v1", "--env-kwargs", "[3]"], r"expected a JSON object such as .*, got '\[3\]'"),
        (["CartPole-v1", "--env-kwargs", '{"x": 1}'], "CartPole-v1 cannot be made: TypeError: .*'x'"),
        (["no/such/file.py:Maze"], "there is no file"),
    ],
)
def test_wrong_arguments(args, said, capsys):
    assert main(["bench", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(said, captured.err)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("attribute", "said"), [("Maze", "has no 'Maze'"), ("Bad", "RuntimeError: no display")]
)
def test_a_file_that_cannot_be_used(attribute, said, file, capsys):
    path = file("class Bad:\n    def __init__(self):\n        raise RuntimeError('no display')\n")
    assert main(["bench", f"{path}:{attribute}"]) == 2
    assert said in capsys.readouterr().err


def test_a_terminal_shows_what_is_going_on():
    written, code = in_a_terminal("bench", "CartPole-v1", "--num-envs", 2, "--seconds", 0.5)
    assert code == 0
    for name in ("shoal.Serial", "gymnasium Sync", "gymnasium Async"):
        assert f"making 2 x CartPole-v1 for {name}" in written
    assert "0 s left" in written
    table = written[written.rindex(" s left") :]
    assert "\x1b[?25h" in table  # the cursor is there again
    assert "gymnasium Async" in table


def test_ctrl_c_ends_it_without_a_word_too_many(file, tmp_path):
    path = file(
        """
        from pathlib import Path

        from shoal.testing import SentinelEnv


        class Marked(SentinelEnv):
            def step(self, action):
                Path(__file__).with_name("stepped").touch()
                return super().step(action)
        """
    )
    command = [sys.executable, "-m", "shoal", "bench", f"{path}:Marked", "--num-envs", "2", "--seconds", "60"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background jobs ignore it
    ) as process:
        assert wait_until((tmp_path / "stepped").exists, 60)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "shoal: interrupted\n")

    def all_gone():
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    assert wait_until(all_gone, 30)
