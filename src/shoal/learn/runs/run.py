"""Runs: a learner, and the folder that holds all that it has learnt.

config.json             algorithm, env, settings and versions, for people and other programs
metrics.jsonl           one line per update, append-only
evaluations.jsonl       one line per evaluation, append-only
events.out.*            the same metrics for TensorBoard, under CleanRL's names
policy.safetensors      the policy; read by `load`
best.safetensors        the policy of the best evaluation
checkpoint.safetensors  the whole state of the learner, without envs and replay; read by `resume`
replay-*.safetensors    the replay that belongs to the checkpoint, if the learner has one
envs-*.pickle           the snapshot of the envs that belongs to the checkpoint; only `resume` reads it
run.lock                the lock of the process that writes to the folder

Nothing but ``envs-*.pickle`` can run code when it is read. A snapshot has its digest in its name, and the
checkpoint says which one it needs. So a kill between two writes leaves the old checkpoint with its snapshot.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from shoal.errors import ArgumentTypeError, RunError
from shoal.learn.evaluate import Evaluation
from shoal.learn.learner import Learner
from shoal.learn.progress import Update
from shoal.learn.runs.evaluations import Evaluator
from shoal.learn.runs.files import digest_of, file_errors_in_words, remove_parts, write_file
from shoal.learn.runs.lock import Lock
from shoal.learn.runs.metrics import EVALUATIONS, UPDATES, Board, Lines, figures_of, read_lines, update_from
from shoal.learn.runs.options import RunOptions
from shoal.learn.runs.policy_file import BEST, LAST, Origin, save_policy
from shoal.learn.runs.replay_files import PATTERN, ReplayFiles
from shoal.learn.runs.tensor_file import require, write_tensor_file
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.vec import VectorEnv

CHECKPOINT, CONFIG = "checkpoint.safetensors", "config.json"


@dataclass(frozen=True)
class About:
    """What a run is about, apart from its learner."""

    env: str
    """Name of the env."""
    env_kwargs: dict[str, Any]
    """Arguments for the env, of types that JSON has."""
    encoder: str = ""
    """Name of the encoder, such as ``path/to/file.py:Class``; "" for the default encoder."""
    options: RunOptions = field(default_factory=RunOptions)
    """Settings of the run."""
    changes: tuple[dict[str, Any], ...] = ()
    """What was changed each time the run was resumed: the steps, and old and new values by setting."""

    @classmethod
    def read(cls, saved: dict[str, Any]) -> About:
        """Make what a checkpoint describes. Its names may be those of code, so their types matter."""
        return cls(
            env=require(saved["env"], str),
            env_kwargs=require(saved["env_kwargs"], dict),
            encoder=require(saved["encoder"], str),
            options=RunOptions(**saved["options"]),
            changes=tuple(require(change, dict) for change in require(saved["changes"], tuple)),
        )


@dataclass(frozen=True)
class Restored:
    """How a run was resumed."""

    exact: bool
    """Whether the envs continue their episodes; False if they begin new ones."""
    snapshot: str
    """Name of the file from which the envs were restored; "" if they were not."""
    changed: dict[str, list[Any]]
    """Old and new value of each setting that is new."""
    replay: dict[str, Any] | None = None
    """What the checkpoint says about the replay."""


class Run:
    """Writer of a run folder. Pass it to a learner's `train` as `on_update`.

    A run holds the lock of its folder until it is closed. `resume` returns a run that goes on.

    Args:
        folder: Folder to write; it must not contain another run.
        learner: Learner to save.
        env: Name of the env, from which `resume` makes it again.
        env_kwargs: Arguments for the env, of types that JSON has; by default those of the learner.
        options: Settings of the run.
        encoder: Name of the learner's encoder, such as ``path/to/file.py:Class``; it is only written down.

    Attributes:
        folder: The folder.
        learner: The learner.
        about: What the run is about: names of env and encoder, options, changes.
        restored: How the run was resumed; None for a new run.
        damaged_lines: Number of lines of metrics that were damaged and have been removed.
        evaluation: The figures of the last evaluation; None before the first.

    Raises:
        RunError: If the folder contains a run already, or if another process writes to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        learner: Learner,
        env: str,
        env_kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
        *,
        encoder: str = "",
    ) -> None:
        check_name(env)
        if not isinstance(options, (RunOptions, type(None))):
            raise ArgumentTypeError(f"options: expected RunOptions(...), got {options!r}")
        env_kwargs = learner.env_kwargs if env_kwargs is None else env_kwargs
        try:
            json.dumps(env_kwargs)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"env_kwargs: expected types that JSON has, by which the run can be resumed: {error}"
            ) from error
        folder = Path(folder)
        with file_errors_in_words(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            if (folder / CHECKPOINT).exists() or (folder / LAST).exists():
                raise RunError(
                    f"{folder} contains a run already: choose another folder, or resume it (--resume; "
                    "in Python shoal.learn.resume)"
                )
            # A run that was killed in its first update has no checkpoint, so its files can be removed.
            patterns = (UPDATES, EVALUATIONS, BEST, "events.out.tfevents.*", "envs-*.pickle", PATTERN)
            left = [path for pattern in patterns for path in folder.glob(pattern)]
            if left and not (folder / CONFIG).exists():
                raise RunError(f"{left[0]}: belongs to something else: choose another folder for the run")
            for path in left:
                with file_errors_in_words(path):
                    path.unlink()
            self._open(folder, lock, learner, About(env, env_kwargs, encoder, options or RunOptions()))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(cls, folder: Path, lock: Lock, learner: Learner, about: About, restored: Restored) -> Self:
        """Go on writing to a folder, whose lock is held, with a restored learner; see `resume`."""
        run = cls.__new__(cls)
        run._open(folder, lock, learner, about, restored)
        return run

    def _open(
        self, folder: Path, lock: Lock, learner: Learner, about: About, restored: Restored | None = None
    ) -> None:
        """Open all files of the folder, whose lock is held."""
        self.folder, self.learner, self.about, self.restored = folder, learner, about, restored
        self._lock = lock
        remove_parts(folder)
        write_file(folder / CONFIG, json.dumps(self._described(), indent=2).encode())
        options = about.options
        self._updates = Lines(folder / UPDATES, learner.updates, learner.steps)
        self._evaluations = None
        if options.eval_every or (folder / EVALUATIONS).exists():
            self._evaluations = Lines(folder / EVALUATIONS, learner.updates, learner.steps)
        self.damaged_lines = self._updates.damaged + (self._evaluations.damaged if self._evaluations else 0)
        self._board = Board(folder, None if restored is None else learner.steps)
        self._evaluator = Evaluator(folder, self._origin(), learner.config, options)
        self.evaluation: dict[str, Any] | None = None
        # A new run, and one with new settings, is saved after its first update.
        is_saved = restored is not None and not restored.changed
        self._saved, self._saved_at = time.monotonic(), self._reached() if is_saved else None
        self._replay_files = ReplayFiles(
            folder, learner.replay, None if restored is None else restored.replay
        )
        self._saved_steps = None if restored is None else learner.steps
        self._envs_are_saved = restored is None or restored.exact
        self._closed = False

    def _described(self) -> dict[str, Any]:
        """Return what ``config.json`` holds."""
        return {
            "algorithm": self.learner.algorithm,
            **asdict(self.about),
            "config": asdict(self.learner.config.settled(self.learner.vec.num_rows)),
            "threads": self.learner.threads._asdict(),
            "versions": {name: importlib.metadata.version(name) for name in ("shoal", "torch")},
        }

    def _origin(self) -> Origin:
        """Return where the policy comes from, as it is now."""
        return Origin(self.about.env, self.about.env_kwargs, self.about.encoder, self.learner.steps)

    def history(self) -> list[Update]:
        """Read the updates in the folder, including those before a resume."""
        self._updates.flush()
        lines, _ = read_lines(self.folder / UPDATES)
        found = (update_from(line, self.learner.config.total_steps) for line in lines)
        return [update for update in found if update is not None]

    def __call__(self, update: Update) -> None:
        """Write an update to the folder; evaluate and save if that is due."""
        self._updates.append(figures_of(update))
        self._board.update(update)
        found = self._evaluator.evaluate_if_due(self.learner.policy, self._origin())
        if found is not None:
            self._add_evaluation(update, found)
        passed = time.monotonic() - self._saved
        if self._saved_at is None or passed >= self.about.options.checkpoint_seconds:
            self.save()

    def _add_evaluation(self, update: Update, found: Evaluation) -> None:
        assert self._evaluations is not None
        self.evaluation = {
            "steps": update.steps,
            "updates": update.updates,
            "mean_return": found.mean_return,
            "std_return": found.std_return,
            "mean_length": float(found.lengths.mean()),
            "episodes": found.episodes,
        }
        self._evaluations.append(self.evaluation)
        self._board.add({"eval/episodic_return": found.mean_return}, update.steps)

    @property
    def saved_steps(self) -> int | None:
        """Number of transitions at the last checkpoint; None if there is none."""
        return self._saved_steps

    @property
    def best_return(self) -> float | None:
        """Largest mean return of an evaluation; None before the first."""
        return self._evaluator.best

    def save(self) -> bool:
        """Save policy and learner; return False if the envs are not saved, because they cannot be pickled."""
        learner = self.learner
        if self._saved_at == self._reached():
            return self._envs_are_saved
        self._updates.sync()
        if self._evaluations is not None:
            self._evaluations.sync()
        state = learner.state_dict(with_replay=False)
        if learner.replay is not None:
            state["replay"] = self._replay_files.save(learner.replay)
        envs = self._save_envs(state.pop("envs"))
        write_tensor_file(
            self.folder / CHECKPOINT,
            {
                "algorithm": learner.algorithm,
                "about": asdict(self.about),
                "config": {
                    **asdict(learner.config.settled(learner.vec.num_rows)),
                    **_vec_settings(learner.vec),
                },
                "own_encoder": learner.policy.own_encoder,
                "envs": envs,
                "state": state,
            },
        )
        for old in self.folder.glob("envs-*.pickle"):
            if envs is None or old.name != envs["file"]:
                old.unlink()
        self._replay_files.remove_others()
        save_policy(self.folder / LAST, learner.policy, self._origin())
        self._saved, self._saved_at = time.monotonic(), self._reached()
        self._saved_steps, self._envs_are_saved = learner.steps, envs is not None
        return self._envs_are_saved

    def _reached(self) -> tuple[int, int, int]:
        """Return how far training has come, and how often the replay was cleared or loaded."""
        learner = self.learner
        return learner.updates, learner.steps, 0 if learner.replay is None else learner.replay.generation

    def _save_envs(self, snapshot: Any) -> dict[str, str] | None:
        """Write the snapshot of the envs to a file; return its name and digest."""
        if snapshot is None:
            return None
        content = pickle.dumps(snapshot, protocol=5)
        digest = digest_of(content)
        name = f"envs-{digest[:16]}.pickle"
        write_file(self.folder / name, content)
        return {"file": name, "sha256": digest}

    def close(self) -> None:
        """Save the updates since the last checkpoint, and close all files; close a resumed learner too."""
        self._close(save=True)

    def _close(self, *, save: bool) -> None:
        if self._closed:
            return
        self._closed = True
        files: list[Any] = [self._updates, self._board, self._evaluator]
        if self._evaluations is not None:
            files.append(self._evaluations)
        closing: list[Any] = [self.save] if save else []
        closing += [*(each.close for each in files), self._lock.release]
        if self.restored is not None:  # then the run made its learner
            closing.append(self.learner.close)
        _call_all(closing)

    def __enter__(self) -> Self:
        """Return the run itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the run; after an error, do not save again."""
        try:
            self._close(save=kind is None)
        except Exception:
            if kind is None:  # else the first error is the one to tell
                raise


def _call_all(functions: list[Any]) -> None:
    """Call all functions, even if some of them raise; then raise the first error."""
    error: BaseException | None = None
    for function in functions:
        try:
            function()
        except BaseException as raised:
            error = error or raised
    if error is not None:
        raise error


def check_name(env: Any) -> None:
    """Raise an `ArgumentTypeError` if this is not the name of an env."""
    if not isinstance(env, str):
        raise ArgumentTypeError(
            "env: expected a name, by which the run can be resumed, such as path/to/file.py:Class, got "
            f"{env!r}"
        )


def _vec_settings(vec: VectorEnv) -> dict[str, Any]:
    """Return settings that make an equal vec on any machine, so that a snapshot of its envs fits."""
    backend = type(vec).__name__.lower()
    return {
        "num_envs": vec.num_rows // vec.agents_per_env,
        "backend": backend if backend in ("serial", "multiprocessing", "native") else "auto",
        "num_workers": vec.num_workers if isinstance(vec, Multiprocessing) else None,
    }
