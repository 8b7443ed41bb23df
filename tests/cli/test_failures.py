"""An env that raises: its own traceback, short, and one line that names the env and the verb."""

import re
import sys
from pathlib import Path

import gymnasium
import pytest

import shoal
from shoal import _core
from shoal.cli._failures import MOST_FRAMES, shorten
from shoal.errors import ArgumentError, EnvError
from tests.cli.running import in_process

ENVS = """
import sys, threading
import gymnasium, numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit


class Boom(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == 100:
            self.fail()
        return np.zeros(2, np.float32), 1.0, self.count % 10 == 0, False, {}

    def fail(self):
        raise LookupError("no goal")


class InInit(Boom):
    def __init__(self):
        raise LookupError("no map")


class InReset(Boom):
    def reset(self, seed=None, options=None):
        raise LookupError("no start")


class Deep(Boom):
    def fail(self, depth=60):
        self.deeper(depth - 1)

    def deeper(self, depth):
        if depth < 0:
            raise LookupError("no goal")
        self.fail(depth)


class Chained(Boom):
    def fail(self):
        try:
            {}["goal"]
        except KeyError as error:
            raise ValueError("no goal\\nanywhere") from error


class Odd(Exception):
    def __init__(self, first, second):
        super().__init__("odd")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("not to be pickled")


class Unpickled(Boom):
    def fail(self):
        raise Odd(1, 2)


class Exits(Boom):
    def fail(self):
        sys.exit(3)


def Wrapped():
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(Boom())), 1000)
"""

STEP = r"raised by step\(\) of env \d"
CASES = {
    "Boom": (["step", "fail"], rf"LookupError: no goal, {STEP}"),
    "InInit": (["__init__"], r"LookupError: no map, raised while creating env \d"),
    "InReset": (["reset"], r"LookupError: no start, raised by reset\(\) of env \d"),
    "Chained": (["fail", "step", "fail"], rf"ValueError: no goal anywhere, {STEP}"),
    "Unpickled": (["step", "fail"], rf"Odd: odd, {STEP}"),
    "Exits": (["step", "fail"], r"env \d called sys.exit\(3\) in step\(\). Let the env raise .* instead"),
    "Wrapped": (["step", "fail"], rf"LookupError: no goal, {STEP}"),
}
BACKENDS = [
    "serial",
    pytest.param(
        "multiprocessing", marks=pytest.mark.skipif(_core.NAME != "native", reason="workers need the core")
    ),
]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / "envs.py"
    path.write_text(ENVS)
    return path


def train(capsys, env, folder, backend="serial"):
    options = ["--num-envs", "2", "--horizon", "64", "--minibatch-size", "64", "--total-steps", "1e4"]
    args = ["train", "ppo", "--env", env, "--run-dir", folder, "--backend", backend, *options]
    return in_process(capsys, *args)


def frames_in(text):
    """File and function of each frame in a traceback."""
    return re.findall(r'^  File "(.*)", line \d+, in (\w+)$', text, re.MULTILINE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_only_the_frames_of_the_env(file, tmp_path, capsys, name, backend):
    functions, last = CASES[name]
    done = train(capsys, f"{file}:{name}", tmp_path / "run", backend)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert frames_in(done.stderr) == [(str(file), function) for function in functions]
    assert re.fullmatch(f"shoal: {last}", lines[-1])
    assert done.stderr.count("raised ") <= 1
    assert "EnvError" not in done.stderr


def test_many_frames_are_cut_in_the_middle(file, tmp_path, capsys):
    done = train(capsys, f"{file}:Deep", tmp_path / "run")
    frames = frames_in(done.stderr)
    assert len(frames) == MOST_FRAMES
    assert [function for _, function in frames[:2]] == ["step", "fail"]
    assert frames[-1][1] == "deeper"
    assert re.search(r"^  \[\d+ frames are left out\]$", done.stderr, re.MULTILINE)


def test_a_file_that_cannot_be_imported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / "broken.py"
    path.write_text("def load():\n    return {}['map']\n\n\nload()\n")
    done = train(capsys, f"{path}:Any", tmp_path / "run")
    assert done.returncode == 1
    assert re.findall(r'^  File "(.*)", line (\d+)', done.stderr, re.MULTILINE) == [
        (str(path), "5"),
        (str(path), "2"),
    ]
    assert done.stderr.endswith(f"shoal: KeyError: 'map', raised while importing {path}\n")


@pytest.mark.skipif(_core.NAME != "native", reason="compiled envs need the core")
def test_a_compiled_env_takes_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / "compiled.py"
    path.write_text(
        "from shoal.envs.template import Orchard\n\n\nclass Boom(Orchard):\n    @staticmethod\n"
        '    def step(state, action, obs):\n        raise ValueError("no apple")\n'
    )
    done = train(capsys, f"{path}:Boom", tmp_path / "run", "auto")
    assert done.returncode == 2
    assert re.fullmatch(rf"shoal: Boom\.step, line 7 of {path}: .*no apple.*\n", done.stderr)


def traceback(*files, error="ValueError: no goal\n"):
    frames = [f'  File "{file}", line 3, in step\n    code()\n    ^^^^^^\n' for file in files]
    return "".join(["Traceback (most recent call last):\n", *frames, error])


SHOAL, GYMNASIUM = (Path(module.__file__).parent for module in (shoal, gymnasium))
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    "noise",
    [
        SHOAL / "vector/vec.py",
        GYMNASIUM / "core.py",
        GYMNASIUM / "wrappers/common.py",
        GYMNASIUM / "utils/passive_env_checker.py",
        GYMNASIUM / "envs/registration.py",
        "/x/torch/utils/_contextlib.py",
        "<frozen runpy>",
        "<string>",
    ],
)
def test_frames_that_are_left_out(noise):
    assert shorten(traceback(noise, "/my/env.py", noise)) == traceback("/my/env.py")


@pytest.mark.parametrize("file", [SHOAL / "envs/foragers.py", GYMNASIUM / "envs/box2d/lunar_lander.py"])
def test_frames_of_envs_stay(file):
    assert shorten(traceback(SHOAL / "vector/vec.py", file)) == traceback(file)


def test_an_error_of_a_wrapper_keeps_its_last_frame():
    wrapper = GYMNASIUM / "wrappers/common.py"
    assert shorten(traceback(SHOAL / "vector/vec.py", wrapper, wrapper)) == traceback(wrapper)
    assert shorten(traceback(SHOAL / "vector/vec.py")) == "ValueError: no goal\n"


def test_a_long_chain_keeps_the_last_errors():
    chain = CAUSE.join(traceback(f"/my/{number}.py", error=f"ValueError: {number}\n") for number in range(9))
    short = shorten(chain)
    assert short.startswith("[6 earlier errors are left out]\n\nTraceback")
    assert [file for file, _ in frames_in(short)] == ["/my/6.py", "/my/7.py", "/my/8.py"]
    assert short.count("direct cause") == 2


def test_a_stand_in_of_shoal_is_left_to_the_last_line():
    error = f"{EnvError.__module__}.EnvError: env 0 called sys.exit(3)\n"
    text = traceback("/my/env.py") + CAUSE + traceback(SHOAL / "vector/vec.py", error=error)
    assert shorten(text) == traceback("/my/env.py")


def test_an_error_without_a_text_of_its_own_is_kept():
    error = f"{ArgumentError.__module__}.ArgumentError: no\n"
    assert shorten(error) == error
