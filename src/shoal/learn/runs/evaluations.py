"""Evaluation during training, on envs of its own, and the best policy so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.errors import RunError
from shoal.learn.evaluate import MAX_ENVS, Evaluation, evaluate
from shoal.learn.policy import Policy
from shoal.learn.runs.policy_file import BEST, Origin, save_policy
from shoal.learn.runs.tensor_file import interpreting, read_tensor_file
from shoal.vector import make
from shoal.vector.vec import VectorEnv

SEED = 1 << 30  # far from the seeds of training; the same for each evaluation, so that results compare


class Evaluator:
    """Plays the same episodes with a policy every so often, and keeps the best policy.

    Args:
        folder: The run's folder, where ``best.safetensors`` is written.
        origin: Name and arguments of the env, and the number of transitions so far.
        every: Number of transitions between two evaluations; 0 for no evaluation.
        episodes: Number of episodes of an evaluation.

    Attributes:
        best: Largest mean return so far; None if there was no evaluation.
    """

    def __init__(self, folder: Path, origin: Origin, every: int, episodes: int) -> None:
        self._path, self._every, self._episodes, self._steps = folder / BEST, every, episodes, origin.steps
        self._vec: VectorEnv | None = None
        self.best: float | None = _best_in(self._path)

    def is_due(self, steps: int) -> bool:
        """Return whether training has passed a multiple of `every` since the last call."""
        before, self._steps = self._steps, steps
        return self._every > 0 and steps // self._every > before // self._every

    def evaluate(self, policy: Policy, origin: Origin) -> Evaluation:
        """Play all episodes with the likeliest actions; save the policy if it is the best so far."""
        if self._vec is None:
            count, kwargs = min(self._episodes, MAX_ENVS), origin.env_kwargs
            self._vec = make(origin.env, count, env_kwargs=kwargs, flat=True, copy=False)
        training = policy.training
        policy.eval()
        try:
            found = evaluate(policy, self._vec, self._episodes, seed=SEED)
        finally:
            policy.train(training)
        if self.best is None or found.mean_return > self.best:
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
