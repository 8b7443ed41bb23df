"""SAC: soft actor-critic with twin critics, on any vec with continuous actions.

A gradient step: the critics learn towards the target (reward, and the value of the next action by the target
critics, less what its entropy is worth), then the actor towards actions that the critics value, then the
temperature towards the entropy to aim for.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.configs.sac import SACConfig
from shoal.learn.explorer import Step
from shoal.learn.flat_parameters import FlatParameters, check_state
from shoal.learn.noise import Noise
from shoal.learn.off_policy import OffPolicyLearner
from shoal.learn.replay import Transitions
from shoal.learn.sac_policy import SACPolicy
from shoal.learn.squashing import Squashed, squash, squash_gradient
from shoal.learn.targets import Target


class SAC(OffPolicyLearner):
    """A SAC learner with its policy, its replay and its vec.

    See `Learner` for its arguments and attributes.

    Example:
        >>> from shoal.learn import SAC, SACConfig
        >>> config = SACConfig(total_steps=2000, updates_per_step=1 / 8, seed=3)
        >>> with SAC("shoal/Pendulum-v1", config) as sac:
        ...     result = sac.train()
        >>> result.steps >= 2000, 120 <= result.updates <= 130
        (True, True)
    """

    algorithm: ClassVar[str] = "sac"
    config_class: ClassVar[type[SACConfig]] = SACConfig
    policy_class: ClassVar[type[SACPolicy]] = SACPolicy

    config: SACConfig
    policy: SACPolicy

    def _make_policy(self, encoder: EncoderOrMaker | None) -> SACPolicy:
        config = self.config
        return SACPolicy(
            self.vec.observation_layout,
            self.vec.single_action_space,
            hidden=config.hidden,
            activation=config.activation,
            normalize_observations=config.normalize_observations,
            encoder=encoder,
        )

    def _prepare_learning(self) -> None:
        config, policy = self.config, self.policy
        width = policy.actions.num_continuous
        self._actor_parameters = FlatParameters(policy.actor_parameters(), keep_gradients=True)
        self._critic_parameters = FlatParameters(policy.critic_parameters(), keep_gradients=True)
        self._log_temperature = nn.Parameter(torch.zeros((), device=policy.device))
        if config.temperature is not None:
            self._log_temperature.data.fill_(config.temperature).log_()
        self._target_entropy = -float(width) if config.target_entropy is None else config.target_entropy
        rate = config.learning_rate
        self._optimizers = {
            "actor": torch.optim.Adam(
                [*self._actor_parameters.vectors, self._log_temperature], rate, fused=True
            ),
            "critics": torch.optim.Adam(self._critic_parameters.vectors, rate, fused=True),
        }
        judges = nn.ModuleList([policy.critic_encoder, policy.critics])
        self._target = Target(judges, self._critic_parameters)
        self._random = torch.Generator(policy.device).manual_seed(config.seed + 1)
        self._noise = Noise(config.noise, self.vec.num_rows, width, config.noise_steps, config.seed)

    def _explore(self, policy: BasePolicy, obs: Tensor, step: Step, generator: torch.Generator) -> Tensor:
        assert isinstance(policy, SACPolicy)
        return policy.choose(obs, self._noise.draw(step.rows, step.batch.resets & step.batch.mask, generator))

    # The gradients of the losses are written down below instead of derived from them, because that takes a
    # third of the operations; a test compares the two.

    def _gradient_step(self, transitions: Transitions, *, report: bool) -> tuple[Tensor, dict[str, Tensor]]:
        policy, count = self.policy, len(transitions.obs)
        temperature = self._log_temperature.exp()
        features = self._encode(transitions.obs, policy.encoder, learns=True)
        # One pass of the actor over both observations takes less time than two.
        rows = torch.cat([features.detach(), self._encode(transitions.next_obs, policy.encoder)])
        outputs, kept = policy.actor.run(rows)
        found = squash(outputs, self._noise_for(rows))

        errors, values = self._learn_critics(
            transitions, found.actions[count:], temperature * found.log_probs[count:]
        )
        own = Squashed(*(part[:count] for part in found))
        judged, slopes = self._judge(transitions.obs, own.actions)
        gradient = squash_gradient(outputs[:count], own, slopes, temperature / count)
        passed = policy.actor.backpropagate(
            [part[:count] for part in kept], gradient, passes_on=features.requires_grad
        )
        if passed is not None:
            features.backward(passed)  # type: ignore[no-untyped-call]
        entropy = -own.log_probs.mean()
        if self.config.temperature is None:
            # It rises if the entropy is less than the one to aim for, else it falls.
            self._log_temperature.grad = entropy - self._target_entropy
        norm = self._actor_parameters.step(self._optimizers["actor"], self.config.max_grad_norm)
        if (self.updates + 1) % self.config.target_every == 0:
            self._target.follow(self.config.target_rate)
        figures = {}
        if report:
            weights = 1.0 if transitions.weights is None else transitions.weights
            figures = {
                "policy": -temperature * entropy - judged.amin(0).mean(),
                "value": (errors.square() * weights).mean(),
                "q_values": values.mean(),
                "entropy": entropy,
                "temperature": temperature,
                "grad_norm": norm,
            }
        return errors.T, figures

    def _learn_critics(
        self, transitions: Transitions, next_actions: Tensor, costs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Descend by half the squared errors of both critics; return errors and values, [2, entries].

        Args:
            transitions: Entries.
            next_actions: Actions that the actor would choose after them.
            costs: What is to be subtracted from the value of each of these actions, [entries].
        """
        policy = self.policy
        encoder, critics = self._target.module
        judged, _ = critics.run(torch.cat([self._encode(transitions.next_obs, encoder), next_actions], -1))
        targets = torch.addcmul(transitions.returns, transitions.discounts, judged.amin(0)[:, 0] - costs)

        features = self._encode(transitions.obs, policy.critic_encoder, learns=True)
        outputs, kept = policy.critics.run(torch.cat([features.detach(), transitions.actions], -1))
        values = outputs[..., 0]
        errors = values - targets
        slopes = errors / len(targets)
        slopes = slopes if transitions.weights is None else slopes * transitions.weights
        passed = policy.critics.backpropagate(kept, slopes[..., None], passes_on=features.requires_grad)
        if passed is not None:
            features.backward(passed[:, : features.shape[-1]])  # type: ignore[no-untyped-call]
        self._critic_parameters.step(self._optimizers["critics"], self.config.max_grad_norm)
        return errors, values

    def _judge(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of actions, [2, entries], and the gradient of minus the mean smaller value."""
        critics = self.policy.critics
        features = self._encode(obs, self.policy.critic_encoder)
        values, kept = critics.run(torch.cat([features, actions], -1))
        slopes = torch.zeros_like(values).scatter_(0, values.argmin(0, keepdim=True), -1 / len(obs))
        of_inputs = critics.backpropagate(kept, slopes, learns=False, passes_on=True)
        assert of_inputs is not None
        return values[..., 0], of_inputs[:, features.shape[-1] :]

    def _noise_for(self, rows: Tensor) -> Tensor:
        shape = (len(rows), self.policy.actions.num_continuous)
        return torch.randn(shape, generator=self._random, device=rows.device)

    def _follow_at_once(self) -> None:
        self._target.follow(1.0)

    def _learning_state(self) -> dict[str, Any]:
        return {
            "target": self._target.state_dict(),
            "temperature": self._log_temperature.detach().clone(),
            "optimizers": {name: deepcopy(one.state_dict()) for name, one in self._optimizers.items()},
            "random": self._random.get_state(),
            "noise": self._noise.state_dict(),
        }

    def _load_learning_state(self, state: dict[str, Any]) -> None:
        self._target.load_state_dict(state["target"])
        self._log_temperature.data.copy_(state["temperature"])
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
            for group in optimizer.param_groups:  # it may have changed with the resume
                group["lr"] = self.config.learning_rate
        self._actor_parameters.check(self._optimizers["actor"])
        self._critic_parameters.check(self._optimizers["critics"])
        check_state(self._optimizers["actor"], [self._log_temperature])
        self._random.set_state(state["random"])
        self._noise.load_state_dict(state["noise"])
