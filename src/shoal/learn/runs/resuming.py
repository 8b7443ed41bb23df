"""Go on with a run: check what its folder holds, make the learner again, and restore its state.

    checkpoint -> types and names checked -> code that the user named -> learner -> state and envs -> Run

Nothing of the folder is trusted but the snapshot of the envs, which is a pickle.
"""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, RunError, SnapshotError
from shoal.learn.algorithms import LEARNERS
from shoal.learn.base_policy import EncoderOrMaker
from shoal.learn.runs.files import digest_of, read_file
from shoal.learn.runs.lock import Lock
from shoal.learn.runs.options import RunOptions
from shoal.learn.runs.policy_file import LAST, check_folder, encoder_errors
from shoal.learn.runs.replay_files import read_replay
from shoal.learn.runs.run import CHECKPOINT, About, Restored, Run, check_name
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file, require
from shoal.registry import names_code
from shoal.vector.vec import VectorEnv

OPTIONS = {one.name for one in fields(RunOptions)}

FRESH = "To resume with new episodes instead: --fresh-episodes (in Python fresh_episodes=True)"
WITHOUT_CHECKPOINT = (
    f"If {LAST} is whole, the policy can still be used (shoal eval, shoal.learn.load). To train, begin anew "
    "in another folder"
)


def resume(
    run: str | os.PathLike[str],
    *,
    env: str | None = None,
    encoder: EncoderOrMaker | None = None,
    fresh_episodes: bool = False,
    vec: VectorEnv | None = None,
    **changes: Any,
) -> Run:
    """Go on with a run from its last checkpoint.

    The snapshot of the envs is a pickle, which can run code: resume only runs that you trust, or with
    ``fresh_episodes=True``.

    Args:
        run: Run folder.
        env: Name of the env. Needed if the env is in a Python file or in a module: such code is run only if
            you name it.
        encoder: Module like the one that the policy was trained with, or its class, if it was not the default
            encoder.
        fresh_episodes: Whether to begin new episodes instead of reading the snapshot of the envs.
        vec: The vec, if the run's learner was given a vec and not a name. It needs the same envs.
        **changes: Settings to change, such as ``total_steps=1_000_000`` or ``eval_every=50_000``: fields of
            `RunOptions`, and those that the config's `CHANGEABLE` lists. The result then differs from that
            of a run that had them from the start.

    Returns:
        The run, with its learner in ``run.learner``. Closing it closes the learner.

    Raises:
        RunError: If the folder has no checkpoint, if a file is damaged, or if another process writes to it.
        ArgumentError: If a setting cannot be changed.

    Example:
        >>> import tempfile
        >>> from shoal.learn import PPO, PPOConfig, Run, resume
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with PPO("shoal/CartPole-v1", PPOConfig(total_steps=2048)) as ppo:
        ...         with Run(folder, ppo, "shoal/CartPole-v1") as run:
        ...             result = ppo.train(run)
        ...     with resume(folder, total_steps=4096) as run:
        ...         result = run.learner.train(run)
        >>> result.steps >= 4096
        True
    """
    folder = Path(run)
    if env is not None:
        check_name(env)
    _checkpoint_in(folder)
    lock = Lock(folder)
    try:
        return _resume(folder, lock, env, encoder, fresh_episodes, vec, changes)
    except BaseException:
        lock.release()
        raise


def algorithm_of(run: str | os.PathLike[str]) -> str:
    """Return the short name of the algorithm of a run.

    Raises:
        RunError: If the folder has no checkpoint, or if it is damaged.
    """
    path = _checkpoint_in(Path(run))
    saved = read_tensor_file(path, WITHOUT_CHECKPOINT)
    with interpreting(path, WITHOUT_CHECKPOINT):
        return str(require(saved["algorithm"], str))


def _checkpoint_in(folder: Path) -> Path:
    check_folder(folder)
    path = folder / CHECKPOINT
    if not path.exists():
        raise RunError(f"{folder}: expected the folder of a run, but it has no {CHECKPOINT}")
    return path


def _resume(
    folder: Path,
    lock: Lock,
    env: str | None,
    encoder: EncoderOrMaker | None,
    fresh_episodes: bool,
    vec: VectorEnv | None,
    changes: dict[str, Any],
) -> Run:
    path = folder / CHECKPOINT
    saved = read_tensor_file(path, WITHOUT_CHECKPOINT)
    with interpreting(path, WITHOUT_CHECKPOINT):
        learner_class: Any = LEARNERS[saved["algorithm"]]
        before = learner_class.config_class.of(saved["config"])
        about = About.read(saved["about"])
        state, snapshot, own_encoder = dict(saved["state"]), saved["envs"], bool(saved["own_encoder"])
        done = require(state["collector"]["steps"], int)
    _check_code(folder, about, env, encoder, own_encoder=own_encoder)
    own = {name: changes.pop(name) for name in list(changes) if name in OPTIONS}
    options = replace(about.options, **own)
    config = _changed(before, changes, done)
    if env is not None and env != about.env:
        if not names_code(about.env):
            raise ArgumentError(f"env: the run was begun on {about.env}, and this cannot change, got {env}")
        snapshot = None  # it names the file of the old env
    changed = {
        name: [value, getattr(now, name)]
        for then, now in ((before, config), (about.options, options))
        for name, value in vars(then).items()
        if value != getattr(now, name)
    }
    if env is not None and env != about.env:
        changed["env"] = [about.env, env]
    about = replace(
        about,
        env=env or about.env,
        options=options,
        changes=(*about.changes, *([{"steps": done, "changed": changed}] if changed else [])),
    )
    replay = state.get("replay")
    if replay is not None:
        state["replay"] = read_replay(folder, replay, path, WITHOUT_CHECKPOINT)
    state["envs"] = None if fresh_episodes or snapshot is None else _read_envs(folder, snapshot)
    if vec is None:
        learner = learner_class(about.env, config, env_kwargs=about.env_kwargs, encoder=encoder)
    else:
        learner = learner_class(vec, config, encoder=encoder)
    try:
        threads = learner.threads
        exact = _load_state(learner, state, path, own_encoder=own_encoder)
        if "torch_threads" in changed:
            learner.threads = threads
        restored = Restored(exact, snapshot["file"] if exact else "", changed, replay)
        return Run.reopen(folder, lock, learner, about, restored)
    except BaseException:
        learner.close()
        raise


def _load_state(learner: Any, state: dict[str, Any], path: Path, *, own_encoder: bool) -> bool:
    """Restore the state of a learner; return whether its envs go on. Errors name what is wrong."""
    if own_encoder:
        with encoder_errors():
            learner.policy.load_state_dict(state["policy"])
    try:
        with interpreting(path, WITHOUT_CHECKPOINT):
            restored: bool = learner.load_state_dict(state)
            return restored
    except SnapshotError as error:
        raise RunError(f"{path.parent}: the envs cannot be restored: {error}. {FRESH}") from error


def _check_code(
    folder: Path, about: About, env: str | None, encoder: EncoderOrMaker | None, *, own_encoder: bool
) -> None:
    """Raise an `ArgumentError` if the run needs code that the user has not named."""
    if env is None and names_code(about.env):
        raise ArgumentError(
            f"{folder}: the env of this run is code, {about.env}, which is run only if you name it: "
            f"--env {about.env} (in Python env=...)"
        )
    if own_encoder and encoder is None:
        name = about.encoder or "FILE.py:CLASS"
        raise ArgumentError(
            f"{folder}: this run has an encoder of its own, {name}, which is run only if you name it: "
            f"--encoder {name} (in Python encoder=...)"
        )


def _changed(before: Any, changes: dict[str, Any], done: int) -> Any:
    """Return a config with other settings, if they may change."""
    config = type(before).of({**vars(before), **changes})
    for name in changes:
        if getattr(config, name) != getattr(before, name) and name not in config.CHANGEABLE:
            raise ArgumentError(
                f"{name}: the run was begun with {getattr(before, name)!r}, and this cannot change; what can "
                f"change: {', '.join(sorted(config.CHANGEABLE | OPTIONS))}"
            )
    for name in ("timeout", "on_error"):
        if name in changes and config.backend != "multiprocessing":
            raise ArgumentError(
                f"{name}: only a run whose envs are in worker processes has it; this one has the backend "
                f"{config.backend}"
            )
    if config.total_steps < done and config.total_steps != before.total_steps:
        raise ArgumentError(
            f"total_steps: expected at least the {done:,} steps of the run, got {config.total_steps:,}"
        )
    return config


def _read_envs(folder: Path, described: Any) -> Any:
    """Read the snapshot of the envs, if it is the one that belongs to the checkpoint."""
    with interpreting(folder / CHECKPOINT, WITHOUT_CHECKPOINT):
        name, digest = str(described["file"]), str(described["sha256"])
        if not re.fullmatch(r"envs-[0-9a-f]+\.pickle", name):
            raise ValueError(f"{name!r} is not the name of a snapshot")
    content = read_file(folder / name, FRESH)
    if digest_of(content) != digest:
        raise RunError(
            f"{folder / name}: expected the snapshot of the checkpoint, got a damaged file. {FRESH}"
        )
    try:
        return pickle.loads(content)
    except Exception as error:  # such as a class that this version of a package does not have
        what = f"{type(error).__name__}: {error}"
        raise RunError(f"{folder / name}: cannot make the envs of it ({what}). {FRESH}") from error
