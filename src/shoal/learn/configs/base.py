"""Settings that all learners have, and the checks of their types and ranges."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.configs.presets import preset_for
from shoal.learn.layers import ACTIVATIONS


@dataclass(frozen=True)
class LearnerConfig:
    """Settings that all learners have."""

    total_steps: int = 100_000
    """Number of transitions to learn from. Steps that reset an env do not count. (`total_timesteps`)"""
    seed: int = 1
    """Seed of weights, actions, minibatches and envs. The same seed gives the same result."""
    num_envs: int = 64
    """Number of envs, if the learner makes them. (`n_envs`)"""
    backend: Literal["auto", "serial", "multiprocessing", "native"] = "auto"
    """Backend of the envs, as in `shoal.make`. For a few fast envs in Python, serial is fastest."""
    num_workers: int | None = None
    """Number of processes or threads that step the envs; by default one for each core."""
    mode: Literal["sync", "overlap", "async"] = "sync"
    """sync: step, then learn. overlap: learn while a thread steps the envs with the policy before; the lag is
    fixed, so results are reproducible. async: take rows as they arrive, so that the learner does not wait for
    the slowest env."""
    gamma: float = 0.99
    """Discount of future rewards."""
    learning_rate: float = 3e-4
    """Learning rate of Adam. (`lr`)"""
    max_grad_norm: float = 10.0
    """Largest norm of a gradient; longer gradients are clipped."""
    normalize_observations: bool = True
    """Normalise vectors in observations to mean 0 and deviation 1. Both are saved with the policy."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation function of the layers."""
    device: str = "cpu"
    """Torch device to learn on."""
    timeout: float | None = None
    """Seconds that a worker process may take for a step before it counts as hanging; by default no limit.
    With a timeout, the envs run in worker processes."""
    on_error: Literal["raise", "restart"] = "raise"
    """Reaction to a worker process that dies or hangs, or to an env that raises. raise: training ends.
    restart: a new process takes the place of the old one, and its envs begin new episodes."""
    torch_threads: int | None = None
    """Number of torch threads. By default one for each core if a batch is large enough and no process that
    steps envs needs the cores, else 1."""

    ALGORITHM: ClassVar[str] = ""
    """Short name of the algorithm, as on the command line."""

    CHANGEABLE: ClassVar[frozenset[str]] = frozenset(
        (
            *("total_steps", "gamma", "learning_rate", "max_grad_norm"),
            *("timeout", "on_error", "torch_threads"),
        )
    )
    """Settings that may change when a run is resumed. The others shape the networks, the envs or what is
    already stored."""

    RANGES: ClassVar[dict[str, tuple[float, float | None]]] = {
        "total_steps": (1, None),
        "num_envs": (1, None),
        "gamma": (0, 1),
        "learning_rate": (0, None),
        "max_grad_norm": (0, None),
        "seed": (0, 2**62),
        "torch_threads": (1, None),
        "num_workers": (1, None),
    }
    """Smallest and largest value of each number."""

    USUAL_NAMES: ClassVar[dict[str, str]] = {
        "lr": "learning_rate",
        "n_envs": "num_envs",
        "total_timesteps": "total_steps",
    }
    """Our name for the name that CleanRL, Stable-Baselines3 or others give to a setting."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, (low, high) in self.RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not value >= low or (high is not None and value > high):
                most = "" if high is None else f" and at most {high}"
                raise ArgumentError(f"{name}: expected at least {low}{most}, got {value!r}")
        self._check_choice("mode", "sync", "overlap", "async")
        self._check_choice("on_error", "raise", "restart")
        self._check_choice("activation", *sorted(ACTIVATIONS))
        if self.timeout is not None and not self.timeout > 0:
            raise ArgumentError(f"timeout: expected more than 0 seconds, got {self.timeout!r}")

    def _check_choice(self, name: str, *choices: str) -> None:
        if (value := getattr(self, name)) not in choices:
            listed = ", ".join(repr(choice) for choice in choices[:-1])
            raise ArgumentError(f"{name}: expected {listed} or {choices[-1]!r}, got {value!r}")

    def _check_types(self) -> None:
        """Check the types of fields, and convert values: 1e5 to 100_000, a list of widths to a tuple."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" or (one.type == "int | None" and value is not None):
                good = _is_number(value) and float(value) % 1 == 0
                wanted, value = "a whole number", int(value) if good else value
            elif one.type == "float" or (one.type == "float | None" and value is not None):
                good, wanted = _is_number(value), "a number"
                value = float(value) if good else value
            elif one.type == "bool":
                good, wanted = isinstance(value, (bool, np.bool_)), "True or False"
                value = bool(value) if good else value
            elif one.name == "hidden":
                good = isinstance(value, (tuple, list)) and all(isinstance(n, int) and n > 0 for n in value)
                wanted, value = "widths, such as (64, 64)", tuple(value) if good else value
            else:
                continue
            if not good:
                raise ArgumentTypeError(f"{one.name}: expected {wanted}, got {value!r}")
            object.__setattr__(self, one.name, value)

    def check_rows(self, rows: int) -> None:
        """Check the settings that depend on the number of rows of the vec.

        Raises:
            ArgumentError: If they do not fit.
        """

    def settled(self, rows: int) -> Self:
        """Return the config with the values that its defaults stand for, for a number of rows."""
        return self

    @classmethod
    def for_env(cls, env: str, **settings: Any) -> Self:
        """Make a config from the preset of an env, if it has one, with `settings` instead of the preset's."""
        return cls.of({**preset_for(env, cls.ALGORITHM)[1], **settings})

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Make a config from a dict, such as the one in ``config.json``.

        Raises:
            ArgumentError: If a key is not the name of a field.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                near = cls.USUAL_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), "")
                hint = f": did you mean {near}?" if near else ""
                raise ArgumentError(f"{name}: {cls.ALGORITHM.upper()} has no such setting{hint}")
        return cls(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
