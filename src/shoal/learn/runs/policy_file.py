"""The policy of a run, as a file that can be opened without running code from it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from shoal.errors import ArgumentError, RunError
from shoal.learn.policy import EncoderOrMaker, Policy
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file, write_tensor_file
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

    policy: Policy
    """The policy, ready to act."""
    origin: Origin
    """Where it comes from."""


def save_policy(path: Path, policy: Policy, origin: Origin) -> None:
    """Write a policy to a file that `load` reads."""
    write_tensor_file(
        path,
        {
            "origin": vars(origin),
            "observation_space": space_to_json(policy.layout.space),
            "action_space": space_to_json(policy.actions.space),
            "own_encoder": policy.own_encoder,
            "arguments": policy.arguments,
            "weights": policy.state_dict(),
        },
    )


def load(run: str | os.PathLike[str], *, encoder: EncoderOrMaker | None = None, best: bool = False) -> Policy:
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
    saved = read_tensor_file(path, remedy)
    with interpreting(path, remedy):
        origin, own = Origin(**saved["origin"]), bool(saved["own_encoder"])
        space, actions = space_from_json(saved["observation_space"]), space_from_json(saved["action_space"])
        plan, arguments, weights = layout(space), dict(saved["arguments"]), dict(saved["weights"])
    if own != (encoder is not None):
        name = f", {origin.encoder}" if origin.encoder else ""
        expected = f"the encoder that the policy was trained with{name}" if own else "None"
        raise ArgumentError(f"encoder: expected {expected}, got {encoder}")
    if encoder is not None and not isinstance(encoder, nn.Module):
        encoder = encoder(space)  # its errors are not those of the file
    with interpreting(path, remedy):
        policy = Policy(plan, actions, encoder=encoder, **arguments)
        policy.load_state_dict(weights)
    return SavedPolicy(policy.eval(), origin)


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
