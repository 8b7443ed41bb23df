"""The policy of SAC: flat observations -> squashed normal distribution, and the critics that judge it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentTypeError
from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.mlp import Mlp
from shoal.learn.squashing import squash
from shoal.rows.layout import Layout


class SACPolicy(BasePolicy):
    """An actor, and two critics of its actions. Only the actor acts.

    Numbers of an action are the hyperbolic tangent of normal ones: -1 and 1 are the bounds of the space.

    Args:
        layout: Layout of the observations: ``vec.observation_layout``.
        action_space: Action space of one row: ``vec.single_action_space``, a Box with finite bounds.
        hidden: Widths of the layers, of the actor and of each critic.
        activation: Activation function, "tanh" or "relu".
        normalize_observations: Whether the default encoder normalises vectors.
        encoder: Module to use instead of the default encoder, or its class; see `BasePolicy`. The critics
            have a copy of it, if it has weights.

    Example:
        >>> import shoal
        >>> from shoal.learn import SACPolicy
        >>> with shoal.make("shoal/Pendulum-v1", num_envs=3) as vec:
        ...     policy = SACPolicy(vec.observation_layout, vec.single_action_space)
        ...     obs, infos = vec.reset(seed=0)
        ...     actions = policy.act_batch(obs)
        >>> actions.shape, bool((abs(actions) <= 2).all())
        ((3, 1), True)
    """

    algorithm: ClassVar[str] = "sac"

    def __init__(
        self,
        layout: Layout,
        action_space: Space[Any],
        *,
        hidden: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        normalize_observations: bool = True,
        encoder: EncoderOrMaker | None = None,
    ) -> None:
        super().__init__(
            layout,
            action_space,
            normalize_observations=normalize_observations,
            encoder=encoder,
            arguments={"hidden": tuple(hidden), "activation": activation},
        )
        if self.actions.num_discrete:
            both = f"{self.actions.num_discrete} discrete and {self.actions.num_continuous} continuous parts"
            got = both if self.actions.num_continuous else str(action_space)
            raise ArgumentTypeError(
                f"SAC needs continuous actions: expected a Box of floats, got {got}. For discrete "
                "choices: DQN; for both kinds at once: PPO"
            )
        if not self.actions.bounded:
            raise ArgumentTypeError(
                f"SAC squashes actions between their bounds: expected a Box with finite bounds, got "
                f"{action_space}. Give the env such bounds, or use PPO"
            )
        features, width = self.num_features, self.actions.num_continuous
        self.actor = Mlp((features, *hidden, 2 * width), activation, gain=0.01)  # means, then deviations
        self.critic_encoder = with_shared_moments(self.encoder)
        self.critics = Mlp((features + width, *hidden, 1), activation, copies=2)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the weights that the loss of the actor changes."""
        return [*self.encoder.parameters(), *self.actor.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the weights that the loss of the critics changes."""
        return [*self.critic_encoder.parameters(), *self.critics.parameters()]

    def forward(self, obs: Tensor) -> Tensor:
        """Compute mean and logarithm of the deviation of each number, before squashing."""
        outputs: Tensor = self.actor(self.features(obs))
        return outputs

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Compute the values of flat actions by both critics, [2, rows]."""
        features = self.features(obs, self.critic_encoder)
        found: Tensor = self.critics(torch.cat([features, actions], -1))
        return found[..., 0]

    @torch.no_grad()
    def choose(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Choose flat actions for normal noise; without noise the likeliest ones."""
        outputs = self(obs)
        if noise is None:
            mean: Tensor = outputs.chunk(2, -1)[0]
            return mean.tanh()
        return squash(outputs, noise).actions

    def _act_rows(
        self,
        rows: Tensor,
        mask: Tensor | None,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool,
    ) -> NDArray[Any]:
        shape = (len(rows), self.actions.num_continuous)
        noise = None if deterministic else torch.randn(shape, generator=generator, device=self.device)
        return self.to_env(self.choose(rows, noise), rows, np.arange(len(rows)))

    @torch.no_grad()
    def value_batch(self, obs: Any, state: Tensor | None = None) -> NDArray[Any]:
        """Predict the returns of a batch of observations under the likeliest actions."""
        rows = self.to_rows(obs)
        values = self.values(rows, self.choose(rows, None))
        return values.amin(0).double().cpu().numpy()


def with_shared_moments(encoder: nn.Module) -> nn.Module:
    """Return a copy of an encoder that shares its mean and deviation; the encoder itself without weights."""
    if not any(True for _ in encoder.parameters()):
        return encoder
    copy = deepcopy(encoder)
    if getattr(encoder, "moments", None) is not None:
        copy.moments = encoder.moments
    return copy
