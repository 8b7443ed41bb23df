"""What all learners have in common: their vec, training and reports, stopping, saving and closing."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from shoal.batch import Batch
from shoal.errors import ArgumentTypeError
from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.configs.base import LearnerConfig
from shoal.learn.episodes import Episodes
from shoal.learn.interaction import HOPS, Interaction
from shoal.learn.progress import Result, Update
from shoal.learn.replay import Replay
from shoal.learn.setup import check_device, check_vec, make_vec
from shoal.learn.threads import Crowding, Threads, choose_threads, use_torch_threads
from shoal.vector.vec import VectorEnv

OnUpdate = Callable[[Update], None] | None


class Learner(ABC):
    """Base class of learners: a policy that learns, and the vec that it acts in.

    Args:
        env: Vec with NEXT_STEP autoreset (flat, if observations or actions are structured), or any env that
            `shoal.make` takes.
        config: Settings of the learner.
        encoder: Module to use instead of the default encoder, or its class; see `Policy`.
        env_kwargs: Arguments for the envs, if the learner makes them.

    Attributes:
        algorithm: The short name of the algorithm, as on the command line.
        config: The settings, a frozen dataclass.
        vec: The vec that the learner steps.
        policy: The policy that learns.
        threads: Thread counts of torch.
        updates: Number of updates so far: of rollouts that were learnt from, or of gradient steps.
        seconds: Seconds of training so far.
        env_kwargs: Arguments of the envs that the learner made; empty if it was given a vec.
        replay: The replay; None for learners that have none.
    """

    algorithm: ClassVar[str]
    config_class: ClassVar[type[LearnerConfig]]
    policy_class: ClassVar[type[BasePolicy]]

    config: Any
    policy: Any
    replay: Replay | None = None
    _interaction: Interaction

    def __init__(
        self,
        env: Any,
        config: LearnerConfig | None = None,
        *,
        encoder: EncoderOrMaker | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.config = config = self.config_class() if config is None else config
        if not isinstance(config, self.config_class):
            name = self.config_class.__name__
            raise ArgumentTypeError(
                f"config: expected a {name} (from a dict: {name}.of(a_dict)), got {config!r}"
            )
        self._owns, self.env_kwargs = not isinstance(env, VectorEnv), dict(env_kwargs or {})
        self.vec = make_vec(env, config, env_kwargs) if self._owns else check_vec(env, config)
        self.updates, self.seconds = 0, 0.0
        self._learning_seconds = self._learning_cpu_seconds = 0.0
        self._crowding: Crowding | None = None
        self._stop_requested = False
        try:
            config.check_rows(self.vec.num_rows)
            check_device(config.device)
            # On one thread: weights come from decompositions, whose last digits depend on their number.
            with torch.random.fork_rng(devices=[]), use_torch_threads(1):
                torch.manual_seed(config.seed)
                self.policy = self._make_policy(encoder).to(config.device)
            self.threads = choose_threads(self.policy, self.vec, config, self._batch_size())
            self._prepare()
        except BaseException:
            self.close()
            raise

    # -- what each learner has of its own ----------------------------------------------------------------

    @abstractmethod
    def _make_policy(self, encoder: EncoderOrMaker | None) -> BasePolicy:
        """Make the policy, with torch's global generator seeded."""

    @abstractmethod
    def _batch_size(self) -> int:
        """Return the number of transitions in a gradient step."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make what learning needs, apart from vec and policy; the interaction with the vec is part of it."""

    @abstractmethod
    def _train(self, on_update: OnUpdate) -> None:
        """Learn until the last step, or until `_stop_requested`."""

    @abstractmethod
    def _learning_rate(self) -> float:
        """Return the learning rate of the last gradient step."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether training has reached its last step."""

    # -- training ----------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of transitions so far."""
        return self._interaction.steps

    @property
    def episodes(self) -> Episodes:
        """Statistics of the finished episodes."""
        return self._interaction.episodes

    def train(self, on_update: OnUpdate = None) -> Result:
        """Learn until `total_steps`, or until `stop` is called.

        Args:
            on_update: Function to call after each update; learners with a replay call it after some.
        """
        before, stop_requested, lstm = torch.get_num_threads(), False, self.policy.lstm
        torch.set_num_threads(self.threads.acting)
        if lstm is not None:
            lstm.threads = self.threads.lstm
        try:
            self._train(on_update)
            stop_requested = self._stop_requested
        finally:
            torch.set_num_threads(before)
            if lstm is not None:
                lstm.threads = 1
            self._stop_requested = False
        mean = self.episodes.mean_return()
        stopped = stop_requested and not self.is_done
        return Result(self.steps, self.updates, self.episodes.count, self.seconds, mean, stopped)

    def stop(self) -> None:
        """End training after the current update; if training has not begun, before the first update.

        Any thread or signal handler may call this method.
        """
        self._stop_requested = True

    def watch(self, on_batch: Callable[[Batch], None] | None) -> None:
        """Call a function with each batch that a step brings, before actions are chosen for it.

        During the call, the envs of the batch are not being stepped. The function may change settings of the
        envs, and call `stop`. With mode "overlap" another thread calls it.

        Args:
            on_batch: The function. The batch is valid inside the call only. None to call none.
        """
        self._interaction.on_batch = on_batch

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Use the threads for learning inside the block, and add up its time."""
        begun, cpu_begun = time.perf_counter(), time.process_time()
        acting, learning = self.threads.acting, self._learning_threads()
        if learning != acting:
            torch.set_num_threads(learning)
        yield
        if learning != acting:
            torch.set_num_threads(acting)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        self._learning_seconds += seconds
        self._learning_cpu_seconds += cpu_seconds
        if self._crowding is not None:
            self._crowding.add(seconds, cpu_seconds)

    def _learning_threads(self) -> int:
        """Return the number of torch threads for the next gradient steps."""
        return self.threads.learning

    def _report(
        self, on_update: OnUpdate, begun: float, steps: int, figures: dict[str, float], passes: float
    ) -> None:
        """Add up the time since `begun`, when there were `steps` transitions; call `on_update`."""
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        split = {**self._interaction.seconds, "learn": self._learning_seconds}
        cpu = self._learning_cpu_seconds / max(self._learning_seconds, 1e-9)
        self._interaction.seconds, self._learning_seconds = dict.fromkeys(HOPS, 0.0), 0.0
        self._learning_cpu_seconds = 0.0
        if on_update is None:
            return
        episodes = self.episodes
        on_update(
            Update(
                self.steps,
                self.config.total_steps,
                self.updates,
                self.seconds,
                (self.steps - steps) / seconds,
                episodes.count,
                episodes.mean_return(),
                episodes.mean_length(),
                self._learning_rate(),
                figures,
                split,
                passes,
                max(self.threads.learning, self.threads.lstm),
                cpu,
            )
        )

    # -- saving and closing -----------------------------------------------------------------------------

    def state_dict(self, *, with_replay: bool = True) -> dict[str, Any]:
        """Return the whole state between two updates; training resumed from it is the same bit for bit.

        It holds tensors, arrays and plain values. Only ``state["envs"]`` is something else: the snapshot of
        the vec, which must be pickled, or None if the envs cannot be.

        Args:
            with_replay: Whether to include the replay, which may be large.
        """
        return {
            "policy": deepcopy(self.policy.state_dict()),
            "threads": tuple(self.threads),
            "counts": (self.updates, self.seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a saved state; return False if the envs were not restored, so that new episodes begin."""
        self.policy.load_state_dict(state["policy"])
        self.threads = Threads(*(max(1, int(count)) for count in state["threads"]))
        updates, seconds = state["counts"]
        self.updates, self.seconds = int(updates), float(seconds)
        return True

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the policy to a folder; `shoal.learn.load` loads it."""
        from shoal.learn.runs.policy_file import LAST, Origin, save_policy

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        origin = Origin(self.vec.env_name or "", self.env_kwargs, steps=self.steps)
        save_policy(path / LAST, self.policy, origin.plain())

    def close(self) -> None:
        """Close the vec, if the learner made it."""
        if self._owns:
            self.vec.close()

    def __enter__(self) -> Self:
        """Return the learner itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the learner."""
        self.close()
