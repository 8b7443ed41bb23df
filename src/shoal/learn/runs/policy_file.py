"""The policy of a run, as a file that can be opened without running code from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from shoal.errors import ArgumentError, RunError
from shoal.learn.algorithms import LEARNERS
from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file, require, write_tensor_file
from shoal.rows.layout import layout
from shoal.rows.space_json import space_from_json, space_to_json

LAST, BEST = "policy.safetensors", "best.safetensors"


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from: names only, by which the user can make the env and the encoder again."""

    env: str = ""
    """Name of the env; "" if it has none."""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the env."""
    encoder: str = ""
    """Name of the encoder, such as ``path/to/file.py:Class``; "" for the default or if it has none."""
    steps: int = 0
    """Number of transitions that the policy had learnt from."""
    mean_return: float | None = None
    """Mean return of the evaluation that the policy was saved after, if there was one."""

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Origin:
        """Make the origin that a file describes. Its names may be those of code, so their types matter."""
        return cls(
            env=require(saved["env"], str),
            env_kwargs=require(saved["env_kwargs"], dict, type(None)),
            encoder=require(saved["encoder"], str),
            steps=require(saved["steps"], int),
            mean_return=require(saved["mean_return"], float, type(None)),
        )

    def plain(self) -> Origin:
        """Return the origin without the env, if its arguments cannot be written as JSON."""
        try:
            json.dumps(self.env_kwargs)
        except (TypeError, ValueError):
            return replace(self, env="", env_kwargs=None)
        return self


@dataclass(frozen=True)
class SavedPolicy:
    """A policy that was read from a file."""

    policy: BasePolicy
    """The policy, ready to act."""
    origin: Origin
    """Where it comes from."""


def save_policy(path: Path, policy: BasePolicy, origin: Origin) -> None:
    """Write a policy to a file that `load` reads."""
    write_tensor_file(
        path,
        {
            "algorithm": policy.algorithm,
            "origin": vars(origin),
            "observation_space": space_to_json(policy.layout.space),
            "action_space": space_to_json(policy.actions.space),
            "own_encoder": policy.own_encoder,
            "arguments": policy.arguments,
            "weights": policy.state_dict(),
        },
    )


def load(
    run: str | os.PathLike[str], *, encoder: EncoderOrMaker | None = None, best: bool = False
) -> BasePolicy:
    """Load the policy of a run, ready to act. No code from the folder is run.

    Args:
        run: Run folder.
        encoder: Module like the one that the policy was trained with, or its class, if it was not the default
            encoder.
        best: Whether to load the policy of the best evaluation instead of the last one.

    Raises:
        RunError: If the folder has no such policy, or if the file is damaged.
    """
    return load_saved(run, encoder=encoder, best=best).policy


def load_saved(
    run: str | os.PathLike[str], *, encoder: EncoderOrMaker | None = None, best: bool = False
) -> SavedPolicy:
    """Load the policy of a run together with the names of its env and encoder; see `load`."""
    path, remedy = _find(Path(run), best=best)
    return _load(path, remedy, encoder)


def load_file(path: str | os.PathLike[str]) -> SavedPolicy:
    """Load a policy from its file, or the last one of a run from its folder.

    Raises:
        RunError: If there is no such policy, or if the file is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return load_saved(path)
    if not path.exists():
        raise RunError(f"{path}: expected the file of a policy or the folder of a run, but it does not exist")
    return _load(path, "Take another file", None)


def _load(path: Path, remedy: str, encoder: EncoderOrMaker | None) -> SavedPolicy:
    saved = read_tensor_file(path, remedy)
    with interpreting(path, remedy):
        policy_class = LEARNERS[saved["algorithm"]].policy_class
        origin, own = Origin.read(saved["origin"]), bool(saved["own_encoder"])
        space, actions = space_from_json(saved["observation_space"]), space_from_json(saved["action_space"])
        plan, arguments, weights = layout(space), dict(saved["arguments"]), dict(saved["weights"])
    if own != (encoder is not None):
        name = f", {origin.encoder}" if origin.encoder else ""
        if own:
            raise ArgumentError(
                f"encoder: this policy was trained with an encoder of its own{name}. Name it: --encoder "
                f"{origin.encoder or 'FILE.py:CLASS'} (in Python encoder=...)"
            )
        raise ArgumentError(f"encoder: this policy has the default encoder: drop {encoder}")
    if encoder is not None and not isinstance(encoder, nn.Module):
        encoder = encoder(space)  # its errors are not those of the file
    with interpreting(path, remedy):
        _check_widths(arguments["hidden"], weights)
    if own:
        with encoder_errors():
            policy = policy_class(plan, actions, encoder=encoder, **arguments)
            policy.load_state_dict(weights)
    else:
        with interpreting(path, remedy):
            policy = policy_class(plan, actions, **arguments)
            policy.load_state_dict(weights)
    return SavedPolicy(policy.eval(), origin)


@contextmanager
def encoder_errors() -> Iterator[None]:
    """Turn errors of weights that do not fit inside the block into one that names the encoder."""
    try:
        yield
    except RuntimeError as error:
        raise ArgumentError(
            f"encoder: expected the encoder that the policy was trained with, got another one: {error}"
        ) from error


def _check_widths(hidden: Any, weights: dict[str, Any]) -> None:
    """Raise a `ValueError` if layers are wider than the weights, before memory is taken for them."""
    largest = max((size for tensor in weights.values() for size in tensor.shape), default=0)
    if any(width > largest for width in hidden):
        raise ValueError(f"the layers have the widths {hidden}, but the weights at most {largest}")


def _find(run: Path, *, best: bool) -> tuple[Path, str]:
    """Return the file of a policy, and what can be done if it is damaged."""
    check_folder(run)
    path = run / (BEST if best else LAST)
    if best:
        if not path.exists():
            raise RunError(f"{run}: has no {BEST}: it is written by a run that evaluates (--eval-every)")
        return path, f"The last policy of the run is in {LAST}"
    if not path.exists():
        raise RunError(f"{run}: expected the folder of a run, but it has no {LAST}")
    return path, "If the run has a whole checkpoint, resuming it writes this file again"


def check_folder(run: Path) -> None:
    """Raise a `RunError` if there is no such folder."""
    if not run.is_dir():
        why = "is a file" if run.exists() else "does not exist"
        raise RunError(f"{run}: expected the folder of a run, but it {why}")
    seeds = sorted(path.parent.name for path in run.glob(f"seed-*/{LAST}"))
    if seeds and not (run / LAST).exists():
        raise RunError(f"{run}: expected the folder of one run, got that of several: {', '.join(seeds)}")
