"""Agents in the form of rl_hockey: objects that a loop of one's own feeds with transitions.

Underneath are a policy, a replay and a learner of `shoal.learn`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal import learn
from shoal.batch import Batch
from shoal.errors import ArgumentError
from shoal.hockey.training.train import device_of
from shoal.learn import DQNConfig, SACConfig
from shoal.learn.off_policy import OffPolicyLearner
from shoal.learn.runs.policy_file import Origin, load_file, save_policy
from shoal.vector.serial import Serial

NO, YES = np.zeros(1, np.bool_), np.ones(1, np.bool_)
NUMBERS = np.zeros(1, np.int64)


class _Spaces(gymnasium.Env[Any, Any]):
    """Only spaces: the agent's loop is that of its user."""

    def __init__(self, observations: Box, actions: Any) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32), 0.0, False, False, {}


class _Agent:
    """What both agents have in common."""

    kind: ClassVar[str]

    def __init__(self, learner: OffPolicyLearner, state_dim: int, action_dim: int) -> None:
        self._learner, self.state_dim, self.action_dim = learner, state_dim, action_dim
        device, seed = learner.policy.device, learner.config.seed
        self._random = torch.Generator(device).manual_seed(seed)

    def act_batch(self, states: Any, deterministic: bool = False) -> NDArray[Any]:
        """Choose actions for observations, [rows, state_dim], in one forward pass."""
        found: NDArray[Any] = self._learner.policy.act_batch(
            self._rows(states), deterministic, generator=self._random
        )
        return found

    def evaluate(self, state: Any) -> float:
        """Predict the return from a state on."""
        return float(self._learner.policy.value_batch(self._rows([state]))[0])

    def store_transition(self, transition: Any) -> None:
        """Add ``(state, action, reward, next_state, done)`` to the replay.

        `done` is whether the episode ended by itself. Where it was cut off by time, pass False.
        """
        state, action, reward, following, done = transition
        before, after = self._rows([state]), self._rows([following])
        actions = np.asarray(action, np.float32 if self.kind == "SAC" else np.int64).reshape(1, -1)
        if self.kind == "DDDQN" and not 0 <= actions[0, 0] < self.action_dim:
            raise ArgumentError(f"action: expected 0 to {self.action_dim - 1}, got {action!r}")
        nothing = np.zeros((1, actions.shape[1]), actions.dtype)
        replay, end = self._learner.replay, np.array([bool(done)])
        # An episode of one step: transitions may come in any order, so each takes two places.
        replay.add(Batch(before, np.zeros(1), NO, NO, YES, YES, NUMBERS, NUMBERS, {}), actions)
        paid = np.array([float(reward)])
        replay.add(Batch(after, paid, end, ~end, NO, NO, NUMBERS, NUMBERS, {}), nothing)

    def train(self, steps: int = 1) -> dict[str, list[float]]:
        """Do gradient steps; return lists of figures by name, with an entry for each step."""
        found: dict[str, list[float]] = {}
        if not len(self._learner.replay):
            raise ArgumentError("train: expected transitions in the replay, got none: call store_transition")
        for _ in range(steps):
            for name, value in self._learner.learn(1).items():
                found.setdefault(name, []).append(value)
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the policy to a file; ``.safetensors`` is added if the path has no ending."""
        whole = Path(path)
        whole = whole if whole.suffix else whole.with_suffix(".safetensors")
        whole.parent.mkdir(parents=True, exist_ok=True)
        save_policy(whole, self._learner.policy, Origin(steps=self._learner.updates))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a policy of the same form, and begin to learn from it.

        Raises:
            RunError: If there is no such file, or if it is damaged.
            ArgumentError: If the policy has another form.
        """
        whole = Path(path)
        if not whole.exists() and not whole.suffix:
            whole = whole.with_suffix(".safetensors")
        self._learner.start_from(load_file(whole).policy)

    def on_episode_start(self, episode: int) -> None:
        """Note that an episode begins."""

    def on_episode_end(self, episode: int) -> None:
        """Note that an episode has ended."""

    def close(self) -> None:
        """Give the memory back."""
        self._learner.vec.close()

    def _rows(self, states: Any) -> NDArray[np.float32]:
        found = np.ascontiguousarray(states, np.float32)
        if found.ndim != 2 or found.shape[1] != self.state_dim:
            raise ArgumentError(f"states: expected [rows, {self.state_dim}], got shape {found.shape}")
        return found


def _observations(state_dim: int) -> Box:
    return Box(-np.inf, np.inf, (state_dim,), np.float32)


def _vec(state_dim: int, actions: Any) -> Serial:
    return Serial(lambda: _Spaces(_observations(state_dim), actions), 1, flat=True, copy=False)


class DDDQN(_Agent):
    """Dueling double deep Q-network.

    Args:
        state_dim: Number of numbers in an observation.
        action_dim: Number of discrete actions.
        hidden_dim: Widths of the layers.
        learning_rate: Learning rate of Adam.
        gamma: Discount.
        batch_size: Number of transitions in a gradient step.
        buffer_size: Number of transitions that the replay keeps.
        eps: Chance of a random action at first.
        eps_min: Smallest chance of a random action.
        eps_decay: Factor of the chance at the beginning of each episode.
        target_update_freq: Number of gradient steps from one copy of the target network to the next.
        use_huber_loss: Whether the loss of large errors grows linearly.
        device: See `shoal.hockey.train_run`.
        seed: Seed of weights, sampling and exploration.

    Example:
        >>> import numpy as np
        >>> from shoal.compat.rl_hockey import DDDQN
        >>> agent = DDDQN(state_dim=18, action_dim=8, hidden_dim=[32])
        >>> states = np.zeros((5, 18))
        >>> agent.act_batch(states, deterministic=True).shape
        (5,)
        >>> for _ in range(300):
        ...     agent.store_transition((states[0], 1, 0.5, states[1], False))
        >>> sorted(agent.train(2))
        ['grad_norm', 'q_values', 'value']
        >>> agent.close()
    """

    kind: ClassVar[str] = "DDDQN"

    def __init__(
        self,
        state_dim: int = 18,
        action_dim: int = 8,
        hidden_dim: Any = (256, 256),
        *,
        learning_rate: float = 1e-4,
        gamma: float = 0.99,
        batch_size: int = 256,
        buffer_size: int = 1_000_000,
        eps: float = 1.0,
        eps_min: float = 0.01,
        eps_decay: float = 0.9995,
        target_update_freq: int = 50,
        use_huber_loss: bool = False,
        device: str | int | None = None,
        seed: int = 0,
    ) -> None:
        config = DQNConfig(
            hidden=tuple(hidden_dim),
            learning_rate=learning_rate,
            gamma=gamma,
            batch_size=batch_size,
            replay_size=2 * buffer_size,  # a transition takes two places
            total_steps=2 * buffer_size,
            warmup_steps=0,
            loss="huber" if use_huber_loss else "squared",
            target_rate=1.0,
            target_every=target_update_freq,
            max_grad_norm=1.0,
            normalize_observations=False,
            device=device_of(device),
            seed=seed,
        )
        super().__init__(learn.DQN(_vec(state_dim, Discrete(action_dim)), config), state_dim, action_dim)
        self._least, self._decay = eps_min, eps_decay
        self.eps = eps

    @property
    def eps(self) -> float:
        """Chance of a random action."""
        return float(self._learner.policy.epsilon)

    @eps.setter
    def eps(self, value: float) -> None:
        self._learner.policy.epsilon.fill_(value)

    def act(self, state: Any, deterministic: bool = False) -> int:
        """Choose an action for one observation."""
        return int(self.act_batch([state], deterministic)[0])

    def on_episode_start(self, episode: int) -> None:
        """Make random actions rarer."""
        self.eps = max(self._least, self.eps * self._decay)


class SAC(_Agent):
    """Soft actor-critic.

    Args:
        state_dim: Number of numbers in an observation.
        action_dim: Number of numbers in an action, each from -1 to 1.
        hidden_dim: Widths of the layers.
        learning_rate: Learning rate of Adam.
        gamma: Discount.
        tau: How far target networks move after each gradient step.
        batch_size: Number of transitions in a gradient step.
        buffer_size: Number of transitions that the replay keeps.
        learn_alpha: Whether the weight of the entropy is learnt.
        alpha: The weight of the entropy if it is not learnt.
        device: See `shoal.hockey.train_run`.
        seed: Seed of weights, sampling and exploration.

    Example:
        >>> import numpy as np
        >>> from shoal.compat.rl_hockey import SAC
        >>> agent = SAC(state_dim=18, action_dim=4, hidden_dim=[32])
        >>> agent.act(np.zeros(18)).shape, agent.act_batch(np.zeros((5, 18))).shape
        ((4,), (5, 4))
        >>> agent.close()
    """

    kind: ClassVar[str] = "SAC"

    def __init__(
        self,
        state_dim: int = 18,
        action_dim: int = 4,
        hidden_dim: Any = (256, 256),
        *,
        learning_rate: float = 1e-3,
        gamma: float = 0.99,
        tau: float = 0.005,
        batch_size: int = 256,
        buffer_size: int = 1_000_000,
        learn_alpha: bool = True,
        alpha: float = 0.2,
        device: str | int | None = None,
        seed: int = 0,
    ) -> None:
        config = SACConfig(
            hidden=tuple(hidden_dim),
            learning_rate=learning_rate,
            gamma=gamma,
            target_rate=tau,
            batch_size=batch_size,
            replay_size=2 * buffer_size,  # a transition takes two places
            total_steps=2 * buffer_size,
            warmup_steps=0,
            temperature=None if learn_alpha else alpha,
            normalize_observations=False,
            device=device_of(device),
            seed=seed,
        )
        actions = Box(-1.0, 1.0, (action_dim,), np.float32)
        super().__init__(learn.SAC(_vec(state_dim, actions), config), state_dim, action_dim)

    def act(self, state: Any, deterministic: bool = False) -> NDArray[np.float32]:
        """Choose an action for one observation."""
        found: NDArray[np.float32] = self.act_batch([state], deterministic)[0]
        return found
