"""`shoal eval`: measure the policy of a run, and write a replay as a GIF."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from shoal.errors import ArgumentError, MissingExtra

if TYPE_CHECKING:
    from shoal.learn import Evaluation, Policy
    from shoal.vector.vec import VectorEnv

MOST_FRAMES = 600


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the policy of a run, the same number in every env.

    Example: shoal eval runs/CartPole-v1-20260101-120000 --episodes 20
    """

    run_dir: Annotated[str, Positional, arg(metavar="RUN")]
    """The folder of the run."""
    episodes: int = 20
    """The number of episodes."""
    seed: int = 0
    """The seed of envs and actions."""
    sample: bool = False
    """Draw random actions from the policy, as in training, instead of taking the most likely action."""
    json: bool = False
    """Print mean_return, std_return and episodes as JSON."""
    replay: Annotated[str, arg(metavar="FILE.gif", help_behavior_hint="(default: none)")] = ""
    """Write one episode as a GIF."""

    def run(self) -> int:
        """Play, print the result and return the exit code."""
        try:
            from shoal.learn.evaluate import evaluate
            from shoal.learn.run import load, read
        except ImportError as error:  # torch
            raise MissingExtra(str(error)) from error
        if self.episodes < 1:
            raise ArgumentError(f"--episodes: expected at least 1, got {self.episodes}")
        if self.replay and not self.replay.endswith(".gif"):
            raise ArgumentError(f"--replay: expected a file.gif, got {self.replay}")
        saved, policy = read(self.run_dir, "policy.pt"), load(self.run_dir)
        env, kwargs = saved["env"], saved["env_kwargs"]
        if not env:
            raise ArgumentError(
                f"{self.run_dir}: the env of this run has no name. Use shoal.learn.evaluate in Python instead"
            )
        found = evaluate(
            policy, env, self.episodes, deterministic=not self.sample, seed=self.seed, env_kwargs=kwargs
        )
        self._say(found)
        if self.replay:
            frames = record(policy, env, kwargs, seed=self.seed, deterministic=not self.sample)
            write_gif(Path(self.replay), *frames)
            if not self.json:
                print(f"replay: {self.replay}")
        return 0

    def _say(self, found: Evaluation) -> None:
        if self.json:
            figures = {
                "mean_return": found.mean_return,
                "std_return": found.std_return,
                "episodes": found.episodes,
            }
            print(json.dumps(figures))
            return
        print(f"mean return {found.mean_return:.2f}, standard deviation {found.std_return:.2f}")
        print(f"{found.episodes} episodes of {found.lengths.mean():.0f} steps on average")


def record(
    policy: Policy, env: str, env_kwargs: dict[str, Any], *, seed: int, deterministic: bool = True
) -> tuple[list[np.ndarray[Any, Any]], float]:
    """Play one episode and return its frames and the number of frames per second.

    Raises:
        ArgumentError: If the env cannot be rendered.
    """
    from shoal.learn.evaluate import evaluate
    from shoal.vector import make

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # without a screen, SDL would fail otherwise
    frames: list[np.ndarray[Any, Any]] = []

    def look(vec: VectorEnv) -> None:
        if len(frames) < MOST_FRAMES:
            frames.append(np.asarray(vec.render()[0]))

    try:
        vec = make(env, 1, env_kwargs=env_kwargs, flat=True, render_mode="rgb_array")
    except TypeError as error:
        if not any(sign in str(error) for sign in ("render_mode", "takes no arguments")):
            raise
        raise ArgumentError(
            f"{env}: a replay needs an env that takes render_mode='rgb_array', and this one does not: {error}"
        ) from error
    with vec:
        evaluate(policy, vec, 1, deterministic=deterministic, seed=seed, on_step=look)
        rate = float(vec.metadata.get("render_fps") or 30)
    return frames, rate


def write_gif(path: Path, frames: list[np.ndarray[Any, Any]], rate: float) -> None:
    """Write the frames as a GIF that loops."""
    from PIL import Image

    images = [Image.fromarray(frame).convert("RGB") for frame in frames]
    # One palette for all frames, made from at most eight of them. A palette per frame takes 15 times as long.
    some = [np.asarray(image).reshape(1, -1, 3) for image in images[:: -(-len(images) // 8)]]
    palette = Image.fromarray(np.concatenate(some, axis=1)).quantize(256)
    pictures = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=max(20, round(1000 / rate)), loop=0
    )
