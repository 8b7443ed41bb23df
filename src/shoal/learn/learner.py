"""What all learners have in common: the parts that runs, signals and the command line use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from shoal.learn.policy import Policy
from shoal.learn.progress import Result, Update
from shoal.learn.threads import Threads
from shoal.vector.vec import VectorEnv


class Learner(Protocol):
    """A learner with its policy and its vec, such as `PPO`.

    Attributes:
        algorithm: The short name of the algorithm, as on the command line.
        config: The settings, a frozen dataclass.
        vec: The vec that the learner steps.
        policy: The policy that learns.
        threads: Thread counts of torch.
        updates: Number of updates so far.
        env_kwargs: Arguments of the envs that the learner made; empty if it was given a vec.
    """

    algorithm: ClassVar[str]
    config: Any
    vec: VectorEnv
    policy: Policy
    threads: Threads
    updates: int
    env_kwargs: dict[str, Any]

    @property
    def steps(self) -> int:
        """Number of transitions so far."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether training has reached its last step."""
        ...

    def train(self, on_update: Callable[[Update], None] | None = None) -> Result:
        """Learn until the last step, or until `stop` is called."""
        ...

    def stop(self) -> None:
        """End training after the current update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: tensors, arrays and plain values.

        Only ``state["envs"]`` is something else: the snapshot of the vec, which must be pickled, or None.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a saved state; return False if the envs were not restored, so that new episodes begin."""
        ...

    def close(self) -> None:
        """Close the vec, if the learner made it."""
        ...
