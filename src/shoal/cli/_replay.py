"""Record one episode of a policy, and write it as a GIF or an MP4."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from shoal.errors import ArgumentError, MissingExtra, ShoalError
from shoal.stepping.env_faults import summary_of
from shoal.video import Frame, Mp4, check_path, replacing

if TYPE_CHECKING:
    from shoal.learn.base_policy import BasePolicy
    from shoal.vector.vec import VectorEnv

MOST_GIF_FRAMES = 600  # a GIF is made of frames in memory; an MP4 is encoded while the policy plays
DEFAULT_RATE, FASTEST_RATE = 30.0, 240.0  # frames per second


def check_env_draws(env: str, env_kwargs: Mapping[str, Any]) -> None:
    """Check that an env draws frames: make it, reset it, and draw its first frame.

    Raises:
        ArgumentError: If it does not; the message has the env's own error.
    """
    # An env that does not know the render mode may warn first. The error says the same.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _drawing(env, env_kwargs) as vec:
            vec.reset(seed=0)
            _draw(vec, env)


def write_replay(
    path: Path,
    policy: BasePolicy,
    env: str,
    env_kwargs: Mapping[str, Any],
    *,
    seed: int,
    deterministic: bool = True,
) -> None:
    """Play one episode, and write it as a GIF or an MP4, by the ending of the path.

    Raises:
        ArgumentError: If the path has another ending, or the env does not draw frames of one size.
        MissingExtra: If a package is not installed.
    """
    check_path(path, "--replay")
    with _drawing(env, env_kwargs) as vec, replacing(path) as unfinished:
        rate = _rate(vec.metadata)
        if path.suffix == ".gif":
            frames: list[Frame] = []
            _play(policy, vec, env, frames.append, MOST_GIF_FRAMES, seed, deterministic)
            write_gif(unfinished, frames, rate)
        else:
            with closing(Mp4(unfinished, rate)) as video:
                _play(policy, vec, env, video.append, None, seed, deterministic)


def write_gif(path: Path, frames: list[Frame], rate: float) -> None:
    """Write frames as a GIF that loops."""
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    # One palette for all frames, made from at most eight of them. A palette per frame takes 15 times as long.
    some = [frame.reshape(1, -1, 3) for frame in frames[:: -(-len(frames) // 8)]]
    palette = Image.fromarray(np.concatenate(some, axis=1)).quantize(256)
    pictures = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=max(20, round(1000 / rate)), loop=0
    )


def to_frame(drawn: Any, env: str) -> Frame:
    """Convert what an env's render() returned to a frame.

    Grey, RGB and RGBA pictures are taken: integers from 0 to 255, floats from 0 to 1, or booleans.

    Raises:
        ArgumentError: If it is no such picture.
    """
    if drawn is None:
        raise _no_frame(env, "render() returned None")
    array = np.asarray(None)
    if isinstance(drawn, (np.ndarray, list, tuple)):
        with suppress(ValueError):  # lists of different lengths
            array = np.asarray(drawn)
    kind = array.dtype.kind
    if kind not in "buif":
        raise _no_frame(env, f"render() returned a {type(drawn).__name__}")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise _no_frame(env, f"render() returned an array of shape {np.shape(drawn)}")
    array = np.broadcast_to(array, (*array.shape[:2], 3)) if array.shape[2] == 1 else array[:, :, :3]
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    highest = 255 if kind in "ui" else 1
    # This form refuses NaN too.
    if not (array.min() >= 0 and array.max() <= highest):
        wrong = f"from {array.min():g} to {array.max():g}"
        raise _no_frame(env, f"render() returned {array.dtype} {wrong}, expected 0 to {highest}")
    scaled = array if highest == 255 else np.round(array.astype(np.float64) * 255)
    return np.ascontiguousarray(scaled.astype(np.uint8))


# ------------------------------------------------------------------------------------------------ playing


@contextmanager
def _drawing(env: str, env_kwargs: Mapping[str, Any]) -> Iterator[VectorEnv]:
    """Make one env that draws frames, and close it at the end."""
    from shoal.vector import make

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # without a screen, SDL would fail otherwise
    try:
        vec = make(env, 1, env_kwargs=env_kwargs, flat=True, render_mode="rgb_array")
    except MissingExtra:
        raise
    except Exception as error:
        # Training made the same env without render_mode, so this is what it does not take.
        problem = str(error) if isinstance(error, ShoalError) else summary_of(error)
        raise _no_frame(env, problem) from error
    with vec:
        yield vec


def _play(
    policy: BasePolicy,
    vec: VectorEnv,
    env: str,
    take: Callable[[Frame], None],
    most: int | None,
    seed: int,
    deterministic: bool,
) -> None:
    """Play one episode, and pass its first `most` frames to `take`; all of them if it is None."""
    from shoal.learn.evaluate import evaluate

    shape: tuple[int, ...] | None = None
    count = 0

    def look(vec: VectorEnv) -> None:
        nonlocal shape, count
        if most is not None and count >= most:
            return
        frame = _draw(vec, env)
        shape, count = shape or frame.shape, count + 1
        if frame.shape != shape:
            raise ArgumentError(
                f"--replay: {env}: expected frames of one size, got {_size(frame.shape)} in frame {count}, "
                f"and {_size(shape)} before"
            )
        take(frame)

    evaluate(policy, vec, 1, deterministic=deterministic, seed=seed, on_step=look)


def _draw(vec: VectorEnv, env: str) -> Frame:
    try:
        drawn = vec.render()
    except (NotImplementedError, ImportError, gymnasium.error.Error) as error:
        raise _no_frame(env, summary_of(error)) from error
    except AttributeError as error:
        if error.name != "render":  # a mistake inside the env's render()
            raise
        raise _no_frame(env, "it has no render()") from error
    return to_frame(drawn[0] if drawn else None, env)


def _no_frame(env: str, problem: str) -> ArgumentError:
    return ArgumentError(
        f"--replay: {env} draws no frames: {problem.rstrip('.')}. A replay needs an env that takes "
        "render_mode='rgb_array' and whose render() returns pictures"
    )


def _rate(metadata: Mapping[str, Any]) -> float:
    """Return the frames per second that an env declares; the default if that is no usable number."""
    try:
        rate = float(metadata.get("render_fps") or DEFAULT_RATE)
    except (TypeError, ValueError):
        return DEFAULT_RATE
    return min(rate, FASTEST_RATE) if math.isfinite(rate) and rate > 0 else DEFAULT_RATE


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]} pixels"
