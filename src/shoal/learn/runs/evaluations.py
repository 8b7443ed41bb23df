"""Evaluation during training, on envs of its own, and the best policy so far."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import RunError
from shoal.learn.base_policy import BasePolicy
from shoal.learn.evaluate import MAX_ENVS, Evaluation, evaluate
from shoal.learn.runs.options import RunOptions
from shoal.learn.runs.policy_file import BEST, Origin, save_policy
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file
from shoal.vector import make
from shoal.vector.vec import VectorEnv

SEED = 1 << 30  # above the seeds of training; the same for each evaluation, so that results compare


class Evaluator:
    """Plays the same episodes with a policy every so often, and keeps the best policy.

    Args:
        folder: The run's folder, where ``best.safetensors`` is written.
        origin: Name and arguments of the env, and the number of transitions so far.
        config: Settings of the learner: its envs' `timeout` and `on_error` hold here too.
        options: How often to evaluate, and with how many episodes.

    Attributes:
        best: Largest mean return so far; None if there was no evaluation.
    """

    def __init__(self, folder: Path, origin: Origin, config: Any, options: RunOptions) -> None:
        self._path, self._config, self._steps = folder / BEST, config, origin.steps
        self._every, self._episodes = options.eval_every, options.eval_episodes
        self._vec: VectorEnv | None = None
        self.best: float | None = _best_in(self._path)

    def evaluate_if_due(self, policy: BasePolicy, origin: Origin) -> Evaluation | None:
        """Evaluate, if training has passed a multiple of `eval_every` since the last call."""
        before, self._steps = self._steps, origin.steps
        if not self._every or origin.steps // self._every == before // self._every:
            return None
        return self._evaluate(policy, origin)

    def _evaluate(self, policy: BasePolicy, origin: Origin) -> Evaluation:
        """Play all episodes with the likeliest actions; save the policy if it is the best so far."""
        if self._vec is None:
            self._vec = make(
                origin.env,
                min(self._episodes, MAX_ENVS),
                env_kwargs=origin.env_kwargs,
                timeout=self._config.timeout,
                on_error=self._config.on_error,
                flat=True,
                copy=False,
            )
        training = policy.training
        policy.eval()
        try:
            found = evaluate(policy, self._vec, self._episodes, seed=SEED)
        finally:
            policy.train(training)
        if self.best is None or math.isnan(self.best) or found.mean_return > self.best:
            save_policy(self._path, policy, replace(origin, mean_return=found.mean_return))
            self.best = found.mean_return
        return found

    def close(self) -> None:
        """Close the envs."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None


def _best_in(path: Path) -> float | None:
    """Return the mean return of the best policy that is saved; None if there is none, or if it is damaged."""
    if not path.exists():
        return None
    try:
        saved = read_tensor_file(path, "")
        with interpreting(path, ""):
            return float(saved["origin"]["mean_return"])
    except RunError:
        return None
