"""The policy: flat observations -> distribution over actions, and value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentError
from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.layers import ACTIVATIONS, linear
from shoal.learn.lstm import LSTM
from shoal.rows.layout import Layout


class Decision(NamedTuple):
    """Actions of a policy for rows, and the tensors that a learner stores with them."""

    env_actions: NDArray[Any]
    """Actions in the form that ``vec.send`` and ``vec.step`` take."""
    actions: Tensor
    """Flat actions, [rows, width]; see `Actions`."""
    log_probs: Tensor
    values: Tensor
    state: Tensor | None
    """State of the LSTM after this step; None without an LSTM."""


class Policy(BasePolicy):
    """An actor and a critic that share an encoder, layers (the first may be an LSTM) and an output layer.

    Args:
        layout: Layout of the observations: ``vec.observation_layout``.
        action_space: Action space of one row: ``vec.single_action_space``.
        hidden: Widths of the layers.
        lstm: Whether the first layer is an LSTM.
        activation: Activation function, "tanh" or "relu".
        normalize_observations: Whether the default encoder normalises vectors.
        encoder: Module to use instead of the default encoder, or a class or function that makes one of the
            observation space. The module receives nested tensors, returns [rows, ``out_features``], and must
            have the attribute ``out_features``.

    Attributes:
        arguments: The settings, from which `shoal.learn.load` makes an equal policy.

    Example:
        >>> import shoal
        >>> from shoal.learn import Policy
        >>> with shoal.make("shoal/CartPole-v1", num_envs=3) as vec:
        ...     policy = Policy(vec.observation_layout, vec.single_action_space)
        ...     obs, infos = vec.reset(seed=0)
        ...     actions = policy.act_batch(obs)
        >>> actions.shape, actions.dtype
        ((3,), dtype('int64'))
    """

    algorithm: ClassVar[str] = "ppo"
    log_std: Tensor
    return_scale: Tensor

    def __init__(
        self,
        layout: Layout,
        action_space: Space[Any],
        *,
        hidden: tuple[int, ...] = (64, 64),
        lstm: bool = False,
        activation: str = "tanh",
        normalize_observations: bool = True,
        encoder: EncoderOrMaker | None = None,
    ) -> None:
        if lstm and not hidden:
            raise ArgumentError(
                "hidden: expected at least one width with lstm=True, as the LSTM is the first layer, got none"
            )
        super().__init__(
            layout,
            action_space,
            normalize_observations=normalize_observations,
            encoder=encoder,
            arguments={"hidden": tuple(hidden), "lstm": lstm, "activation": activation},
        )
        width = self.num_features
        self.activation = ACTIVATIONS[activation]
        # The LSTM comes first because it is the slowest layer, and it is faster with fewer inputs.
        self.lstm = LSTM(width, hidden[0]) if lstm else None
        widths = [hidden[0] if lstm else width, *(hidden[1:] if lstm else hidden)]
        self.trunk = nn.ModuleList(
            linear(inputs, outputs, math.sqrt(2)) for inputs, outputs in pairwise(widths)
        )
        width = widths[-1]
        self.head = linear(width, self.actions.num_outputs + 1, 1.0)
        with torch.no_grad():  # makes all actions about equally likely at first
            self.head.weight[:-1] *= 0.01
        self.log_std = nn.Parameter(torch.full((self.actions.num_continuous,), -0.5))
        # The learner divides returns by this number; it is 1 without normalisation.
        self.register_buffer("return_scale", torch.ones((), dtype=torch.float64))

    # -- networks ----------------------------------------------------------------------------------------

    def forward(self, obs: Tensor, state: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Compute the outputs of rows, the value last; with an LSTM, of whole columns, [steps, rows, ...].

        Args:
            obs: Flat observations.
            state: With an LSTM, the state before the first step.
            starts: With an LSTM, [steps, rows]: True where an episode begins.
        """
        features = self.features(obs)
        if self.lstm is not None:
            features, _ = self.lstm(features, starts, self._checked_state(state, features.shape[1]))
        return self._outputs(features)

    def step(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute outputs, values and the next state of rows for one time step."""
        features = self.features(obs)
        if self.lstm is not None:
            state = self._checked_state(state, len(features))
            no_starts = torch.zeros(1, len(features), dtype=torch.bool, device=features.device)
            features, state = self.lstm(features[None], no_starts, state)
            features = features[0]
        outputs = self._outputs(features)
        return outputs[..., :-1], outputs[..., -1], state

    def _outputs(self, features: Tensor) -> Tensor:
        for layer in self.trunk:
            features = self.activation(layer(features))
        outputs: Tensor = self.head(features)
        return outputs

    def _checked_state(self, state: Tensor | None, rows: int) -> Tensor:
        assert self.lstm is not None
        if state is None or state.shape != (2, rows, self.lstm.width):
            got = "None" if state is None else f"one of {state.shape[1]} rows"
            raise ArgumentError(
                f"state: this policy has an LSTM: expected policy.initial_state({rows}), kept from step to "
                f"step, got {got}"
            )
        return state

    # -- acting ------------------------------------------------------------------------------------------

    def initial_state(self, rows: int) -> Tensor | None:
        """Return the state at the beginning of episodes; None without an LSTM."""
        return None if self.lstm is None else torch.zeros(2, rows, self.lstm.width, device=self.device)

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        state: Tensor | None,
        env_ids: NDArray[Any],
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Decision:
        """Choose actions for rows.

        Args:
            obs: Flat observations on the policy's device.
            state: With an LSTM, the state before this step.
            env_ids: Env of each row, for error messages.
            mask: Allowed alternatives; by default those in the observations.
            generator: Generator to draw from; by default torch's global one.
            deterministic: Whether to take the likeliest actions instead of drawing.

        Raises:
            Diverged: If an action is NaN or inf.
        """
        outputs, values, after = self.step(obs, state)
        if mask is None:
            mask = self.mask_from_obs(obs)
        actions, log_probs = self.actions.sample(
            outputs, self.log_std, mask, generator, deterministic=deterministic
        )
        return Decision(self.to_env(actions, obs, env_ids), actions, log_probs, values, after)

    def _act_rows(
        self,
        rows: Tensor,
        mask: Tensor | None,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool,
    ) -> NDArray[Any]:
        decision = self.act(
            rows, state, np.arange(len(rows)), mask=mask, generator=generator, deterministic=deterministic
        )
        if decision.state is not None and state is not None:
            state.copy_(decision.state)
        return decision.env_actions

    @torch.no_grad()
    def value_batch(self, obs: Any, state: Tensor | None = None) -> NDArray[np.float64]:
        """Predict the returns of a batch of observations, in the units of the env's rewards."""
        values = self.step(self.to_rows(obs), state)[1]
        return (values.double() * self.return_scale).cpu().numpy()
