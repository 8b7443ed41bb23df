"""PPO: proximal policy optimisation on any vec.

    Collector.collect    recv, act, store, send: until enough columns of the rollout are full
    PPO._learn           take the experience, compute targets, descend in minibatches, check, report

An observation passes `collector` (recv), `policy`, `encoder`, `actions` (act), `rollout` (store and sample),
`ppo`, and `policy` and `encoder` again, to `losses`; with an LSTM also `lstm`. The pieces (`Collector`,
`Rollout`, `Policy`, `losses`, `gae`) can be used in another loop: see ``examples/ppo/own_loop.py``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from shoal.errors import ArgumentTypeError, Diverged
from shoal.learn import losses
from shoal.learn.collector import HOPS, Collector
from shoal.learn.encoder import Moments, find_not_finite
from shoal.learn.episodes import Episodes
from shoal.learn.flat_parameters import FlatParameters
from shoal.learn.policy import EncoderOrMaker, Policy
from shoal.learn.ppo_config import PPOConfig
from shoal.learn.ppo_setup import check_device, check_minibatches, check_vec, make_vec
from shoal.learn.progress import Result, Update
from shoal.learn.rollout import Experience, Minibatch, Rollout, discounted_sums
from shoal.learn.threads import Threads, choose_threads, use_torch_threads
from shoal.limits import obtaining
from shoal.vector.vec import VectorEnv


class PPO:
    """A PPO learner with its policy and its vec.

    Args:
        env: Vec with NEXT_STEP autoreset (flat, if observations or actions are structured), or any env that
            `shoal.make` takes.
        config: Settings of the learner.
        encoder: Module to use instead of the default encoder, or its class; see `Policy`.
        env_kwargs: Arguments for the envs, if the learner makes them.

    Example:
        >>> from shoal.learn import PPO, PPOConfig
        >>> with PPO("shoal/CartPole-v1", PPOConfig(total_steps=4096, seed=3)) as ppo:
        ...     result = ppo.train()
        >>> result.steps >= 4096, result.mean_return > 10
        (True, True)
    """

    algorithm: ClassVar[str] = "ppo"
    config_class: ClassVar[type[PPOConfig]] = PPOConfig

    def __init__(
        self,
        env: Any,
        config: PPOConfig | None = None,
        *,
        encoder: EncoderOrMaker | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.config = config = PPOConfig() if config is None else config
        if not isinstance(config, PPOConfig):
            raise ArgumentTypeError(
                f"config: expected a PPOConfig (from a dict: PPOConfig.of(a_dict)), got {config!r}"
            )
        self._owns, self.env_kwargs = not isinstance(env, VectorEnv), dict(env_kwargs or {})
        self.vec = vec = make_vec(env, config, env_kwargs) if self._owns else check_vec(env, config)
        try:
            self._prepare(vec, encoder)
        except BaseException:
            self.close()
            raise

    def _prepare(self, vec: VectorEnv, encoder: EncoderOrMaker | None) -> None:
        config, rows = self.config, vec.num_rows
        horizon = config.horizon_of(rows)
        samples = rows * horizon
        check_minibatches(config, rows)
        check_device(config.device)
        # On one thread: weights come from decompositions, whose last digits depend on the number of threads.
        with torch.random.fork_rng(devices=[]), use_torch_threads(1):
            torch.manual_seed(config.seed)
            self.policy = Policy(
                vec.observation_layout,
                vec.single_action_space,
                hidden=config.hidden,
                lstm=config.lstm,
                activation=config.activation,
                normalize_observations=config.normalize_observations,
                encoder=encoder,
            ).to(config.device)
        # With overlap, the policy that acts is one update behind.
        self._actor = deepcopy(self.policy) if config.mode == "overlap" else self.policy
        self._flat_parameters = FlatParameters(self.policy.parameters())
        self.optimizer = torch.optim.Adam(
            self._flat_parameters.vectors, config.learning_rate, eps=1e-5, fused=True
        )
        self.threads = choose_threads(self.policy, vec, config)
        self._num_minibatches = max(1, round(samples / config.minibatch_size))
        self._terms = losses.Terms(config.clip, config.clip_value, config.entropy, config.value_weight)
        self._random = torch.Generator().manual_seed(config.seed + 1)  # for the order of entries
        self._collector = Collector(vec, self.policy, horizon, config.seed)
        self._rollouts: list[Rollout] = []
        self._waiting: int | None = None  # with overlap: index of the rollout to learn from next
        self._return_moments, self._return_sums = Moments(1), np.zeros(rows, np.float32)
        self.updates = self._learnt = 0  # updates, and transitions that they learnt from
        self.seconds = 0.0
        self._learning_seconds = self._learning_cpu_seconds = 0.0
        self._passes = math.nan
        self._stop_requested = False

    @property
    def steps(self) -> int:
        """Number of transitions so far."""
        return self._collector.steps

    @property
    def episodes(self) -> Episodes:
        """Statistics of the finished episodes."""
        return self._collector.episodes

    @property
    def is_done(self) -> bool:
        """Whether training has reached `total_steps` and learnt from all rollouts."""
        return self.steps >= self.config.total_steps and self._waiting is None

    # -- training ----------------------------------------------------------------------------------------

    def train(self, on_update: Callable[[Update], None] | None = None) -> Result:
        """Learn until `total_steps`, or until `stop` is called.

        Args:
            on_update: Function to call after each update.
        """
        before, overlap, stop_requested = torch.get_num_threads(), self.config.mode == "overlap", False
        torch.set_num_threads(self.threads.acting)
        if self.policy.lstm is not None:
            self.policy.lstm.threads = self.threads.lstm
        try:
            if not self._rollouts:
                self._rollouts = self._collector.begin(2 if overlap else 1)
            if overlap:
                self._train_overlapping(on_update)
            else:
                self._train_in_turn(on_update)
            stop_requested = self._stop_requested
        finally:
            torch.set_num_threads(before)
            if self.policy.lstm is not None:
                self.policy.lstm.threads = 1
            self._stop_requested = False
        mean = self.episodes.mean_return()
        stopped = stop_requested and not self.is_done
        return Result(self.steps, self.updates, self.episodes.count, self.seconds, mean, stopped)

    def stop(self) -> None:
        """End training after the current update; if training has not begun, before the first update.

        Any thread or signal handler may call this method.
        """
        self._stop_requested = True

    def _train_in_turn(self, on_update: Callable[[Update], None] | None) -> None:
        """Repeat: collect a rollout, then learn from it."""
        rollout = self._rollouts[0]
        while self.steps < self.config.total_steps and not self._stop_requested:
            begun, steps = time.perf_counter(), self.steps
            self._collector.collect(rollout, self.policy)  # recv, act, store, send
            torch.set_num_threads(self.threads.learning)
            figures = self._learn(rollout)
            torch.set_num_threads(self.threads.acting)
            self._report(on_update, begun, steps, figures)

    def _train_overlapping(self, on_update: Callable[[Update], None] | None) -> None:
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
                figures = self._learn(self._rollouts[taken])
                if collected is not None:
                    collected.result()
                self._waiting = collecting
                self._actor.load_state_dict(self.policy.state_dict())
                self._report(on_update, begun, steps, figures)
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
        begun, cpu_begun = time.perf_counter(), time.process_time()
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
        self._learning_seconds += time.perf_counter() - begun
        self._learning_cpu_seconds += time.process_time() - cpu_begun
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

    def _report(
        self,
        on_update: Callable[[Update], None] | None,
        begun: float,
        steps: int,
        figures: dict[str, float],
    ) -> None:
        """Add up the time of an update that began at `begun` with `steps` transitions; call `on_update`."""
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        collector = self._collector
        split = {**collector.seconds, "learn": self._learning_seconds}
        cpu = self._learning_cpu_seconds / max(self._learning_seconds, 1e-9)
        collector.seconds, self._learning_seconds = dict.fromkeys(HOPS, 0.0), 0.0
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
                self.optimizer.param_groups[0]["lr"],
                figures,
                split,
                self._passes,
                max(self.threads.learning, self.threads.lstm),
                cpu,
            )
        )

    # -- saving and closing -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state between two updates; training resumed from it is the same bit for bit.

        It holds tensors, arrays and plain values. Only ``state["envs"]`` is something else: the snapshot of
        the vec, which must be pickled, or None if the envs cannot be.
        """
        return {
            "envs": self._collector.snapshot() if self._rollouts else None,
            "collector": self._collector.state_dict(self._rollouts),
            "policy": deepcopy(self.policy.state_dict()),
            "actor": deepcopy(self._actor.state_dict()),
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "random": self._random.get_state(),
            "threads": tuple(self.threads),
            "waiting": self._waiting,
            "return_moments": deepcopy(self._return_moments.state_dict()),
            "return_sums": self._return_sums.copy(),
            "counts": (self.updates, self._learnt, self.seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a saved state; return False if the envs were not saved, so that new episodes begin."""
        self.policy.load_state_dict(state["policy"])
        if self._actor is not self.policy:
            self._actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._check_optimizer()
        self._random.set_state(state["random"])
        self.threads = Threads(*(max(1, int(count)) for count in state["threads"]))
        self._return_moments.load_state_dict(state["return_moments"])
        updates, learnt, seconds = state["counts"]
        self.updates, self._learnt, self.seconds = int(updates), int(learnt), float(seconds)
        self._rollouts = self._collector.load_state_dict(state["collector"], state["envs"])
        if not self._rollouts:
            self._waiting, self._return_sums = None, np.zeros_like(self._return_sums)
            return False
        self._waiting, self._return_sums = state["waiting"], state["return_sums"].copy()
        return True

    def _check_optimizer(self) -> None:
        """Raise a `ValueError` if the optimizer's tensors do not fit; Adam would write beyond their ends."""
        for vector in self._flat_parameters.vectors:
            for name, value in self.optimizer.state.get(vector, {}).items():
                if name != "step" and (value.shape != vector.shape or value.dtype != vector.dtype):
                    raise ValueError(f"optimizer: {name} does not fit the weights")

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
