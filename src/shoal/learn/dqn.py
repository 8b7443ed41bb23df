"""DQN with dueling heads and double targets, on any vec with discrete actions.

An action may consist of several choices (MultiDiscrete): each has a head of its own, and all learn towards
the same target, the mean over choices of the value of the best next alternative.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, mse_loss

from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.configs.dqn import DQNConfig
from shoal.learn.explorer import Step
from shoal.learn.flat_parameters import FlatParameters
from shoal.learn.off_policy import OffPolicyLearner
from shoal.learn.q_policy import QPolicy
from shoal.learn.replay import Transitions
from shoal.learn.targets import Target


class DQN(OffPolicyLearner):
    """A DQN learner with its policy, its replay and its vec.

    See `Learner` for its arguments and attributes.

    Example:
        >>> from shoal.learn import DQN, DQNConfig
        >>> config = DQNConfig(total_steps=2000, updates_per_step=1 / 8, seed=3)
        >>> with DQN("shoal/CartPole-v1", config) as dqn:
        ...     result = dqn.train()
        >>> result.steps >= 2000, 120 <= result.updates <= 130
        (True, True)
    """

    algorithm: ClassVar[str] = "dqn"
    config_class: ClassVar[type[DQNConfig]] = DQNConfig
    policy_class: ClassVar[type[QPolicy]] = QPolicy

    config: DQNConfig
    policy: QPolicy

    def _make_policy(self, encoder: EncoderOrMaker | None) -> QPolicy:
        config = self.config
        return QPolicy(
            self.vec.observation_layout,
            self.vec.single_action_space,
            hidden=config.hidden,
            activation=config.activation,
            dueling=config.dueling,
            normalize_observations=config.normalize_observations,
            encoder=encoder,
            action_table=config.action_table,
        )

    def _prepare_learning(self) -> None:
        policy = self.policy
        self._flat_parameters = FlatParameters(policy.parameters(), keep_gradients=True)
        rate = self.config.learning_rate
        self.optimizer = torch.optim.Adam(self._flat_parameters.vectors, rate, fused=True)
        self._target = Target(nn.ModuleList([policy.encoder, policy.layers]), self._flat_parameters)

    def _explore(self, policy: BasePolicy, obs: Tensor, step: Step, generator: torch.Generator) -> Tensor:
        assert isinstance(policy, QPolicy)
        epsilon = self.config.epsilon_at(self.steps, self.episodes.count)
        self.policy.epsilon.fill_(epsilon)
        mask = None if step.masks is None else torch.from_numpy(step.masks).to(obs.device)
        return policy.choose(obs, mask, generator, epsilon)

    # The gradient of the loss is written down below instead of derived from it, because that takes a third
    # of the operations; a test compares the two.

    def _gradient_step(self, transitions: Transitions, *, report: bool) -> tuple[Tensor, dict[str, Tensor]]:
        weights, count = transitions.weights, len(transitions.obs)
        features = self._encode(transitions.obs, self.policy.encoder, learns=True)
        rows = features.detach()
        if self.config.double:  # one pass over both observations takes less time than two
            rows = torch.cat([rows, self._encode(transitions.next_obs, self.policy.encoder)])
        outputs, kept = self.policy.layers.run(rows)
        values = outputs[:count]
        places = self.policy.actions.places(transitions.actions)
        targets = self._targets(transitions, outputs[count:] if self.config.double else None)
        errors = values.gather(-1, places) - targets[:, None]  # [entries, choices]
        slopes = errors.clamp(-1, 1) if self.config.loss == "huber" else 2 * errors
        slopes = slopes if weights is None else slopes * weights[:, None]
        gradient = torch.zeros_like(values).scatter_(-1, places, slopes.div_(errors.numel()))
        kept = [part[:count] for part in kept]
        passed = self.policy.layers.backpropagate(kept, gradient, passes_on=features.requires_grad)
        if passed is not None:
            features.backward(passed)  # type: ignore[no-untyped-call]
        norm = self._flat_parameters.step(self.optimizer, self.config.max_grad_norm)
        if (self.updates + 1) % self.config.target_every == 0:
            self._target.follow(self.config.target_rate)
        figures = {}
        if report:
            loss = huber_loss if self.config.loss == "huber" else mse_loss
            losses = loss(errors, torch.zeros_like(errors), reduction="none").mean(-1)
            mean = losses.mean() if weights is None else (losses * weights).mean()
            figures = {"value": mean, "q_values": values.mean(), "grad_norm": norm}
        return errors, figures

    def _targets(self, transitions: Transitions, chosen_by: Tensor | None) -> Tensor:
        """Compute the value that each entry should have.

        Args:
            transitions: Entries.
            chosen_by: Values of the next alternatives by which the best ones are chosen, [entries,
                alternatives of all choices]; by default those of the target network.
        """
        actions = self.policy.actions
        encoder, layers = self._target.module
        judged, _ = layers.run(self._encode(transitions.next_obs, encoder))
        best = actions.places(
            actions.best(judged if chosen_by is None else chosen_by, transitions.next_masks)
        )
        values = judged.gather(-1, best)  # [entries, choices]
        values = values[:, 0] if values.shape[1] == 1 else values.mean(-1)
        return torch.addcmul(transitions.returns, transitions.discounts, values)

    def _follow_at_once(self) -> None:
        self._target.follow(1.0)

    def _learning_state(self) -> dict[str, Any]:
        return {
            "target": self._target.state_dict(),
            "optimizer": deepcopy(self.optimizer.state_dict()),
        }

    def _load_learning_state(self, state: dict[str, Any]) -> None:
        self._target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._flat_parameters.check(self.optimizer)
        for group in self.optimizer.param_groups:  # it may have changed with the resume
            group["lr"] = self.config.learning_rate
