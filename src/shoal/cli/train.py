"""`shoal train`: learn to play an env, with a live panel, into a folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, arg

from shoal.cli._code import absolute, load_encoder
from shoal.cli._curve import draw_curve
from shoal.cli._folder import default_folder
from shoal.cli._invocation import invocation
from shoal.cli._options import names_in
from shoal.cli._panel import Panel
from shoal.cli._terminal import read_env_kwargs
from shoal.errors import ArgumentError, MissingExtra
from shoal.registry import names_code

try:
    from shoal.learn.configs.base import LearnerConfig
    from shoal.learn.configs.dqn import DQNConfig
    from shoal.learn.configs.ppo import PPOConfig
    from shoal.learn.configs.presets import preset_for
    from shoal.learn.configs.sac import SACConfig
    from shoal.learn.runs.options import RunOptions
except ImportError as error:  # torch
    raise MissingExtra(str(error)) from error

if TYPE_CHECKING:
    from shoal.learn import Result, Run, Update


@dataclass(frozen=True)
class Train:
    """What `shoal train` does, whatever the learner."""

    env: str = ""
    """A Gymnasium id, a name that `shoal envs` lists, or path/to/file.py:Class."""
    run_dir: Annotated[str, arg(help_behavior_hint="(default: runs/ENV-TIME)")] = ""
    """The run's folder: config, metrics, TensorBoard events, policy and checkpoint."""
    resume: bool = False
    """Go on with the run in that folder where it was last saved. Its own settings hold, unless you give
    others; settings of the networks and of the envs cannot change. An env or encoder that is Python code must
    be named again."""
    fresh_episodes: bool = False
    """With --resume: begin new episodes instead of reading the snapshot of the envs, which is a pickle and
    can run code."""
    seeds: Annotated[int | None, arg(help_behavior_hint="(default: one run)")] = None
    """Train this many runs with different seeds, side by side where cores allow, and compare them."""
    env_kwargs: Annotated[str, arg(metavar="JSON", help_behavior_hint="(default: none)")] = "{}"
    """Arguments for the env, as a JSON object."""
    encoder: Annotated[str, arg(metavar="FILE.py:CLASS", help_behavior_hint="(default: none)")] = ""
    """A torch module to use instead of the default encoder. It is made with the observation space."""
    options: OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)
    """What to write, and how often."""
    config: LearnerConfig = field(default_factory=LearnerConfig)
    """How to learn."""

    def run(self, given: Sequence[str] = ()) -> int:
        """Train and say what came of it; returns the exit code.

        Args:
            given: The options as written. They show which settings the user gave.
        """
        from shoal.learn import stop_on_signals

        asked = names_in(given)
        with ExitStack() as stack:
            run = stack.enter_context(self._resumed(asked)) if self.resume else self._new(stack)
            learner = run.learner
            if self.resume and learner.is_done:
                print(
                    f"{run.folder}: all of its {learner.steps:,} steps are done; to go on: more --total-steps"
                )
                return 0
            print(f"envs: {learner.vec}", flush=True)
            if learner.replay is not None:
                print(f"replay: {learner.replay}", flush=True)
            go_on = self._command_to_go_on(run)
            title = f"{learner.algorithm.upper()} on {run.about.env}"
            try:
                with (
                    Panel(f"{title}, {run.folder}", history=run.history()) as panel,
                    stop_on_signals(learner),
                ):
                    result = train(run, panel)
                    saved = run.save()
            except BaseException:
                if run.saved_steps is not None:
                    print(
                        f"last saved at {run.saved_steps:,} steps; to go on from there: {go_on}", flush=True
                    )
                raise
        self._say(result, run, saved, draw_curve(run.folder, title))
        return 130 if result.stopped else 0

    def _new(self, stack: ExitStack) -> Run:
        """Make the learner and its run; `stack` closes both."""
        from shoal.learn import Run
        from shoal.learn.algorithms import LEARNERS

        algorithm = self.config.ALGORITHM
        if not self.env:
            raise ArgumentError(
                "--env: expected the env to learn, such as --env CartPole-v1. "
                f"shoal train {algorithm} --help lists all options"
            )
        if self.fresh_episodes:
            raise ArgumentError("--fresh-episodes: only with --resume; a new run begins new episodes anyway")
        env, kwargs = absolute(self.env), read_env_kwargs(self.env_kwargs)
        folder = Path(self.run_dir) if self.run_dir else default_folder(self.env)
        encoder = load_encoder(self.encoder)
        try:
            made = LEARNERS[algorithm](env, self.config, env_kwargs=kwargs, encoder=encoder)
            learner = stack.enter_context(made)
        except TypeError as error:
            if not kwargs or "unexpected keyword argument" not in str(error):
                raise
            raise ArgumentError(f"--env-kwargs: {error}") from error
        run = stack.enter_context(
            Run(folder, learner, env, kwargs, self.options, encoder=absolute(self.encoder))
        )
        name, settings = preset_for(env, algorithm)
        held = {key: value for key, value in settings.items() if getattr(self.config, key) == value}
        if held:
            print(f"preset: {name}: {', '.join(f'{key} {value}' for key, value in held.items())}")
        return run

    def _resumed(self, asked: set[str]) -> Run:
        """Go on with the run in the folder, and say what is different from before."""
        from shoal.learn import resume
        from shoal.learn.runs.resuming import algorithm_of

        if not self.run_dir:
            raise ArgumentError("--resume: expected --run-dir with the folder of the run to go on with")
        if "env_kwargs" in asked:
            raise ArgumentError("--env-kwargs: the run has its own; they cannot change")
        algorithm = algorithm_of(self.run_dir)
        if algorithm != self.config.ALGORITHM:
            raise ArgumentError(
                f"{self.run_dir}: this is a run of {algorithm.upper()}: {invocation()} train {algorithm} "
                f"--run-dir {shlex.quote(self.run_dir)} --resume"
            )
        changes = {
            one.name: getattr(settings, one.name)
            for settings in (self.config, self.options)
            for one in fields(settings)
            if one.name in asked
        }
        run = resume(
            self.run_dir,
            env=absolute(self.env) or None,
            encoder=load_encoder(self.encoder),
            fresh_episodes=self.fresh_episodes,
            **changes,
        )
        assert run.restored is not None
        for name, (before, now) in run.restored.changed.items():
            print(f"changed: {name} from {before} to {now}")
        if run.restored.exact:
            print(f"the envs go on from {run.restored.snapshot}")
        else:
            print("the envs are not restored: new episodes begin")
        if run.damaged_lines:
            print(f"metrics: {run.damaged_lines} damaged lines were removed")
        print(f"going on at {run.learner.steps:,} steps")
        return run

    def _say(self, result: Result, run: Run, saved: bool, drawn: bool) -> None:
        rate = result.steps / max(result.seconds, 1e-9)
        print(f"{result.steps:,} steps in {result.seconds:.1f} s ({rate:,.0f} a second), {_returns(result)}")
        print(f"run: {run.folder}")
        if run.best_return is not None:
            print(f"best evaluation: mean return {run.best_return:.5g}")
        if drawn:
            print(f"learning curve: {run.folder / 'curve.png'}")
        if result.stopped:
            how = "" if saved else " with new episodes, because its envs cannot be saved"
            print(f"stopped early; to go on{how}: {self._command_to_go_on(run)}")
        else:
            best = "" if run.best_return is None else " [--best]"
            print(f"to evaluate it: {invocation()} eval {run.folder}{best}{_code_of(run)}")

    def _command_to_go_on(self, run: Run) -> str:
        algorithm = run.learner.algorithm
        return f"{invocation()} train {algorithm} --run-dir {run.folder} --resume{_code_of(run)}"


def _code_of(run: Run) -> str:
    """Return the options that name the code of a run, which is run only if it is named."""
    env, encoder = run.about.env, run.about.encoder
    named = f" --env {shlex.quote(env)}" if names_code(env) else ""
    return named + (f" --encoder {shlex.quote(encoder)}" if encoder else "")


def _returns(result: Result) -> str:
    if math.isnan(result.mean_return):
        return "no episode has ended yet, so there is no mean return"
    return f"mean return {result.mean_return:.5g}"


def train(run: Run, show: Callable[[Update], None]) -> Result:
    """Train, writing down and showing each update."""

    def told(update: Update) -> None:
        run(update)
        found = run.evaluation
        show(update if found is None else replace(update, evaluation=found["mean_return"]))

    return run.learner.train(told)


@dataclass(frozen=True)
class TrainPPO(Train):
    """Learn to play an env by PPO.

    Ctrl-C (or SIGTERM) ends it after the update under way, and saves. A second one ends it at once.

    Example: shoal train ppo --env CartPole-v1 --total-steps 100000 --seed 1
    """

    config: OmitArgPrefixes[PPOConfig] = field(default_factory=PPOConfig)
    """How to learn."""


@dataclass(frozen=True)
class TrainDQN(Train):
    """Learn to play an env with discrete actions by DQN, with dueling heads and double targets.

    Ctrl-C (or SIGTERM) ends it after the step under way, and saves. A second one ends it at once.

    Example: shoal train dqn --env CartPole-v1 --total-steps 60000 --seed 1
    """

    config: OmitArgPrefixes[DQNConfig] = field(default_factory=DQNConfig)
    """How to learn."""


@dataclass(frozen=True)
class TrainSAC(Train):
    """Learn to play an env with continuous actions by SAC.

    Ctrl-C (or SIGTERM) ends it after the step under way, and saves. A second one ends it at once.

    Example: shoal train sac --env Pendulum-v1 --total-steps 20000 --seed 1
    """

    config: OmitArgPrefixes[SACConfig] = field(default_factory=SACConfig)
    """How to learn."""


COMMANDS: dict[str, type[Train]] = {"ppo": TrainPPO, "dqn": TrainDQN, "sac": TrainSAC}
CONFIGS: dict[str, type[LearnerConfig]] = {"ppo": PPOConfig, "dqn": DQNConfig, "sac": SACConfig}


def defaults_for(algorithm: str, args: Sequence[str]) -> Train:
    """Return the command with the settings of the env's preset as defaults."""
    env = ""
    for place, option in enumerate(args):
        name, given, value = option.partition("=")
        if name == "--env":
            env = value if given else next(iter(args[place + 1 :]), "")
    return COMMANDS[algorithm](config=CONFIGS[algorithm].for_env(env))
