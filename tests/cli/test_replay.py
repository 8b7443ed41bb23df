"""`shoal eval --replay`: frames of all kinds as GIF and MP4, and envs that draw none."""

import importlib.util
import re
import subprocess
import sys
import warnings

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image

from shoal import _core, register
from shoal.cli import _replay
from shoal.cli._replay import check_env_draws, to_frame, write_replay
from shoal.errors import ArgumentError, MissingExtra
from shoal.learn import PPO, PPOConfig
from shoal.video import Mp4, check_path
from tests.cli.running import in_process

LENGTH = 7  # steps of an episode: one frame more


class Drawn(gymnasium.Env):
    """Draws frames of odd size, or what the argument `drawn` says."""

    observation_space, action_space = Box(0, 1, (2,)), Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, drawn="frame", render_mode=None):
        self.drawn, self.render_mode = drawn, render_mode
        if drawn == "refused" and render_mode is not None:
            warnings.warn(f"{render_mode} is new to me", stacklevel=2)  # an error here, unless it is ignored
            raise ValueError(f"no {render_mode} here")

    def reset(self, seed=None, options=None):
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == LENGTH, False, {}

    def render(self):
        if self.drawn == "missing package":
            import shoal_has_no_such_package  # noqa: F401
        if self.drawn == "unknown":
            raise NotImplementedError("no picture yet")
        if self.drawn == "dependency":
            raise gymnasium.error.DependencyNotInstalled("pip install paint")
        if self.drawn == "mistake":
            raise LookupError("no colour")
        if self.drawn == "late mistake" and self.count == 3:
            raise LookupError("no colour")
        if self.drawn in ("none", "text"):
            return None if self.drawn == "none" else "a frame"
        height = 71 + (self.count if self.drawn == "growing" else 0)
        return np.full((height, 65, 3), 30 * self.count, np.uint8)


class Plain(gymnasium.Env):
    """Takes no render mode."""

    observation_space, action_space = Drawn.observation_space, Drawn.action_space
    reset, step = Drawn.reset, Drawn.step


class Loose:
    """An env that is no `gymnasium.Env` and has no render()."""

    observation_space, action_space = Drawn.observation_space, Drawn.action_space
    reset, step = Drawn.reset, Drawn.step

    def __init__(self, render_mode=None):
        pass


@pytest.fixture(scope="module", autouse=True)
def _names():
    for cls in (Drawn, Plain, Loose):
        register(f"replay-{cls.__name__}", cls)


@pytest.fixture(scope="module")
def policy(_names):
    with PPO("replay-Drawn", PPOConfig(num_envs=1, backend="serial", minibatch_size=16, seed=1)) as ppo:
        return ppo.policy


def replay(path, policy, drawn="frame"):
    write_replay(path, policy, "replay-Drawn", {"drawn": drawn}, seed=0)


def read(path):
    """What ffmpeg says of a video's stream, and the frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    stream = re.search(r"Stream .*: Video: (.*)", done.stderr.decode())[1]
    width, height = map(int, re.search(r" (\d{2,})x(\d+)", stream).groups())
    return stream, np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def test_an_mp4_is_what_browsers_play(policy, tmp_path):
    path = tmp_path / "new" / "replay.mp4"
    replay(path, policy)
    stream, frames = read(path)
    assert re.match(r"h264 .*, yuv420p\W.* 20 fps", stream)
    assert frames.shape == (LENGTH + 1, 72, 66, 3)
    for number, frame in enumerate(frames):
        assert abs(frame.astype(int) - 30 * number).max() < 8
    # The index comes before the frames, so that a browser can begin before it has the whole file.
    written = path.read_bytes()
    assert 0 < written.index(b"moov") < written.index(b"mdat")
    assert [*path.parent.iterdir()] == [path]


def test_a_gif_has_the_first_frames(policy, tmp_path, monkeypatch):
    for most, count in ((600, LENGTH + 1), (4, 4)):
        monkeypatch.setattr(_replay, "MOST_GIF_FRAMES", most)
        replay(tmp_path / "replay.gif", policy)
        with Image.open(tmp_path / "replay.gif") as image:
            assert (image.n_frames, image.size, image.info["duration"]) == (count, (65, 71), 50)


def test_a_small_frame_is_magnified(tmp_path):
    video = Mp4(tmp_path / "small.mp4", 10)
    picture = np.zeros((3, 5, 3), np.uint8)
    picture[1, 2] = 255
    video.append(picture)
    video.close()
    _, (frame,) = read(tmp_path / "small.mp4")
    assert frame.shape == (66, 110, 3)
    assert frame[33, 55].min() > 240
    assert frame[:20].max() < 15


@pytest.mark.parametrize("ending", ["gif", "mp4"])
@pytest.mark.parametrize(
    ("drawn", "error", "message"),
    [
        ("late mistake", LookupError, "no colour"),
        ("growing", ArgumentError, "expected frames of one size, got 65 x 72 pixels in frame 2, and 65 x 71"),
    ],
)
def test_a_failure_keeps_the_older_replay(policy, tmp_path, drawn, error, message, ending):
    path = tmp_path / f"replay.{ending}"
    path.write_text("older")
    with pytest.raises(error, match=message):
        replay(path, policy, drawn)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "older"


GREY, COLOUR = np.array([[0, 51], [102, 255]], np.uint8), np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


@pytest.mark.parametrize(
    ("drawn", "frame"),
    [
        (COLOUR, COLOUR),
        (COLOUR.tolist(), COLOUR),
        (COLOUR.astype(np.int64), COLOUR),
        (COLOUR / 255, COLOUR),
        ((COLOUR / 255).astype(np.float32), COLOUR),
        (np.concatenate([COLOUR, GREY[:, :, None]], 2), COLOUR),
        (GREY, np.stack([GREY] * 3, 2)),
        (GREY[:, :, None], np.stack([GREY] * 3, 2)),
        (GREY > 60, np.stack([255 * (GREY > 60)] * 3, 2)),
        (COLOUR[::-1], COLOUR[::-1]),
    ],
    ids=["uint8", "lists", "int64", "float64", "float32", "RGBA", "grey", "one channel", "bool", "reversed"],
)
def test_frames_of_many_kinds(drawn, frame):
    made = to_frame(drawn, "my env")
    assert made.dtype == np.uint8
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, frame)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (None, "render() returned None"),
        ("a frame", "render() returned a str"),
        (np.array(["a"]), "render() returned a ndarray"),
        ([None], "render() returned a list"),
        ([[1], [1, 2]], "render() returned a list"),
        (np.zeros((3, 4, 5)), "render() returned an array of shape (3, 4, 5)"),
        (np.zeros((0, 4, 3)), "render() returned an array of shape (0, 4, 3)"),
        (np.zeros(4), "render() returned an array of shape (4,)"),
        (np.full((2, 2), 256), "render() returned int64 from 256 to 256, expected 0 to 255"),
        (np.full((2, 2), -0.5), "render() returned float64 from -0.5 to -0.5, expected 0 to 1"),
        (np.full((2, 2), np.nan), "render() returned float64 from nan to nan, expected 0 to 1"),
    ],
)
def test_what_is_no_frame(drawn, message):
    with pytest.raises(ArgumentError, match=r"^--replay: my env draws no frames: ") as caught:
        to_frame(drawn, "my env")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("env", "drawn", "message"),
    [
        ("replay-Plain", None, r"Plain\(\) takes no arguments"),
        ("replay-Loose", None, r"it has no render\(\)"),
        ("replay-Drawn", "none", r"render\(\) returned None"),
        ("replay-Drawn", "text", r"render\(\) returned a str"),
        ("replay-Drawn", "unknown", "NotImplementedError: no picture yet"),
        ("replay-Drawn", "refused", "ValueError: no rgb_array here"),
        ("replay-Drawn", "dependency", "DependencyNotInstalled: pip install paint"),
        (
            "replay-Drawn",
            "missing package",
            "ModuleNotFoundError: No module named 'shoal_has_no_such_package'",
        ),
        pytest.param(
            "shoal/ProbeBandit-v0",
            None,
            "has no 'rgb_array'",
            marks=pytest.mark.skipif(_core.NAME != "native", reason="compiled envs need the core"),
        ),
    ],
)
def test_an_env_that_draws_no_frames(env, drawn, message):
    kwargs = {} if drawn is None else {"drawn": drawn}
    with pytest.raises(ArgumentError, match=f"^--replay: {env} draws no frames: .*{message}"):
        check_env_draws(env, kwargs)


def test_a_mistake_in_render_is_not_hidden():
    with pytest.raises(LookupError, match="no colour") as caught:
        check_env_draws("replay-Drawn", {"drawn": "mistake"})
    assert caught.value.__notes__ == ["raised by render() of env 0"]


@pytest.mark.parametrize(
    ("given", "rate"), [(15, 15), (0.5, 0.5), (None, 30), (0, 30), ("fast", 30), (np.nan, 30), (1e9, 240)]
)
def test_frames_per_second(given, rate):
    assert _replay._rate({"render_fps": given}) == rate


@pytest.mark.parametrize("name", ["replay.avi", "replay", "replay.GIF.txt", "file/replay.mp4", "folder.mp4"])
def test_a_path_that_cannot_be_written(name, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(ArgumentError, match="--replay: expected a file"):
        check_path(tmp_path / name, "--replay")


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("x.gif", "PIL", "cli"), ("x.mp4", "imageio_ffmpeg", "video")]
)
def test_a_package_that_is_missing(name, package, extra, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(MissingExtra, match=rf'needs {package}: pip install "shoal\[{extra}\]"'):
        check_path(tmp_path / name, "--replay")


ENV = """
import os
import gymnasium, numpy as np


class Mine(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        pass

    def reset(self, seed=None, options=None):
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == 5, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8) if os.environ.get("SHOAL_TEST_DRAWS") else None
"""


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "mine.py").write_text(ENV)
    run, video = tmp_path / "run", tmp_path / "replay.mp4"
    options = ["--num-envs", "2", "--horizon", "8", "--minibatch-size", "16", "--total-steps", "16"]
    env = f"{tmp_path / 'mine.py'}:Mine"
    done = in_process(capsys, "train", "ppo", "--env", env, "--run-dir", run, *options, "--backend", "serial")
    assert done.returncode == 0, done.stderr

    # Refused before an episode is played, in one line.
    refused = in_process(capsys, "eval", run, "--env", env, "--episodes", "1", "--replay", video)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"shoal: --replay: {env} draws no frames: render() returned None. ")
    assert refused.stderr.count("\n") == 1

    monkeypatch.setenv("SHOAL_TEST_DRAWS", "1")
    done = in_process(capsys, "eval", run, "--env", env, "--episodes", "1", "--replay", video)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"replay: {video}\n")
    assert len(read(video)[1]) == 6
