"""`shoal hockey train` and `shoal hockey eval`: train by a configuration file, and measure win rates."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from shoal.cli._invocation import invocation
from shoal.cli._panel import Panel
from shoal.errors import ArgumentError, MissingExtra


@dataclass(frozen=True)
class TrainHockey:
    """Train an agent by a configuration file, phase after phase.

    Ctrl-C (or SIGTERM) ends it after the step under way, and saves. A second one ends it at once.

    Example: shoal hockey train examples/hockey/configs/sac.json --num-envs 8
    """

    config: Annotated[str, Positional, arg(metavar="CONFIG")] = ""
    """The configuration file, JSON."""
    num_envs: int = 8
    """The number of games that are played at once. It changes the speed, not how much is learnt from a
    step."""
    run_dir: Annotated[str, arg(help_behavior_hint="(default: results/runs/TIME)")] = ""
    """The run's folder: checkpoint, csvs, plots and saved policies."""
    resume: bool = False
    """Go on with the run in that folder where it was last saved."""
    seed: int = 0
    """The seed of games, exploration and weights."""
    device: Annotated[str | None, arg(help_behavior_hint="(default: a GPU if there is one)")] = None
    """Where the networks are: cpu, cuda or cuda:N."""
    eval_every: int = 100_000
    """The number of steps from one evaluation to the next."""
    eval_games: int = 200
    """The number of games of an evaluation."""
    eval_opponent: Literal["weak", "strong"] = "strong"
    """The bot of the evaluations."""
    start_from: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: nothing)")] = None
    """A saved policy to begin with, or the folder of a run."""

    def run(self) -> int:
        """Train, print the result and return the exit code."""
        try:
            from shoal.hockey.training.train import resume_run, train_run
            from shoal.learn import stop_on_signals
        except ImportError as error:  # torch
            raise MissingExtra(str(error)) from error
        if self.resume and (self.config or not self.run_dir):
            raise ArgumentError("--resume: expected --run-dir with the folder of the run, and no other file")
        if self.resume:
            own = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
            for name in own:
                if name not in ("run_dir", "resume", "config"):
                    option = name.replace("_", "-")
                    raise ArgumentError(f"--{option}: a run that is resumed has its own settings")
        if not self.resume and not self.config:
            raise ArgumentError("CONFIG: expected a configuration file; or --resume with --run-dir")
        with ExitStack() as stack:
            panel = stack.enter_context(Panel(f"hockey, {self.config or self.run_dir}"))
            told: dict[str, Any] = {
                "on_update": panel,
                "on_learner": lambda learner: stack.enter_context(stop_on_signals(learner)),
            }
            if self.resume:
                found = resume_run(self.run_dir, **told)
            else:
                found = train_run(
                    self.config,
                    eval_freq_steps=self.eval_every or None,
                    eval_num_games=self.eval_games,
                    eval_weak_opponent=self.eval_opponent == "weak",
                    device=self.device,
                    checkpoint_path=self.start_from,
                    num_envs=self.num_envs,
                    seed=self.seed,
                    run_dir=self.run_dir or None,
                    **told,
                )
        return _say(found)


def _say(found: dict[str, Any]) -> int:
    print(
        f"{found['total_episodes']:,} games, {found['total_steps']:,} steps, "
        f"{found['total_gradient_steps']:,} gradient steps; mean reward of the last games "
        f"{found['mean_reward']:.2f}"
    )
    if found["evaluation_results"]:
        last = found["evaluation_results"][-1]
        print(f"last evaluation: {last['wins']} won, {last['draws']} drawn, {last['losses']} lost")
    print(f"run: {found['run_dir']}")
    if found["stopped"]:
        print(f"stopped early; to go on: {invocation()} hockey train --resume --run-dir {found['run_dir']}")
        return 130
    print(f"to evaluate it: {invocation()} hockey eval {found['run_dir']}")
    return 0


@dataclass(frozen=True)
class League:
    """Show the league of a run with self-play: its members and their ratings, the best one first.

    The rating is the mean minus three deviations: what the member's skill exceeds almost surely.

    Example: shoal hockey league results/runs/2026-01-01_12-00-00
    """

    run_dir: Annotated[str, Positional, arg(metavar="RUN")]
    """The folder of the run, or of an archive."""

    def run(self) -> int:
        """Print the table and return the exit code."""
        from rich.console import Console
        from rich.table import Table

        try:
            from shoal.learn.league.archive import LEARNER, REGISTRY, Archive
        except ImportError as error:  # torch
            raise MissingExtra(str(error)) from error
        folder = Path(self.run_dir)
        folder = folder / "archive" if (folder / "archive").is_dir() else folder
        if not (folder / REGISTRY).exists():
            raise ArgumentError(
                f"{self.run_dir}: has no league. A run has one if an opponent of its phases is archive"
            )
        table = Table(box=None)
        for name in ("member", "rating", "mean", "deviation", "games", "learner's result", "steps"):
            table.add_column(name, justify="left" if name == "member" else "right")
        for one in Archive(folder).table():
            result = "" if one.id == LEARNER else f"{one.beaten:.2f}"
            figures = f"{one.rating:.1f}", f"{one.mu:.1f}", f"{one.sigma:.1f}", f"{one.games:,}", result
            table.add_row(one.id, *figures, f"{one.steps:,}" if one.has_policy else "")
        Console().print(table)
        return 0


@dataclass(frozen=True)
class EvalHockey:
    """Play games with a saved agent against both bots, half of them on each side, and tell its win rates.

    A draw is not a win. The interval holds the win rate with a confidence of 95 %.

    Example: shoal hockey eval results/runs/2026-01-01_12-00-00
    """

    agent: Annotated[str, Positional, arg(metavar="AGENT")]
    """The folder of a run, or the file of a policy (.safetensors)."""
    games: int = 400
    """The number of games against each bot."""
    seed: int = 0
    """The seed of the games."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        """Play, print the results and return the exit code."""
        from shoal.hockey.evaluation import play_bot
        from shoal.hockey.players import load_policy

        policy = load_policy(self.agent)
        found = {bot: play_bot(policy, bot, self.games, seed=self.seed) for bot in ("weak", "strong")}
        if self.json:
            names = ("games", "wins", "draws", "losses", "win_rate", "interval")
            results = {bot: {name: getattr(one, name) for name in names} for bot, one in found.items()}
            print(json.dumps(results))
            return 0
        for bot, score in found.items():
            print(f"{bot:7} {score}")
        return 0
