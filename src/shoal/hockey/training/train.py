"""Training runs by configuration files: `train_single_run`, `train_run`, `resume_run`."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from shoal.errors import ArgumentError, RunError
from shoal.hockey.evaluation import LONGEST_GAME, play_bot
from shoal.hockey.players import load_policy
from shoal.hockey.training.config import Config, Phase, make_config, read_config
from shoal.hockey.training.curriculum import Curriculum, GameResult
from shoal.hockey.training.learners import augmentation_of, learner_config
from shoal.hockey.training.records import Records, check_plots, name_of, new_folder
from shoal.hockey.training.rivals import Rivals
from shoal.learn import DQN, SAC, Run, Update, resume
from shoal.learn.league import Archive
from shoal.learn.off_policy import OffPolicyLearner
from shoal.learn.runs.files import read_file, write_file
from shoal.learn.runs.policy_file import Origin, load_file, save_policy

ENV = "shoal/HockeyOne-v0"
SETTINGS = "hockey.json"  # what `resume_run` needs beside the checkpoint
LEARNERS: dict[str, type[OffPolicyLearner]] = {"DDDQN": DQN, "SAC": SAC}
RECENT = 100  # games whose mean reward is reported
SECONDS = 10.0  # from one line of progress to the next


@dataclass(frozen=True)
class _Settings:
    """What was asked for, apart from the configuration file."""

    run_name: str
    eval_freq_steps: int | None
    eval_num_games: int
    eval_weak_opponent: bool
    num_envs: int
    seed: int

    @classmethod
    def read(cls, saved: dict[str, Any]) -> _Settings:
        """Make the settings that a file describes. It may have been changed, so their types matter."""
        found = cls(**{one.name: saved[one.name] for one in fields(cls)})
        whole = found.eval_num_games, found.num_envs, found.seed, found.eval_freq_steps or 1
        if not all(type(number) is int and number >= 0 for number in whole):
            raise ValueError("a number is missing")
        if not (_is_name(found.run_name) and isinstance(found.eval_weak_opponent, bool)):
            raise ValueError(f"{found.run_name!r} is no name of a run")
        return found


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(re.fullmatch(r"[\w.-]{1,150}", name)) and bool(name.strip("."))


def train_single_run(
    config_path: str | os.PathLike[str],
    base_output_dir: str | os.PathLike[str] = "results/runs",
    run_name: str | None = None,
    verbose: bool = True,
    eval_freq_steps: int | None = 800_000,
    eval_num_games: int = 200,
    eval_weak_opponent: bool = True,
    device: str | int | None = None,
    checkpoint_path: str | os.PathLike[str] | None = None,
    num_envs: int = 1,
) -> dict[str, Any]:
    """Train an agent by a configuration file; `train_run` with the defaults of the course's script.

    See `train_run` for arguments, result and errors.
    """
    return train_run(
        config_path,
        base_output_dir,
        run_name,
        verbose,
        eval_freq_steps,
        eval_num_games,
        eval_weak_opponent,
        device,
        checkpoint_path,
        num_envs,
    )


def train_run(
    config_path: str | os.PathLike[str],
    base_output_dir: str | os.PathLike[str] = "results/runs",
    run_name: str | None = None,
    verbose: bool = True,
    eval_freq_steps: int | None = None,
    eval_num_games: int = 100,
    eval_weak_opponent: bool = True,
    device: str | int | None = None,
    checkpoint_path: str | os.PathLike[str] | None = None,
    num_envs: int = 1,
    *,
    seed: int = 0,
    run_dir: str | os.PathLike[str] | None = None,
    on_update: Callable[[Update], None] | None = None,
    on_learner: Callable[[OffPolicyLearner], None] | None = None,
) -> dict[str, Any]:
    """Train an agent by a configuration file.

    Args:
        config_path: The configuration file.
        base_output_dir: Folder in which the folder of the run is made.
        run_name: Name of the run, in the names of its files; by default made of its settings.
        verbose: Whether to print progress.
        eval_freq_steps: Number of steps from one evaluation to the next; None for none.
        eval_num_games: Number of games of an evaluation.
        eval_weak_opponent: Whether to evaluate against the weak bot; otherwise against the strong one.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or the number of a GPU; by default a GPU if there is one.
        checkpoint_path: A saved policy to begin with, or the folder of a run that has one.
        num_envs: Number of games that are played at once. It changes the speed, not how much is learnt
            from a step.
        seed: Seed of games, exploration and weights.
        run_dir: Folder of the run; by default one named by the time, in `base_output_dir`.
        on_update: Function to call with the progress, about once in 1000 steps.
        on_learner: Function to call with the learner before training. Its `stop` ends training.

    Returns:
        ``run_name``, ``run_dir``, ``final_reward`` (of the last game), ``mean_reward`` (of the last 100
        games), ``total_episodes``, ``total_steps``, ``total_gradient_steps``, ``evaluation_results`` (a dict
        for each: step, episode, win_rate, mean_reward, std_reward, wins, losses, draws) and ``stopped``.
        Rewards are those of the original game, without shaping.

    Raises:
        ArgumentError: If something in the file or in the arguments is wrong. It is a `ValueError`.
        RunError: If a file of the run cannot be written.
    """
    config = read_config(config_path)
    check_plots()
    for argument, number in (("eval_num_games", eval_num_games), ("eval_freq_steps", eval_freq_steps)):
        if not (type(number) is int and number >= 1) and (number is not None or argument == "eval_num_games"):
            none = ", or None" if argument == "eval_freq_steps" else ""
            raise ArgumentError(f"{argument}: expected a whole number of 1 or more{none}, got {number!r}")
    settings = learner_config(config, num_envs, device_of(device), seed)
    start = None if checkpoint_path is None else load_file(checkpoint_path).policy
    name = name_of(config, num_envs) if run_name is None else run_name
    if not _is_name(name):
        raise ArgumentError(
            f"run_name: expected a name for files: letters, digits, -, _ and ., at most 150, got {name!r}"
        )
    asked = _Settings(name, eval_freq_steps, eval_num_games, eval_weak_opponent, num_envs, seed)
    with ExitStack() as stack:
        folder = new_folder(Path(base_output_dir)) if run_dir is None else Path(run_dir)
        stack.callback(_remove_if_empty, folder)  # if there is no run in the end
        rivals = _rivals(config, folder, num_envs, seed, stack)
        vec, kwargs = (ENV, _env_kwargs(config)) if rivals is None else (rivals.vec, None)
        learner = LEARNERS[config.agent.type](vec, settings, env_kwargs=kwargs)
        stack.enter_context(learner)
        if start is not None:
            learner.start_from(start)
        run = stack.enter_context(Run(folder, learner, ENV))
        source = json.dumps(config.source, indent=2).encode() + b"\n"
        write_file(
            folder / SETTINGS,
            json.dumps({**vars(asked), "paths_in": str(Path.cwd()), "config": config.source}).encode(),
        )
        records = stack.enter_context(closing(Records(folder, name)))
        write_file(folder / "configs" / f"{name}.json", source)
        return _Training(config, asked, run, records, rivals, verbose, on_update).train(on_learner)


def resume_run(
    run_dir: str | os.PathLike[str],
    verbose: bool = True,
    *,
    on_update: Callable[[Update], None] | None = None,
    on_learner: Callable[[OffPolicyLearner], None] | None = None,
) -> dict[str, Any]:
    """Go on with a run that was interrupted, from its last checkpoint; see `train_run`.

    Raises:
        RunError: If the folder has no run, or if a file of it is damaged. The run stays as it is.
    """
    folder, remedy = Path(run_dir), "Begin a new run"
    if not (folder / SETTINGS).exists():
        raise RunError(f"{folder}: expected the folder of a hockey run, but it has no {SETTINGS}")
    try:
        saved = json.loads(read_file(folder / SETTINGS, remedy))
        config = make_config(saved["config"], Path(str(saved.get("paths_in", "."))))
        asked = _Settings.read(saved)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise RunError(f"{folder / SETTINGS}: is damaged ({error}). {remedy}") from None
    check_plots()
    with ExitStack() as stack:
        rivals = _rivals(config, folder, asked.num_envs, asked.seed, stack)
        run = stack.enter_context(resume(folder, vec=None if rivals is None else rivals.vec))
        learner: Any = run.learner
        games = learner.episodes.count
        records = Records(folder, asked.run_name, games, learner.steps)
        records.remove_models_after(games)
        if rivals is not None and rivals.archive is not None:
            for member in rivals.archive.policies:
                if member.id.startswith("games-") and int(member.id[6:]) > games:
                    rivals.archive.remove(member.id)
        stack.enter_context(closing(records))
        return _Training(config, asked, run, records, rivals, verbose, on_update).train(on_learner)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _rivals(config: Config, folder: Path, num_envs: int, seed: int, stack: ExitStack) -> Rivals | None:
    """Make what chooses and plays opponents, if policies play any; `stack` closes it."""
    if not config.has_rivals:
        return None
    archive = Archive(folder / "archive") if config.has_league else None
    rivals = Rivals(num_envs, _env_kwargs(config), folder / "models", archive, seed)
    stack.callback(rivals.vec.close)
    for phase in config.phases:
        for rival in phase.rivals:
            if rival.checkpoint not in (None, "latest"):
                load_policy(rival.checkpoint)  # what is wrong with it must not be found hours later
    return rivals


def device_of(device: str | int | None) -> str:
    """Return the name that torch has for a device.

    Raises:
        ArgumentError: If there is no such device.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return "cuda" if gpus else "cpu"
    name = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else device
    known = "'cpu', 'cuda', 'cuda:N', a number N or None"
    if not isinstance(name, str) or not (name in ("cpu", "cuda") or _gpu_number(name) is not None):
        raise ArgumentError(f"device: expected {known}, got {device!r}")
    if name != "cpu" and (_gpu_number(name) or 0) >= gpus:
        there = f"has {gpus} GPUs that torch can use" if gpus else "has no GPU that torch can use"
        raise ArgumentError(f"device: this machine {there}, got {device!r}. Take device='cpu'")
    return name


def _gpu_number(name: str) -> int | None:
    kind, colon, number = name.partition(":")
    return int(number) if kind == "cuda" and colon and number.isdigit() else None


def _env_kwargs(config: Config) -> dict[str, Any]:
    limit = config.training.max_episode_steps
    return {"max_episode_steps": limit} if limit < LONGEST_GAME else {}


class _Training:
    """A run under way: director of its games, and writer of its records."""

    def __init__(
        self,
        config: Config,
        asked: _Settings,
        run: Run,
        records: Records,
        rivals: Rivals | None,
        verbose: bool,
        on_update: Callable[[Update], None] | None,
    ) -> None:
        self._config, self._asked, self._run, self._records = config, asked, run, records
        self._verbose, self._show, self._rivals = verbose, on_update, rivals
        self._archive = None if rivals is None else rivals.archive
        self._learner = cast(Any, run.learner)
        self._learner.augment = augmentation_of(config.agent)
        self._curriculum = Curriculum(
            self._learner.vec,
            config.phases,
            config.training.reward_scale,
            min(self._learner.episodes.count, config.episodes),  # others may have ended with the last one
            goes_on=run.restored is not None and run.restored.exact,
            begin_phase=None if rivals is None else self._choose_rivals,
            on_game=self._add_game,
            on_phase=self._begin_phase,
        )
        self._learner.watch(self._curriculum)
        self._rewards = records.rewards()
        # Not the steps so far: a kill may have come between a checkpoint and its evaluation.
        self._evaluated = max((found["step"] for found in records.evaluations()), default=0)
        self._win_rate = math.nan  # of the last evaluation
        self._told = time.monotonic()

    def train(self, on_learner: Callable[[OffPolicyLearner], None] | None) -> dict[str, Any]:
        learner, curriculum = self._learner, self._curriculum
        if on_learner is not None:
            on_learner(learner)
        self._say(
            f"{self._asked.run_name}: {self._config.agent.type}, {curriculum.games:,} of "
            f"{self._config.episodes:,} games played, {learner.vec.num_envs} at once, in {self._run.folder}"
        )
        self._evaluate_if_due()  # a kill may have come before an evaluation
        if not curriculum.is_done:
            learner.train(self._update)
            self._records.flush()
            self._run.save()
        stopped = not curriculum.is_done
        if not stopped and self._asked.eval_freq_steps and self._evaluated != learner.steps:
            self._evaluate()
        self._save(self._records.model())
        if self._archive is not None:
            self._archive.save()
        self._records.draw()
        recent = self._rewards[-RECENT:]
        return {
            "run_name": self._asked.run_name,
            "run_dir": str(self._run.folder),
            "final_reward": self._rewards[-1] if self._rewards else float("nan"),
            "mean_reward": float(np.mean(recent)) if recent else float("nan"),
            "total_episodes": curriculum.games,
            "total_steps": learner.steps,
            "total_gradient_steps": learner.updates,
            "evaluation_results": self._records.evaluations(),
            "stopped": stopped,
        }

    def _choose_rivals(self, phase: Phase) -> None:
        assert self._rivals is not None
        self._rivals.begin(phase, lambda: self._learner.policy)

    def _add_game(self, game: GameResult) -> None:
        self._rewards.append(game.score)
        self._records.add("rewards", game.number, game.score, self._config.phases[game.phase].name)
        if game.number % self._config.training.checkpoint_save_freq == 0:
            self._save_model(game.number)
        if self._curriculum.is_done:
            self._learner.stop()

    def _save_model(self, games: int) -> None:
        """Save the policy after a number of games, with what it belongs to."""
        self._save(self._records.model(games))
        place = {"phase_index": self._curriculum.phase, "phase_episode": self._curriculum.games_of_phase}
        self._records.write_metadata(games, {"episode": games, **place})
        archive, member = self._archive, f"games-{games:06d}"
        if archive is not None and member not in archive.members:  # it may be there from before a resume
            archive.add(self._learner.policy, self._learner.steps, member)

    def _begin_phase(self, index: int) -> None:
        phase = self._config.phases[index]
        if phase.clear_buffer:
            self._learner.replay.clear()
        self._say(f"phase {index + 1} of {len(self._config.phases)}: {phase.name}, {phase.episodes:,} games")

    def _update(self, update: Update) -> None:
        if "value" in update.losses:
            self._records.add("losses", update.steps, update.losses["value"])
        self._records.flush()  # before a checkpoint, which counts these games
        saved = self._run.saved_steps
        self._run(update)
        if self._archive is not None and self._run.saved_steps != saved:
            self._archive.save()
        self._evaluate_if_due()
        recent = self._rewards[-RECENT:]
        if self._show is not None:
            self._show(
                replace(
                    update,
                    total_steps=max(update.steps, self._expected_steps()),
                    mean_return=float(np.mean(recent)) if recent else math.nan,
                    evaluation=self._win_rate,
                )
            )
        elif time.monotonic() - self._told >= SECONDS:
            self._told = time.monotonic()
            mean = f", mean reward {np.mean(recent):.2f} of the last {len(recent)}" if recent else ""
            self._say(
                f"{self._curriculum.games:,} games, {update.steps:,} steps "
                f"({update.steps_per_second:,.0f} a second), {update.updates:,} gradient steps{mean}"
            )

    def _expected_steps(self) -> int:
        """Return about how many steps all games will take."""
        games = max(1, self._curriculum.games)
        return int(self._learner.steps * self._config.episodes / games)

    def _evaluate_if_due(self) -> None:
        every = self._asked.eval_freq_steps
        if every and self._learner.steps // every > self._evaluated // every:
            self._evaluate()

    def _evaluate(self) -> None:
        learner, self._evaluated = self._learner, self._learner.steps
        bot = "weak" if self._asked.eval_weak_opponent else "strong"
        found = play_bot(learner.policy, bot, self._asked.eval_num_games, seed=learner.steps)
        self._records.add(
            "evaluation",
            *(learner.steps, self._curriculum.games, found.win_rate),
            *(float(found.rewards.mean()), float(found.rewards.std())),
            *(found.wins, found.losses, found.draws),
        )
        self._records.flush()
        self._win_rate = found.win_rate
        self._say(f"at {learner.steps:,} steps against the {bot} bot: {found}")

    def _save(self, path: Path) -> None:
        learner = self._learner
        save_policy(path, learner.policy, Origin(ENV, learner.env_kwargs, steps=learner.steps))

    def _say(self, line: str) -> None:
        if self._verbose:
            print(line, flush=True)
