"""`shoal eval`: measure the policy of a run, and write a replay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from shoal.cli._code import absolute, load_encoder
from shoal.cli._replay import check_env_draws, write_replay
from shoal.errors import ArgumentError, MissingExtra
from shoal.registry import names_code
from shoal.video import check_path

if TYPE_CHECKING:
    from shoal.learn import Evaluation


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
    best: bool = False
    """Take the policy of the best evaluation (--eval-every of `shoal train`) instead of the last one."""
    env: Annotated[str, arg(help_behavior_hint="(default: that of the run)")] = ""
    """The env to play. An env that is Python code, such as path/to/file.py:Class, is run only if it is named
    here."""
    encoder: Annotated[str, arg(metavar="FILE.py:CLASS", help_behavior_hint="(default: none)")] = ""
    """The encoder that the policy was trained with, if it was not the default."""
    replay: Annotated[str, arg(metavar="FILE", help_behavior_hint="(default: none)")] = ""
    """Write one episode as a video: file.gif, or file.mp4."""

    def run(self) -> int:
        """Play, print the result and return the exit code."""
        try:
            from shoal.learn.evaluate import evaluate
            from shoal.learn.runs.policy_file import load_saved
        except ImportError as error:  # torch
            raise MissingExtra(str(error)) from error
        if self.episodes < 1:
            raise ArgumentError(f"--episodes: expected at least 1, got {self.episodes}")
        if self.replay:
            check_path(Path(self.replay), "--replay")
        saved = load_saved(self.run_dir, encoder=load_encoder(self.encoder), best=self.best)
        policy, kwargs = saved.policy, saved.origin.env_kwargs or {}
        env = self._env_to_play(saved.origin.env)
        if self.replay:
            check_env_draws(env, kwargs)  # before minutes of play
        found = evaluate(
            policy, env, self.episodes, deterministic=not self.sample, seed=self.seed, env_kwargs=kwargs
        )
        self._say(found)
        if self.replay:
            write_replay(
                Path(self.replay), policy, env, kwargs, seed=self.seed, deterministic=not self.sample
            )
            if not self.json:
                print(f"replay: {self.replay}")
        return 0

    def _env_to_play(self, named: str) -> str:
        """Return the env that the user named, or else that of the run, if it needs no code of its own."""
        if self.env:
            return absolute(self.env)
        if not named:
            raise ArgumentError(
                f"{self.run_dir}: the env of this run has no name: name one with --env, or use "
                "shoal.learn.evaluate in Python"
            )
        if names_code(named):
            raise ArgumentError(
                f"{self.run_dir}: the env of this run is code, {named}, which is run only if you name it: "
                f"--env {named}"
            )
        return named

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
