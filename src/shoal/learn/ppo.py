"""PPO: proximal policy optimisation on any vec.

    Collector.collect    recv, act, store, send: until enough columns of the rollout are full
    PPO._learn           take the experience, compute targets, descend in minibatches, check, report

An observation passes `collector` (recv), `policy`, `encoder`, `actions` (act), `rollout` (store and sample),
`ppo`, and `policy` and `encoder` again, to `losses`; with an LSTM also `lstm`. The pieces (`Collector`,
`Rollout`, `Policy`, `losses`, `gae`) can be used in another loop: see ``examples/ppo/own_loop.py``.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.errors import Diverged
from shoal.learn import losses
from shoal.learn.base_policy import EncoderOrMaker
from shoal.learn.collector import Collector
from shoal.learn.configs.ppo import PPOConfig
from shoal.learn.encoder import Moments, find_not_finite
from shoal.learn.flat_parameters import FlatParameters
from shoal.learn.learner import Learner, OnUpdate
from shoal.learn.policy import Policy
from shoal.learn.rollout import Experience, Minibatch, Rollout, discounted_sums
from shoal.limits import obtaining


class PPO(Learner):
    """A PPO learner with its policy and its vec.

    See `Learner` for its arguments and attributes.

    Example:
        >>> from shoal.learn import PPO, PPOConfig
        >>> with PPO("shoal/CartPole-v1", PPOConfig(total_steps=4096, seed=3)) as ppo:
        ...     result = ppo.train()
        >>> result.steps >= 4096, result.mean_return > 10
        (True, True)
    """

    algorithm: ClassVar[str] = "ppo"
    config_class: ClassVar[type[PPOConfig]] = PPOConfig
    policy_class: ClassVar[type[Policy]] = Policy

    config: PPOConfig
    policy: Policy

    def _make_policy(self, encoder: EncoderOrMaker | None) -> Policy:
        config = self.config
        return Policy(
            self.vec.observation_layout,
            self.vec.single_action_space,
            hidden=config.hidden,
            lstm=config.lstm,
            activation=config.activation,
            normalize_observations=config.normalize_observations,
            encoder=encoder,
        )

    def _batch_size(self) -> int:
        return self.config.minibatch_size

    def _prepare(self) -> None:
        config, rows = self.config, self.vec.num_rows
        horizon = config.horizon_of(rows)
        # With overlap, the policy that acts is one update behind.
        self._actor = deepcopy(self.policy) if config.mode == "overlap" else self.policy
        self._flat_parameters = FlatParameters(self.policy.parameters())
        self.optimizer = torch.optim.Adam(
            self._flat_parameters.vectors, config.learning_rate, eps=1e-5, fused=True
        )
        self._num_minibatches = max(1, round(rows * horizon / config.minibatch_size))
        self._terms = losses.Terms(config.clip, config.clip_value, config.entropy, config.value_weight)
        self._random = torch.Generator().manual_seed(config.seed + 1)  # for the order of entries
        self._interaction = self._collector = Collector(self.vec, self.policy, horizon, config.seed)
        self._rollouts: list[Rollout] = []
        self._waiting: int | None = None  # with overlap: index of the rollout to learn from next
        self._return_moments, self._return_sums = Moments(1), np.zeros(rows, np.float32)
        self._learnt = 0  # transitions that updates learnt from
        self._passes = math.nan

    def _learning_rate(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    @property
    def is_done(self) -> bool:
        """Whether training has reached `total_steps` and learnt from all rollouts."""
        return self.steps >= self.config.total_steps and self._waiting is None

    # -- training ----------------------------------------------------------------------------------------

    def _train(self, on_update: OnUpdate) -> None:
        overlap = self.config.mode == "overlap"
        if not self._rollouts:
            self._rollouts = self._collector.begin(2 if overlap else 1)
        if overlap:
            self._train_overlapping(on_update)
        else:
            self._train_in_turn(on_update)

    def _train_in_turn(self, on_update: OnUpdate) -> None:
        """Repeat: collect a rollout, then learn from it."""
        rollout = self._rollouts[0]
        while self.steps < self.config.total_steps and not self._stop_requested:
            begun, steps = time.perf_counter(), self.steps
            self._collector.collect(rollout, self.policy)  # recv, act, store, send
            with self._learning():
                figures = self._learn(rollout)
            self._report(on_update, begun, steps, figures, self._passes)

    def _train_overlapping(self, on_update: OnUpdate) -> None:
        """Repeat: learn from one rollout while a thread collects the next with the previous policy.

        The policy that acts is always exactly one update behind, so that a run can be reproduced.
        """
        executor = ThreadPoolExecutor(1, "shoal-collect")
        join_thread = True
        try:
            while not self.is_done and not self._stop_requested:
                begun, steps = time.perf_counter(), self.steps
                if self._waiting is None:
                    self._waiting = self._collect_first()
                taken = self._waiting
                collecting = collected = None
                if self.steps < self.config.total_steps:
                    collecting = 1 - taken
                    with obtaining("a thread to step the envs beside learning", 'Use mode="sync"'):
                        collected = executor.submit(
                            self._collector.collect, self._rollouts[collecting], self._actor
                        )
                self._waiting = None  # a rollout is learnt from once, also if Ctrl-C ends the update
                with self._learning():
                    figures = self._learn(self._rollouts[taken])
                if collected is not None:
                    collected.result()
                self._waiting = collecting
                self._actor.load_state_dict(self.policy.state_dict())
                self._report(on_update, begun, steps, figures, self._passes)
        except KeyboardInterrupt:
            join_thread = False  # an env may hang; the thread ends when the vec is closed
            raise
        finally:
            executor.shutdown(wait=join_thread)

    def _collect_first(self) -> int:
        """Return the index of the first rollout to learn from. Collect one unless one is full already.

        After Ctrl-C in an update, the rollout that was collected beside it may be full.
        """
        for index, rollout in enumerate(self._rollouts):
            if rollout.is_ready:
                return index
        self._collector.collect(self._rollouts[0], self._actor)
        return 0

    # -- learning ----------------------------------------------------------------------------------------

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        """Do one update with the full columns of a rollout; return the mean of each figure."""
        experience = rollout.take()
        self._set_learning_rate()
        targets = self._targets(experience)
        steps = self._descend(experience, targets)
        figures = _mean_figures(steps)
        self._passes = len(steps) / self._num_minibatches
        self._check_finite(experience, figures if steps else {})
        acts = torch.from_numpy(experience.acts)
        figures["explained_variance"] = losses.explained_variance(
            experience.values[acts], targets.returns[acts]
        )
        self.policy.observe(experience.obs[acts].to(self.policy.device))
        rollout.release()
        self.updates += 1
        self._learnt += experience.transitions
        return figures

    def _set_learning_rate(self) -> None:
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= max(0.0, 1 - (self._learnt / self.config.total_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _targets(self, experience: Experience) -> _Targets:
        """Compute normalised advantages and returns of all entries."""
        config, rewards = self.config, experience.rewards
        if config.normalize_returns:
            sums = discounted_sums(experience, config.gamma, self._return_sums)
            self._return_moments.update(torch.from_numpy(sums.reshape(-1, 1)))
            scale = float(self._return_moments.variance) ** 0.5 or 1.0
            self.policy.return_scale.fill_(scale)
            rewards = rewards / np.float32(scale)
        advantages = torch.from_numpy(experience.advantages(config.gamma, config.gae_lambda, rewards))
        returns = advantages + experience.values
        acting = advantages[torch.from_numpy(experience.acts)]
        if len(acting):
            advantages = (advantages - acting.mean()) / (acting.std(correction=0) + 1e-8)
        return _Targets(advantages, returns)

    def _descend(self, experience: Experience, targets: _Targets) -> list[_GradientStep]:
        """Pass `epochs` times over the experience; end early if the policy has moved beyond `target_kl`.

        The distance is measured from the first step, because in the modes overlap and async the policy that
        acted is older than the one that the update begins with.
        """
        limit, begin, steps = 1.5 * self.config.target_kl, 0.0, []
        for _ in range(self.config.epochs):
            for minibatch in experience.minibatches(
                targets.advantages,
                targets.returns,
                self._num_minibatches,
                self._random,
                whole_columns=self.policy.lstm is not None,
            ):
                step = self._gradient_step(minibatch.to(self.policy.device))
                steps.append(step)
                # Converted to a float only if needed, because that waits for a GPU.
                if limit:
                    moved = float(step.figures.approx_kl)
                    begin = begin if len(steps) > 1 else moved
                    if moved - begin > limit:
                        return steps
        return steps

    def _gradient_step(self, minibatch: Minibatch) -> _GradientStep:
        policy = self.policy
        outputs = policy(minibatch.obs, minibatch.states, minibatch.starts)
        mask = policy.mask_from_obs(minibatch.obs) if minibatch.masks is None else minibatch.masks
        loss, figures = losses.ppo_loss(
            policy,
            outputs,
            minibatch.actions,
            minibatch.numbers,
            self._terms,
            mask=mask,
            weights=minibatch.weights,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return _GradientStep(figures, self._flat_parameters.step(self.optimizer, self.config.max_grad_norm))

    def _check_finite(self, experience: Experience, figures: dict[str, float]) -> None:
        """Raise `Diverged` if a figure or an observation is NaN or inf, and name the likely cause.

        Observations are checked before they update the normaliser. A finite loss does not prove that they
        are finite, because normalised observations are clipped.
        """
        env_ids = experience.rows // self.vec.agents_per_env
        wrong_obs = find_not_finite(experience.obs, self.policy.layout, env_ids)
        if wrong_obs is None and all(map(math.isfinite, figures.values())):
            return
        wrong_rewards = np.argwhere(~np.isfinite(experience.rewards))
        if len(wrong_rewards):
            step, column = wrong_rewards[0]
            why = f"env {env_ids[column]} gave {experience.rewards[step, column]} as a reward"
        elif wrong_obs is not None:
            why = wrong_obs
        else:
            why = "take a smaller learning_rate, and look for NaN or huge numbers in observations and rewards"
        raise Diverged(f"training diverged in update {self.updates + 1}, at {self.steps:,} steps: {why}")

    # -- saving ------------------------------------------------------------------------------------------

    def state_dict(self, *, with_replay: bool = True) -> dict[str, Any]:
        """Return the whole state between two updates; see `Learner.state_dict`."""
        return {
            **super().state_dict(),
            "envs": self._collector.snapshot() if self._rollouts else None,
            "collector": self._collector.state_of(self._rollouts),
            "actor": deepcopy(self._actor.state_dict()),
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "random": self._random.get_state(),
            "waiting": self._waiting,
            "return_moments": deepcopy(self._return_moments.state_dict()),
            "return_sums": self._return_sums.copy(),
            "learnt": self._learnt,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a saved state; return False if the envs were not saved, so that new episodes begin."""
        super().load_state_dict(state)
        if self._actor is not self.policy:
            self._actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._flat_parameters.check(self.optimizer)
        self._random.set_state(state["random"])
        self._return_moments.load_state_dict(state["return_moments"])
        self._learnt = int(state["learnt"])
        self._rollouts = self._collector.restore(state["collector"], state["envs"])
        if not self._rollouts:
            self._waiting, self._return_sums = None, np.zeros_like(self._return_sums)
            return False
        self._waiting, self._return_sums = state["waiting"], state["return_sums"].copy()
        return True


class _Targets(NamedTuple):
    """Targets of an update, [steps, columns]."""

    advantages: Tensor
    returns: Tensor


class _GradientStep(NamedTuple):
    """Figures of one gradient step."""

    figures: losses.Figures
    grad_norm: Tensor


def _mean_figures(steps: list[_GradientStep]) -> dict[str, float]:
    """Average the figures of gradient steps; NaN if there are none."""
    names = (*losses.Figures._fields, "grad_norm")
    rows = [[float(figure) for figure in (*step.figures, step.grad_norm)] for step in steps]
    means = np.mean(rows or [[math.nan] * len(names)], 0)
    return dict(zip(names, means.tolist(), strict=True))
