"""PPO: proximal policy optimisation on any vec.

    collect    recv, act, store, send, until enough columns are full: `Collector`
    learn      advantages, then some passes over the experience in minibatches: `PPO`, below

The pieces (`Rollout`, `losses`, `Policy`, `gae`) can be used in a loop of one's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import ArgumentError, ArgumentTypeError, Diverged
from shoal.learn import losses
from shoal.learn.collector import HOPS, Collector
from shoal.learn.episodes import Episodes
from shoal.learn.finite import not_finite
from shoal.learn.flat import Flat
from shoal.learn.moments import Moments
from shoal.learn.policy import Policy
from shoal.learn.ppo_config import PPOConfig
from shoal.learn.progress import Result, Update
from shoal.learn.rollout import Experience, Rollout, discounted_sums
from shoal.learn.threads import Threads, choose_threads
from shoal.limits import obtaining
from shoal.vector import make
from shoal.vector.vec import VectorEnv


class PPO:
    """A learner, its policy and its vec.

    Args:
        env: A vec with NEXT_STEP autoreset (flat, if observations or actions are structured), or anything
            that `shoal.make` takes.
        config: How to learn.
        encoder: A module of your own instead of the default encoder; see `Policy`.
        env_kwargs: For the envs, if the learner makes them.

    Example:
        >>> from shoal.learn import PPO, PPOConfig
        >>> with PPO("shoal/CartPole-v1", PPOConfig(total_steps=4096, seed=3)) as ppo:
        ...     result = ppo.train()
        >>> result.steps >= 4096, result.mean_return > 10
        (True, True)
    """

    def __init__(
        self,
        env: Any,
        config: PPOConfig | None = None,
        *,
        encoder: nn.Module | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.config = config = PPOConfig() if config is None else config
        if not isinstance(config, PPOConfig):
            raise ArgumentTypeError(
                f"config: expected a PPOConfig (of a dict: PPOConfig.of(a_dict)), got {config!r}"
            )
        self._owns, self._env_kwargs = not isinstance(env, VectorEnv), dict(env_kwargs or {})
        self.vec = vec = _made(env, config, env_kwargs) if self._owns else _checked(env, config)
        try:
            self._prepare(vec, encoder)
        except BaseException:
            self.close()
            raise

    def _prepare(self, vec: VectorEnv, encoder: nn.Module | None) -> None:
        config, rows = self.config, vec.num_rows
        horizon = config.horizon_of(rows)
        samples = rows * horizon
        if config.minibatch_size > samples:
            raise ArgumentError(
                f"minibatch_size: expected at most {samples}, {rows} rows times a horizon of "
                f"{horizon}, got {config.minibatch_size}. Take a longer horizon, more envs or smaller "
                "minibatches"
            )
        if config.lstm and config.minibatch_size < horizon:
            raise ArgumentError(
                f"minibatch_size: expected at least the horizon with lstm=True, {horizon}, because "
                f"whole columns are learnt from, got {config.minibatch_size}"
            )
        try:  # double precision and random numbers included
            torch.zeros(1, dtype=torch.float64, device=config.device)
            torch.Generator(config.device)
        except (RuntimeError, AssertionError, TypeError) as error:
            why = str(error).partition("\n")[0]
            raise ArgumentError(
                f"device: expected one that torch can use, got {config.device!r}: {why}"
            ) from None
        with torch.random.fork_rng(devices=[]):
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
        # With overlap, the policy that acts is one update behind, and one rollout waits while one is made.
        self._actor = deepcopy(self.policy) if config.mode == "overlap" else self.policy
        self._flat = Flat(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self._flat.vectors, config.learning_rate, eps=1e-5, fused=True)
        self.threads = choose_threads(self.policy, vec, config)
        self._minibatches = max(1, round(samples / config.minibatch_size))
        self._terms = losses.Terms(config.clip, config.clip_value, config.entropy, config.value_weight)
        self._random = torch.Generator().manual_seed(config.seed + 1)  # of the order of minibatches
        self._collector = Collector(vec, self.policy, horizon, config.seed)
        self._rollouts: list[Rollout] = []
        self._waiting: int | None = None
        self._return_moments, self._return_sums = Moments(1), np.zeros(rows, np.float32)
        self.updates = self._learnt = 0  # updates, and transitions that they were of
        self.seconds = 0.0
        self._learning_seconds = 0.0
        self._stops = False

    @property
    def steps(self) -> int:
        """Transitions so far."""
        return self._collector.steps

    @property
    def episodes(self) -> Episodes:
        """Those that have ended."""
        return self._collector.episodes

    @property
    def is_done(self) -> bool:
        """Whether `train` has nothing left to do."""
        return self.steps >= self.config.total_steps and self._waiting is None

    # -- training ----------------------------------------------------------------------------------------

    def train(self, on_update: Callable[[Update], None] | None = None) -> Result:
        """Learn until `total_steps`, or until `stop` is called.

        Args:
            on_update: Called after each update.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads.acting)
        if self.policy.lstm is not None:
            self.policy.lstm.threads = self.threads.lstm
        stops = False
        try:
            if not self._rollouts:
                self._rollouts = self._collector.begin(2 if self.config.mode == "overlap" else 1)
            if self.config.mode == "overlap":
                self._train_overlapping(on_update)
            else:
                while self.steps < self.config.total_steps and not self._stops:
                    begun, steps = time.perf_counter(), self.steps
                    self._collector.collect(self._rollouts[0], self.policy)
                    torch.set_num_threads(self.threads.learning)
                    figures = self._learn(self._rollouts[0])
                    torch.set_num_threads(self.threads.acting)
                    self._tell(on_update, begun, steps, figures)
            stops = self._stops
        finally:
            torch.set_num_threads(before)
            if self.policy.lstm is not None:
                self.policy.lstm.threads = 1
            self._stops = False
        mean = self.episodes.mean_return()
        stopped = stops and not self.is_done
        return Result(self.steps, self.updates, self.episodes.count, self.seconds, mean, stopped)

    def stop(self) -> None:
        """Let training end after the update that is under way, or before the first if it has not begun.

        Any thread or signal handler may call it.
        """
        self._stops = True

    def _train_overlapping(self, on_update: Callable[[Update], None] | None) -> None:
        """Learn from one rollout while the policy before makes the next: always one behind, never more."""
        beside = ThreadPoolExecutor(1, "shoal-collect")
        waits = True
        try:
            while not self.is_done and not self._stops:
                begun, steps = time.perf_counter(), self.steps
                if self._waiting is None:
                    self._collector.collect(self._rollouts[0], self._actor)
                    self._waiting = 0
                making = made = None
                if self.steps < self.config.total_steps:
                    making = 1 - self._waiting
                    with obtaining("a thread to step the envs beside learning", 'Use mode="sync"'):
                        made = beside.submit(self._collector.collect, self._rollouts[making], self._actor)
                figures = self._learn(self._rollouts[self._waiting])
                if made is not None:
                    made.result()
                self._waiting = making
                self._actor.load_state_dict(self.policy.state_dict())
                self._tell(on_update, begun, steps, figures)
        except KeyboardInterrupt:
            waits = False  # an env may hang; when the vec is closed, the thread ends too
            raise
        finally:
            beside.shutdown(wait=waits)

    # -- learning ----------------------------------------------------------------------------------------

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        """One update; returns its figures."""
        begun, config, policy = time.perf_counter(), self.config, self.policy
        experience = rollout.take()
        rate = config.learning_rate
        if config.anneal:
            rate *= max(0.0, 1 - (self._learnt / config.total_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        advantages, returns = self._targets(experience)
        figures: list[Any] = []
        for _ in range(config.epochs):
            if not self._pass(self._minibatches_of(experience, advantages, returns), figures):
                break
        acts = torch.from_numpy(experience.acts)
        names = (*losses.Figures._fields, "grad_norm")
        rows = [[float(figure) for figure in row] for row in figures] or [[float("nan")] * len(names)]
        result = dict(zip(names, np.mean(rows, 0).tolist(), strict=True))
        if figures and not np.isfinite(rows).all():
            self._complain(experience)
        if self._seen_wrong(experience):
            self._complain(experience)  # before the normaliser takes them in
        result["explained_variance"] = losses.explained_variance(experience.values[acts], returns[acts])
        policy.observe(experience.obs[acts].to(policy.device))
        rollout.release()
        self.updates += 1
        self._learnt += experience.transitions
        self._learning_seconds += time.perf_counter() - begun
        return result

    def _pass(self, minibatches: Iterable[_Minibatch], figures: list[Any]) -> bool:
        """Learn from each; False if the policy has moved too far, and the update is to end."""
        most = 1.5 * self.config.target_kl
        for batch in minibatches:
            moved = self._descend(batch, figures)
            if most and float(moved) > most:  # read only if it matters: a GPU would be waited for
                return False
        return True

    def _envs_of(self, experience: Experience) -> Any:
        return experience.rows // self.vec.agents_per_env

    def _seen_wrong(self, experience: Experience) -> str | None:
        return not_finite(experience.obs, self.policy.layout, self._envs_of(experience))

    def _complain(self, experience: Experience) -> None:
        """The loss is not a number: say what may be the reason."""
        wrong = np.argwhere(~np.isfinite(experience.rewards))
        if len(wrong):
            step, column = wrong[0]
            why = (
                f"env {self._envs_of(experience)[column]} gave {experience.rewards[step, column]} as a reward"
            )
        elif seen := self._seen_wrong(experience):
            why = seen
        else:
            why = "take a smaller learning_rate, and look for NaN or huge numbers in observations and rewards"
        raise Diverged(
            f"update {self.updates + 1}, at {self.steps:,} steps, gives no numbers to go on with: {why}"
        )

    def _targets(self, experience: Experience) -> tuple[Tensor, Tensor]:
        """Advantages of all entries, and the returns that values are to predict."""
        config, rewards = self.config, experience.rewards
        if config.normalize_returns:
            sums = discounted_sums(experience, config.gamma, self._return_sums)
            self._return_moments.update(torch.from_numpy(sums.reshape(-1, 1)))
            scale = float(self._return_moments.variance) ** 0.5 or 1.0
            self.policy.return_scale.fill_(scale)
            rewards = rewards / np.float32(scale)
        found = torch.from_numpy(experience.advantages(config.gamma, config.gae_lambda, rewards))
        returns = found + experience.values
        acting = found[torch.from_numpy(experience.acts)]
        if not len(acting):
            return found, returns
        return (found - acting.mean()) / (acting.std(correction=0) + 1e-8), returns

    def _minibatches_of(self, experience: Experience, advantages: Tensor, returns: Tensor) -> Any:
        """One pass: entries in random order, or with an LSTM whole columns."""
        device = self.policy.device
        numbers = torch.stack([experience.log_probs, advantages, returns, experience.values], -1)
        parts: list[Any] = [experience.obs, experience.actions, numbers, experience.action_masks]
        if self.policy.lstm is None:
            parts = [None if part is None else part.flatten(0, 1) for part in parts]
            entries = torch.from_numpy(np.flatnonzero(experience.acts))
        else:
            parts += [experience.states, torch.from_numpy(experience.acts).float(), experience.starts]
            entries = torch.arange(experience.obs.shape[1])
        order = entries[torch.randperm(len(entries), generator=self._random)]
        axis = 0 if self.policy.lstm is None else 1
        for chosen in order.tensor_split(max(1, min(self._minibatches, len(order)))):
            if not len(chosen):
                return  # nobody has acted
            if axis and not experience.acts[:, chosen].any():
                continue
            picked: Any = [
                None if part is None else part.index_select(axis, chosen).to(device) for part in parts
            ]
            yield _Minibatch(*picked)

    def _descend(self, batch: _Minibatch, figures: list[Any]) -> Any:
        """One gradient step; returns how far the policy has moved."""
        policy = self.policy
        outputs = policy(batch.obs, batch.states, batch.starts)
        allowed = policy.mask_in(batch.obs) if batch.masks is None else batch.masks
        loss, parts = losses.ppo_loss(
            policy,
            outputs,
            batch.actions,
            batch.numbers,
            self._terms,
            mask=allowed,
            weights=batch.weights,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self._flat.step(self.optimizer, self.config.max_grad_norm)
        figures.append((*parts, norm))
        return parts.approx_kl

    def _tell(
        self,
        on_update: Callable[[Update], None] | None,
        begun: float,
        steps: int,
        figures: dict[str, float],
    ) -> None:
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        collector = self._collector
        split = {**collector.seconds, "learn": self._learning_seconds}
        collector.seconds, self._learning_seconds = dict.fromkeys(HOPS, 0.0), 0.0
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
            )
        )

    # -- to go on later ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it between two updates: from there training goes on bit for bit."""
        return {
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
        """Go on from there; False if the envs could not be saved, and begin new episodes."""
        self.policy.load_state_dict(state["policy"])
        if self._actor is not self.policy:
            self._actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._random.set_state(state["random"])
        self.threads = Threads(*state["threads"])
        self._return_moments.load_state_dict(state["return_moments"])
        self.updates, self._learnt, self.seconds = state["counts"]
        self._rollouts = self._collector.load_state_dict(state["collector"])
        if not self._rollouts:
            self._waiting, self._return_sums = None, np.zeros_like(self._return_sums)
            return False
        self._waiting, self._return_sums = state["waiting"], state["return_sums"].copy()
        return True

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the policy: `shoal.learn.load` gives it back."""
        from shoal.learn.run import save_policy

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        save_policy(path, self, {"env": self.vec.env_name, "env_kwargs": self._env_kwargs})

    def close(self) -> None:
        """Close the vec, if the learner made it."""
        if self._owns:
            self.vec.close()

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


@dataclass
class _Minibatch:
    obs: Tensor
    actions: Tensor
    numbers: Tensor
    """Log-probability, advantage, return, value."""
    masks: Tensor | None
    states: Tensor | None = None
    """With an LSTM: those that columns begin with."""
    weights: Tensor | None = None
    """With an LSTM: which entries count."""
    starts: Tensor | None = None
    """With an LSTM: where episodes begin."""


def _made(env: Any, config: PPOConfig, env_kwargs: dict[str, Any] | None) -> VectorEnv:
    asynchronous: dict[str, Any] = {}
    if config.mode == "async":
        if config.num_envs < 2:
            raise ArgumentError("num_envs: expected at least 2 with mode='async', got 1")
        asynchronous = {"batch_size": config.num_envs // 2, "order": "ready"}
    return make(
        env,
        config.num_envs,
        env_kwargs=env_kwargs,
        backend=config.backend,
        num_workers=config.num_workers,
        flat=True,
        copy=False,
        **asynchronous,
    )


def _checked(vec: VectorEnv, config: PPOConfig) -> VectorEnv:
    layout = vec.observation_layout
    layout.require_bytes("A learner")
    vec.action_layout.require_bytes("A learner")
    if not vec.flat and vec.single_observation_space.shape != tuple(layout.flat_shape):
        raise ArgumentTypeError(
            f"env: its observations are structured, {layout.space}: make the vec with flat=True"
        )
    asynchronous = vec.batch_size < vec.num_envs
    if asynchronous and config.mode != "async":
        raise ArgumentError("mode: expected 'async', because the vec hands out less than all rows at a time")
    return vec
