"""What learners with a replay have in common: step, store, sample, descend.

    Explorer.step                 recv, act, store, send: one step of all envs
    OffPolicyLearner._learn       sample from the replay and descend, `updates_per_step` times a transition

An observation passes `explorer` (recv), the policy (act), `replay` (store and sample), and the policy again,
to the loss in `dqn` or `sac`.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import ArgumentError, Diverged
from shoal.learn.base_policy import BasePolicy
from shoal.learn.configs.replay import ReplayConfig
from shoal.learn.evaluate import check_fits
from shoal.learn.explorer import Explorer, Step, copied
from shoal.learn.learner import Learner, OnUpdate
from shoal.learn.replay import Replay, Transitions, bytes_per_transition, check_memory
from shoal.learn.threads import Crowding, use_torch_threads
from shoal.limits import obtaining

REPORT_STEPS = 1000  # transitions from one report to the next
OBSERVE_STEPS = 64  # observations that are added to the normaliser at once, because each time takes a while
MOST_SAMPLED = 1 << 25  # bytes of observations that are sampled at once


class OffPolicyLearner(Learner):
    """Base class of learners with a replay."""

    config: ReplayConfig
    replay: Replay
    augment: Callable[[Transitions], Transitions] | None = None
    """Function that changes sampled transitions before they are learnt from, such as by a symmetry."""

    def _batch_size(self) -> int:
        return self.config.batch_size

    def _learning_rate(self) -> float:
        return self.config.learning_rate

    def _prepare(self) -> None:
        config, vec = self.config, self.vec
        used = min(config.replay_size, config.total_steps + vec.num_rows)
        layout, actions = vec.observation_layout, self.policy.actions
        each = bytes_per_transition(layout, actions, config.frame_stack, prioritized=config.prioritized)
        check_memory(config.replay_size, used * each)
        with obtaining("memory for the replay", "Take a smaller replay_size"):
            self.replay = Replay(
                min(config.replay_size, 2 * used),  # an episode that is cut off takes a place more
                vec.num_rows,
                layout,
                actions,
                seed=config.seed,
                frame_stack=config.frame_stack,
                prioritized=config.prioritized,
            )
        self._interaction = self._explorer = Explorer(vec, self.policy, config.seed)
        # With overlap, the policy that acts is one step behind.
        self._actor = deepcopy(self.policy) if config.mode == "overlap" else self.policy
        self._owed = 0.0  # gradient steps that are due, of which one may be due in part
        self._begun = False
        self._encoder_learns = any(True for _ in self.policy.encoder.parameters())
        self._normalizes = getattr(self.policy.encoder, "moments", None) is not None
        self._observed = 0  # observations that the normaliser has seen
        self._figures: dict[str, list[Tensor]] = {}
        row = layout.nbytes * config.batch_size
        self._most_sampled = 1 if config.prioritized else max(1, min(16, MOST_SAMPLED // max(1, row)))
        self._prepare_learning()

    # -- what each learner has of its own ----------------------------------------------------------------

    @abstractmethod
    def _prepare_learning(self) -> None:
        """Make targets and optimizers."""

    @abstractmethod
    def _explore(self, policy: BasePolicy, obs: Tensor, step: Step, generator: torch.Generator) -> Tensor:
        """Choose flat actions that explore."""

    @abstractmethod
    def _gradient_step(self, transitions: Transitions, *, report: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn from transitions; return errors, [entries, ...], and figures if they are to be reported."""

    # -- training ----------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether training has reached `total_steps`."""
        return self.steps >= self.config.total_steps

    def _train(self, on_update: OnUpdate) -> None:
        if not self._begun:
            self._explorer.reset()
            self._begun = True
        with self._stepping() as step:
            while not self.is_done and not self._stop_requested:
                begun, steps = time.perf_counter(), self.steps
                step()
                while not self._is_report_due(steps):
                    step()
                self._explorer.hold()
                self._report(on_update, begun, steps, self._mean_figures(), math.nan)

    def _is_report_due(self, reported: int) -> bool:
        """Return whether to report now, if the last report was at a number of steps."""
        every = max(REPORT_STEPS, self.vec.num_rows)
        return self._stop_requested or self.is_done or self.steps // every > reported // every

    @contextmanager
    def _stepping(self) -> Iterator[Any]:
        """Return the function that steps the envs once and learns."""
        if self.config.mode != "overlap":
            yield self._step_in_turn
            return
        executor, wait = ThreadPoolExecutor(1, "shoal-step"), True
        try:
            yield lambda: self._step_overlapping(executor)
        except KeyboardInterrupt:
            wait = False  # an env may hang; the thread ends when the vec is closed
            raise
        finally:
            executor.shutdown(wait=wait)

    def _step_in_turn(self) -> None:
        """Step the envs, then learn. Envs in worker processes are stepped while the policy learns."""
        self._explorer.step(self.policy, self._choose, self._keep)
        if due := self._due():
            self._learn(due, self.steps)

    def _step_overlapping(self, executor: ThreadPoolExecutor) -> None:
        """Learn while a thread steps the envs with the policy of the step before.

        The policy that acts is always exactly one step behind, so that a run can be reproduced.
        """
        staged: list[Step] = []
        steps = self.steps  # now: the thread counts on
        with obtaining("a thread to step the envs beside learning", 'Use mode="sync"'):
            stepped = executor.submit(
                self._explorer.step, self._actor, self._choose, lambda step: staged.append(copied(step))
            )
        try:
            if due := self._due():
                self._learn(due, steps)
        except BaseException:
            self.replay.abandon()  # the step of the thread is lost, and with it the outcome of the last one
            raise
        stepped.result()
        for step in staged:
            self._keep(step)
        self._actor.load_state_dict(self.policy.state_dict())

    def _choose(self, policy: BasePolicy, obs: Tensor, step: Step, generator: torch.Generator) -> Tensor:
        """Choose flat actions: random ones at first."""
        if self.steps < self.config.warmup_steps:
            masks = step.masks
            mask = policy.mask_from_obs(obs) if masks is None else torch.from_numpy(masks).to(obs.device)
            return policy.actions.draw_uniformly(len(obs), mask, generator)
        with torch.no_grad():
            return self._explore(policy, obs, step, generator)

    def _keep(self, step: Step) -> None:
        """Store a step in the replay, and its observations in the normaliser."""
        batch = step.batch
        try:
            self.replay.add(batch, step.actions, rows=step.rows, masks=step.masks)
        except Diverged as error:
            raise Diverged(f"at {self.steps:,} steps: {error}") from None
        if self._observed > self.replay.total:  # the replay was cleared
            self._observed = 0
        if self._normalizes and self.replay.total - self._observed >= OBSERVE_STEPS:
            obs = self.replay.observations(self._observed, self.replay.total)
            self.policy.observe(torch.from_numpy(obs).to(self.policy.device))
            self._observed = self.replay.total
        if self.steps >= self.config.warmup_steps and len(self.replay):
            self._owed += self.config.updates_per_step * int(batch.mask.sum())

    def _learning_threads(self) -> int:
        # The result of these layers does not depend on the number of threads, but that of a user's may.
        if self._encoder_learns or self.config.torch_threads is not None:
            return self.threads.learning
        if self._crowding is None:  # `threads` may be that of a run that was resumed
            self._crowding = Crowding(self.threads.learning)
        return self._crowding.threads

    def _due(self) -> int:
        """Return the number of gradient steps that are due now."""
        due = int(self._owed + 1e-9) if len(self.replay) else 0  # it may have been cleared
        self._owed = max(0.0, self._owed - due)
        return due

    # -- learning ----------------------------------------------------------------------------------------

    def learn(self, count: int = 1) -> dict[str, float]:
        """Do gradient steps from what is in the replay, for loops of one's own; return the figures' means.

        Raises:
            ArgumentError: If the replay has no transition.
            Diverged: If a figure is NaN or inf.
        """
        with use_torch_threads(self.threads.acting):
            self._learn(count, self.steps)
        return self._mean_figures()

    def _learn(self, count: int, steps: int) -> None:
        """Do some gradient steps, after a number of transitions."""
        config = self.config
        progress = min(1.0, steps / config.total_steps)
        correction = config.priority_correction + (1 - config.priority_correction) * progress
        with self._learning(), torch.no_grad():
            while count:
                # Several batches are sampled at once, because that is faster; with priorities each depends
                # on the errors of the one before.
                batches = min(count, self._most_sampled)
                sampled = self.replay.sample(
                    batches * config.batch_size,
                    gamma=config.gamma,
                    n_step=config.n_step,
                    correction=correction,
                )
                if self.augment is not None:
                    sampled = self.augment(sampled)
                for place, batch in enumerate(self._encoded(sampled).split(config.batch_size)):
                    self._learn_from(batch, report=place == 0)
                count -= batches

    def _encoded(self, sampled: Transitions) -> Transitions:
        """Return transitions on the device, with masks, and with features if the encoder has no weights."""
        sampled, policy = sampled.to(self.policy.device), self.policy
        if policy.has_masks:
            sampled = sampled._replace(next_masks=policy.mask_from_obs(sampled.next_obs))
        if self._encoder_learns:
            return sampled
        return sampled._replace(obs=policy.features(sampled.obs), next_obs=policy.features(sampled.next_obs))

    def _encode(self, obs: Tensor, encoder: nn.Module, *, learns: bool = False) -> Tensor:
        """Return the features of sampled observations, by an encoder of the same form as the policy's."""
        if not self._encoder_learns:
            return obs  # they are features already
        if learns:
            for parameter in encoder.parameters():
                if parameter.grad is not None:  # kept: see `FlatParameters`
                    parameter.grad.zero_()
        with torch.set_grad_enabled(learns):
            features: Tensor = self.policy.features(obs, encoder)
            return features

    def _learn_from(self, transitions: Transitions, *, report: bool) -> None:
        errors, figures = self._gradient_step(transitions, report=report)
        for name, figure in figures.items():
            self._figures.setdefault(name, []).append(figure)
        if self.config.prioritized:
            self.replay.set_errors(
                transitions.places, errors.abs().mean(-1).cpu().numpy(), self.config.priority_exponent
            )
        self.updates += 1

    def _mean_figures(self) -> dict[str, float]:
        """Return the means of all figures since the last call.

        Raises:
            Diverged: If one is NaN or inf.
        """
        means = {name: float(torch.stack(figures).mean()) for name, figures in self._figures.items()}
        self._figures = {}
        if not all(map(math.isfinite, means.values())):
            raise Diverged(
                f"training diverged at {self.steps:,} steps: take a smaller learning_rate, and look for huge "
                "numbers in observations and rewards"
            )
        return means

    # -- saving ------------------------------------------------------------------------------------------

    def start_from(self, policy: BasePolicy) -> None:
        """Copy the weights and the normaliser of a policy of the same form. Call it before training.

        Raises:
            ArgumentError: If the policy has another form.
        """
        if type(policy) is not type(self.policy) or policy.arguments != self.policy.arguments:
            raise ArgumentError(
                f"policy: expected a {type(self.policy).__name__} with {self.policy.arguments}, got a "
                f"{type(policy).__name__} with {policy.arguments}"
            )
        check_fits(policy, self.vec)
        self.policy.load_state_dict(policy.state_dict())
        self._actor.load_state_dict(policy.state_dict())
        self._follow_at_once()

    @abstractmethod
    def _follow_at_once(self) -> None:
        """Copy the weights to the target networks."""

    def state_dict(self, *, with_replay: bool = True) -> dict[str, Any]:
        """Return the whole state between two updates; see `Learner.state_dict`."""
        return {
            **super().state_dict(),
            "envs": self._explorer.snapshot() if self._begun else None,
            "collector": self._explorer.state_dict(),
            "owed": self._owed,
            "observed": self._observed,
            "learning": self._learning_state(),
            **({"replay": self.replay.state_dict()} if with_replay else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a saved state; return False if the envs were not saved, so that new episodes begin."""
        super().load_state_dict(state)
        self._actor.load_state_dict(self.policy.state_dict())
        self.replay.load_state_dict(state["replay"])
        self._owed, self._observed = float(state["owed"]), int(state["observed"])
        if not 0 <= self._owed < math.inf:
            raise ValueError(f"expected a number of gradient steps that are due, got {self._owed}")
        self._load_learning_state(state["learning"])
        self._begun = self._explorer.load_state_dict(state["collector"], state["envs"])
        if not self._begun:
            self.replay.abandon()
        return self._begun

    @abstractmethod
    def _learning_state(self) -> dict[str, Any]:
        """Return the state of targets and optimizers."""

    @abstractmethod
    def _load_learning_state(self, state: dict[str, Any]) -> None:
        """Restore what `_learning_state` returned."""
