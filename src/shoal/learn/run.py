"""Run folders: settings, metrics, policy and checkpoint of a training run.

config.json       algorithm, env and settings
metrics.jsonl     one line per update, append-only
events.out.*      the same metrics for TensorBoard, under CleanRL's names
policy.pt         the policy; read by `load`
checkpoint.pt     the whole state of the learner; read by `resume`
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import pickle
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.policy import Policy
from shoal.learn.ppo import PPO
from shoal.learn.ppo_config import PPOConfig
from shoal.learn.progress import Update
from shoal.rows.layout import layout
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.vec import VectorEnv

SCALARS = {  # CleanRL's names for TensorBoard
    "policy": "losses/policy_loss",
    "value": "losses/value_loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "grad_norm": "losses/grad_norm",
    "explained_variance": "losses/explained_variance",
}


class Run:
    """Writer of a run folder. Pass it to `PPO.train` as `on_update`.

    Args:
        folder: Folder to write; it must not contain another run.
        ppo: Learner to save.
        env: Name of the env, from which `resume` makes it again.
        env_kwargs: Arguments for the env.
        checkpoint_seconds: Seconds between two checkpoints. A checkpoint is also written after the first
            update and at the end.
        resumed: Whether to continue the run that the folder contains.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        ppo: PPO,
        env: str,
        env_kwargs: dict[str, Any] | None = None,
        *,
        checkpoint_seconds: float = 60.0,
        resumed: bool = False,
    ) -> None:
        if not isinstance(env, str):
            raise ArgumentTypeError(
                "env: expected a name, by which the run can be resumed, such as path/to/file.py:Class, got "
                f"{env!r}"
            )
        self.folder, self._ppo, self._env = Path(folder), ppo, {"env": env, "env_kwargs": env_kwargs or {}}
        if resumed:
            self._drop_updates_after(ppo.updates)
        else:
            if (self.folder / "checkpoint.pt").exists():
                raise ArgumentError(
                    f"{self.folder} contains a run already: choose another folder, or resume it (--resume; "
                    "in Python shoal.learn.resume)"
                )
            # A run that was killed in its first update has no checkpoint, so its files can be removed.
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in (self.folder / "metrics.jsonl", *self.folder.glob("events.out.tfevents.*")):
                left.unlink(missing_ok=True)
        config = {"algorithm": "ppo", **self._env, "config": asdict(ppo.config)}
        config["threads"] = ppo.threads._asdict()
        config["versions"] = {name: importlib.metadata.version(name) for name in ("shoal", "torch")}
        _write(self.folder / "config.json", json.dumps(config, indent=2).encode())
        self._metrics = (self.folder / "metrics.jsonl").open("a")
        self._board = _tensorboard(self.folder, ppo.steps if resumed else None)
        self._last: Update | None = None
        self._board_due = self._flush_due = 0.0
        self._checkpoint_seconds, self._saved = checkpoint_seconds, time.monotonic()
        self._saved_updates = ppo.updates if resumed else -1

    def _drop_updates_after(self, updates: int) -> None:
        """Remove the metrics of updates after the checkpoint, because training repeats those updates."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith("\n"):  # the machine stopped while writing the line
            lines.pop()
        _write(path, "".join(line for line in lines if json.loads(line)["updates"] <= updates).encode())

    def history(self) -> list[Update]:
        """Read the updates in the folder, including those before a resume."""
        self._metrics.flush()
        return [
            self._update_from(json.loads(line))
            for line in (self.folder / "metrics.jsonl").read_text().splitlines()
        ]

    def _update_from(self, figures: dict[str, Any]) -> Update:
        known: dict[str, Any] = {
            name: math.nan if value is None else value for name, value in figures.items()
        }
        losses = {name: known.pop(name) for name in SCALARS if name in known}
        return Update(total_steps=self._ppo.config.total_steps, losses=losses, **known)

    def __call__(self, update: Update) -> None:
        """Write an update to the folder, and a checkpoint if it is due."""
        figures = {
            "steps": update.steps,
            "updates": update.updates,
            "seconds": round(update.seconds, 4),
            "steps_per_second": round(update.steps_per_second, 1),
            "episodes": update.episodes,
            "mean_return": _number(update.mean_return),
            "mean_length": _number(update.mean_length),
            "learning_rate": update.learning_rate,
            **{name: _number(value) for name, value in update.losses.items()},
        }
        self._metrics.write(json.dumps(figures) + "\n")
        self._last, now = update, time.monotonic()
        if now >= self._flush_due:
            self._metrics.flush()
            self._flush_due = now + 1
        if now >= self._board_due:
            self._to_board(update)
            # TensorBoard may take at most a quarter of a percent of the time, also if updates are short.
            took = time.monotonic() - now
            self._board_due = now + 400 * took
        if self._saved_updates < 0 or now - self._saved >= self._checkpoint_seconds:
            self.save()

    def _to_board(self, update: Update) -> None:
        if self._board is None:
            return
        self._last = None
        scalars = {SCALARS[name]: value for name, value in update.losses.items()}
        scalars["charts/SPS"] = update.steps_per_second
        scalars["charts/learning_rate"] = update.learning_rate
        scalars["charts/episodic_return"] = update.mean_return
        scalars["charts/episodic_length"] = update.mean_length
        for name, value in scalars.items():
            if not math.isnan(value):
                self._board.add_scalar(name, value, update.steps)

    def save(self) -> bool:
        """Save policy and learner; return False if the envs are not saved, because they cannot be pickled."""
        self._metrics.flush()
        save_policy(self.folder, self._ppo, self._env)
        state = self._ppo.state_dict()
        config = {**asdict(self._ppo.config), **_vec_settings(self._ppo.vec)}
        _save(self.folder / "checkpoint.pt", {**self._env, "config": config, "state": state})
        self._saved, self._saved_updates = time.monotonic(), self._ppo.updates
        return state["collector"]["envs"] is not None

    def close(self) -> None:
        """Save the updates since the last checkpoint, and close all files."""
        if self._saved_updates != self._ppo.updates:
            self.save()
        self._metrics.close()
        if self._board is not None:
            if self._last is not None:
                self._to_board(self._last)
            self._board.close()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the run; after an error, do not save again."""
        if kind is not None:
            self._saved_updates = self._ppo.updates
        self.close()


def _vec_settings(vec: VectorEnv) -> dict[str, Any]:
    """Return settings that make an equal vec on any machine, so that a snapshot of its envs fits."""
    backend = type(vec).__name__.lower()
    return {
        "num_envs": vec.num_rows // vec.agents_per_env,
        "backend": backend if backend in ("serial", "multiprocessing", "native") else "auto",
        "num_workers": vec.num_workers if isinstance(vec, Multiprocessing) else None,
    }


def save_policy(folder: Path, ppo: PPO, env: dict[str, Any]) -> None:
    """Write ``policy.pt``, which `load` reads.

    Args:
        folder: Run folder.
        ppo: Learner with the policy.
        env: Name and arguments of the env, to save with the policy.
    """
    config, policy = ppo.config, ppo.policy
    _save(
        folder / "policy.pt",
        {
            **env,
            "observation_space": ppo.vec.observation_layout.space,
            "action_space": ppo.vec.single_action_space,
            "own_encoder": policy.own_encoder,
            "arguments": {
                "hidden": config.hidden,
                "lstm": config.lstm,
                "activation": config.activation,
                "normalize_observations": config.normalize_observations,
            },
            "weights": policy.state_dict(),
        },
    )


def load(run: str | os.PathLike[str], *, encoder: torch.nn.Module | None = None) -> Policy:
    """Load the policy of a run, ready to act.

    Only load files that you trust: like every pickle, they can run code.

    Args:
        run: Run folder.
        encoder: Module like the one that the policy was trained with, if not the default encoder.
    """
    saved = read(run, "policy.pt")
    if saved["own_encoder"] != (encoder is not None):
        expected = "a module like the one the policy was trained with" if saved["own_encoder"] else "None"
        raise ArgumentError(f"encoder: expected {expected}, got {encoder}")
    plan = layout(saved["observation_space"])
    policy = Policy(plan, saved["action_space"], encoder=encoder, **saved["arguments"])
    policy.load_state_dict(saved["weights"])
    return policy.eval()


@dataclass(frozen=True)
class Resumed:
    """A learner restored from a run folder."""

    ppo: PPO
    """Learner in the state of the last checkpoint."""
    env: str
    """Name of the env."""
    env_kwargs: dict[str, Any]
    """Arguments of the env."""
    exact: bool
    """Whether the envs continue their episodes; False if they were not saved and begin new ones."""


def resume(
    run: str | os.PathLike[str],
    *,
    total_steps: int | None = None,
    torch_threads: int | None = None,
    encoder: torch.nn.Module | None = None,
) -> Resumed:
    """Restore the learner of a run from its last checkpoint.

    To continue the run folder too, pass ``resumed=True`` to `Run`.

    Args:
        run: Run folder.
        total_steps: New number of steps; by default that of the run. With a new number, the result differs
            from that of a run which had it from the start, because the learning rate depends on it.
        torch_threads: New number of threads; by default those of the run. A new number may change the last
            digits of results.
        encoder: Module like the one that the policy was trained with, if not the default encoder.
    """
    saved = read(run, "checkpoint.pt")
    done = saved["state"]["collector"]["steps"]
    if total_steps is not None and total_steps < done:
        raise ArgumentError(
            f"total_steps: expected at least the {done:,} steps of the run, got {total_steps:,}"
        )
    asked = {"total_steps": total_steps, "torch_threads": torch_threads}
    config = PPOConfig.of({**saved["config"], **{name: n for name, n in asked.items() if n is not None}})
    ppo = PPO(saved["env"], config, env_kwargs=saved["env_kwargs"], encoder=encoder)
    try:
        chosen = ppo.threads
        exact = ppo.load_state_dict(saved["state"])
        if torch_threads is not None:
            ppo.threads = chosen
    except BaseException:
        ppo.close()
        raise
    return Resumed(ppo, saved["env"], saved["env_kwargs"], exact)


def read(run: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Read a file of a run folder.

    Args:
        run: Run folder.
        name: Name of the file.

    Raises:
        ArgumentError: If the file is missing or damaged.
    """
    path = Path(run) / name
    if not path.exists():
        why = (
            "is a file"
            if Path(run).is_file()
            else f"has no {name}"
            if Path(run).exists()
            else "does not exist"
        )
        raise ArgumentError(f"{run}: expected the folder of a run, but it {why}")
    try:
        found: Any = torch.load(path, weights_only=False, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ArgumentError(
            f"{path}: expected a file that torch.save wrote, got a damaged one: {error}"
        ) from error
    if not isinstance(found, dict) or (name == "policy.pt" and "observation_space" not in found):
        raise ArgumentError(f"{path}: expected a file that `shoal train` wrote, got another one")
    return found


def _number(value: float) -> float | None:
    """Replace NaN and inf by None, because JSON has neither."""
    return None if math.isnan(value) or math.isinf(value) else value


def _save(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    torch.save(value, part)
    part.replace(path)  # atomic: if the process is killed, the previous file stays whole


def _write(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def _tensorboard(folder: Path, steps: int | None) -> Any:
    """Open a TensorBoard writer, and hide its events after `steps`; None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=steps)
