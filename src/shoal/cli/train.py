"""`shoal train`: learn to play an env, with a live panel, into a folder."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from shoal.cli._curve import draw_curve
from shoal.cli._invocation import invocation
from shoal.cli._panel import Panel
from shoal.cli._terminal import read_env_kwargs
from shoal.errors import ArgumentError, MissingExtra

try:
    from shoal.learn.ppo_config import PPOConfig
    from shoal.learn.presets import preset_for
except ImportError as error:  # torch
    raise MissingExtra(str(error)) from error

if TYPE_CHECKING:
    from shoal.learn import PPO, Result, Run, Update


@dataclass(frozen=True)
class TrainPPO:
    """Learn to play an env by PPO.

    Ctrl-C (or SIGTERM) ends it after the update under way, and saves. A second one ends it at once.

    Example: shoal train ppo --env CartPole-v1 --total-steps 100000 --seed 1
    """

    env: str = ""
    """A Gymnasium id, a name that `shoal envs` lists, or path/to/file.py:Class."""
    run_dir: Annotated[str, arg(help_behavior_hint="(default: runs/ENV-TIME)")] = ""
    """The run's folder: config, metrics, TensorBoard events, policy and checkpoint."""
    resume: bool = False
    """Go on with the run in that folder where it was last saved. Its own settings hold; only --total-steps,
    --torch-threads and --checkpoint-seconds may be others."""
    env_kwargs: Annotated[str, arg(metavar="JSON", help_behavior_hint="(default: none)")] = "{}"
    """Arguments for the env, as a JSON object."""
    checkpoint_seconds: float = 60.0
    """How often all of it is saved meanwhile."""
    config: OmitArgPrefixes[PPOConfig] = field(default_factory=PPOConfig)
    """How to learn."""

    def run(self, given: Sequence[str] = ()) -> int:
        """Train and say what came of it; returns the exit code.

        Args:
            given: The options as they were written, by which those that were asked for are known.
        """
        from shoal.learn import PPO, Run, resume, stop_on_signals

        with ExitStack() as stack:
            if self.resume:
                folder = Path(self._folder_to_resume(given))
                found = resume(
                    folder,
                    total_steps=self._asked(given, "total_steps"),
                    torch_threads=self._asked(given, "torch_threads"),
                )
                ppo, env, kwargs = found.ppo, found.env, found.env_kwargs
                if ppo.is_done:
                    ppo.close()
                    print(f"{folder}: all of its {ppo.steps:,} steps are done; to go on: more --total-steps")
                    return 0
                if not found.exact:
                    print("shoal: its envs cannot go on where they were: new episodes begin", file=sys.stderr)
            else:
                env, kwargs, folder = self._checked()
                try:
                    ppo = PPO(env, self.config, env_kwargs=kwargs)
                except TypeError as error:
                    if not kwargs or "unexpected keyword argument" not in str(error):
                        raise
                    raise ArgumentError(f"--env-kwargs: {error}") from error
            stack.enter_context(ppo)
            run = stack.enter_context(
                Run(
                    folder,
                    ppo,
                    env,
                    kwargs,
                    checkpoint_seconds=self.checkpoint_seconds,
                    resumed=self.resume,
                )
            )
            if not self.resume and (name := preset_for(env)[0]):
                print(f"preset: {name}")
            print(f"envs: {ppo.vec}", flush=True)
            with Panel(f"PPO on {env}, {folder}", history=run.history()) as panel, stop_on_signals(ppo):
                result = train(ppo, run, panel)
            saved = run.save()
        self._say(result, folder, saved, draw_curve(folder))
        return 130 if result.stopped else 0

    def _folder_to_resume(self, given: Sequence[str]) -> str:
        if not self.run_dir:
            raise ArgumentError("--resume: expected --run-dir with the folder of the run to go on with")
        allowed = ("--resume", "--run-dir", "--total-steps", "--torch-threads", "--checkpoint-seconds")
        for option in given:
            name = option.partition("=")[0].replace("_", "-")
            if name.startswith("--") and name not in allowed:
                raise ArgumentError(
                    f"{name}: the settings of the run hold; beside --resume only --total-steps, "
                    "--torch-threads and --checkpoint-seconds can be given"
                )
        return self.run_dir

    def _asked(self, given: Sequence[str], name: str) -> int | None:
        asked = any(option.replace("-", "_").startswith(f"__{name}") for option in given)
        return getattr(self.config, name) if asked else None

    def _checked(self) -> tuple[str, dict[str, Any], Path]:
        """Env, its arguments, and the folder."""
        if not self.env:
            raise ArgumentError(
                "--env: expected the env to learn, such as --env CartPole-v1. shoal train ppo --help lists "
                "all options"
            )
        plain = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in self.env)
        default = f"runs/{plain}-{datetime.now():%Y%m%d-%H%M%S}"
        file, colon, name = self.env.rpartition(":")
        # The run is to be found by its env from any folder.
        env = f"{Path(file).resolve()}:{name}" if colon and file.endswith(".py") else self.env
        return env, read_env_kwargs(self.env_kwargs), Path(self.run_dir or default)

    def _say(self, result: Result, folder: Path, saved: bool, drawn: bool) -> None:
        mean = "no episode has ended" if math.isnan(result.mean_return) else f"{result.mean_return:.5g}"
        rate = result.steps / max(result.seconds, 1e-9)
        print(f"{result.steps:,} steps in {result.seconds:.1f} s ({rate:,.0f} a second), mean return {mean}")
        print(f"run: {folder}")
        if drawn:
            print(f"learning curve: {folder / 'curve.png'}")
        if result.stopped:
            how = "where it was" if saved else "with new episodes, for its envs cannot be saved"
            print(f"stopped early; to go on {how}: {invocation()} train ppo --run-dir {folder} --resume")
        else:
            print(f"to see it play: {invocation()} eval {folder}")


def train(ppo: PPO, run: Run, show: Callable[[Update], None]) -> Result:
    """Train, writing down and showing each update."""

    def told(update: Update) -> None:
        run(update)
        show(update)

    return ppo.train(told)


def defaults_for(args: Sequence[str]) -> TrainPPO:
    """What holds unless asked otherwise: the settings of the env's preset, if it has one."""
    env = ""
    for place, option in enumerate(args):
        name, given, value = option.partition("=")
        if name == "--env":
            env = value if given else next(iter(args[place + 1 :]), "")
    return TrainPPO(config=replace(PPOConfig(), **preset_for(env)[1]))
