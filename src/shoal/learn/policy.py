"""The policy: flat observations -> distribution over actions, and value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentError
from shoal.learn.actions import MASK, Actions
from shoal.learn.encoder import ACTIVATIONS, Encoder
from shoal.learn.finite import check_actions
from shoal.learn.lstm import LSTM
from shoal.learn.unpack import leaf, unpack
from shoal.rows.layout import Layout


class Policy(nn.Module):
    """An actor and a critic on one trunk: encoder, layers (the first may be an LSTM), one layer of outputs.

    Args:
        layout: Of the observations: ``vec.observation_layout``.
        action_space: ``vec.single_action_space``.
        hidden: Widths of the layers.
        lstm: Whether the first of them is an LSTM.
        activation: "tanh" or "relu".
        normalize_observations: Whether the default encoder brings vectors to one scale.
        encoder: A module of your own: it receives nested tensors and returns [rows, ``out_features``], an
            attribute that it must have.

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
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if lstm and not hidden:
            raise ArgumentError(
                "hidden: expected at least one width with lstm=True, for the first layer is it"
            )
        self.layout, self.actions = layout, Actions(action_space)
        self.own_encoder = encoder is not None
        self.encoder = encoder if encoder is not None else Encoder(layout, normalize=normalize_observations)
        width = getattr(self.encoder, "out_features", None)
        if not isinstance(width, int):
            raise ArgumentError(
                f"encoder: expected an attribute out_features, the numbers that {type(encoder).__name__} "
                f"returns for each row, got {width!r}"
            )
        self.activation = ACTIVATIONS[activation]
        # First, because it takes most of the time, and less of it the fewer numbers come in.
        self.lstm = LSTM(width, hidden[0]) if lstm else None
        widths = [hidden[0] if lstm else width, *(hidden[1:] if lstm else hidden)]
        self.trunk = nn.ModuleList(
            _layer(inputs, outputs, math.sqrt(2)) for inputs, outputs in pairwise(widths)
        )
        width = widths[-1]
        self.head = _layer(width, self.actions.num_outputs + 1, 1.0)
        with torch.no_grad():  # at first all actions are about equally likely
            self.head.weight[:-1] *= 0.01
        self.log_std = nn.Parameter(torch.full((self.actions.num_quantities,), -0.5))
        # By which returns were divided; 1 unless they are normalised.
        self.register_buffer("return_scale", torch.ones((), dtype=torch.float64))
        masks = [field for field in layout.fields if field.path == (MASK,)]
        self._mask_field = masks[0] if masks and self.actions.num_logits else None
        if self._mask_field is not None and self._mask_field.size != self.actions.num_logits:
            raise ArgumentError(
                f"observation {MASK!r}: expected {self.actions.num_logits} entries, one for each alternative "
                f"of {action_space}, got {self._mask_field.size}"
            )
        self.has_masks = self._mask_field is not None  # in its observations

    # -- tensors -----------------------------------------------------------------------------------------

    def forward(self, obs: Tensor, state: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Outputs of rows, the value last; with an LSTM of whole columns, [steps, rows, ...].

        Args:
            obs: Flat observations.
            state: With an LSTM, that before the first step.
            starts: With an LSTM, [steps, rows]: where episodes begin.
        """
        features = self._features(obs)
        if self.lstm is not None:
            features, _ = self.lstm(features, starts, self._checked(state, features.shape[1]))
        return self._outputs(features)

    def step(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs and values of rows at one moment, and their next state."""
        features = self._features(obs)
        if self.lstm is not None:
            state = self._checked(state, len(features))
            goes_on = torch.zeros(1, len(features), dtype=torch.bool, device=features.device)
            features, state = self.lstm(features[None], goes_on, state)
            features = features[0]
        outputs = self._outputs(features)
        return outputs[..., :-1], outputs[..., -1], state

    def mask_in(self, obs: Tensor) -> Tensor | None:
        """The alternatives that are allowed, if observations say so."""
        if self._mask_field is None:
            return None
        lead = obs.shape[: obs.dim() - len(self.layout.flat_shape)]
        flat = obs.reshape(*lead, math.prod(self.layout.flat_shape))
        return leaf(flat, self._mask_field, self.layout).reshape(*lead, -1) != 0

    def observe(self, obs: Tensor) -> None:
        """Take observations, [N, ...], into account by which they are brought to one scale."""
        if not self.own_encoder:
            self.encoder.observe(obs)  # type: ignore[operator]

    def _features(self, obs: Tensor) -> Tensor:
        if self.own_encoder:
            lead = obs.shape[: obs.dim() - len(self.layout.flat_shape)]
            rows = obs.reshape(math.prod(lead), *self.layout.flat_shape)
            features = self.encoder(unpack(rows, self.layout)).reshape(*lead, -1)
        else:
            features = self.encoder(obs)
        return features  # type: ignore[no-any-return]

    def _outputs(self, features: Tensor) -> Tensor:
        for layer in self.trunk:
            features = self.activation(layer(features))
        outputs: Tensor = self.head(features)
        return outputs

    # -- arrays ------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.head.weight.device

    def initial_state(self, rows: int) -> Tensor | None:
        """The state at the beginning of episodes; None without an LSTM."""
        return None if self.lstm is None else torch.zeros(2, rows, self.lstm.width, device=self.device)

    @torch.no_grad()
    def act_batch(
        self,
        obs: Any,
        deterministic: bool = False,
        state: Tensor | None = None,
        *,
        action_mask: NDArray[Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> NDArray[Any]:
        """Actions for a batch of observations, as ``vec.step`` takes them.

        Args:
            obs: As the vec gives them: flat rows.
            deterministic: Take the likeliest actions, instead of drawing them.
            state: With an LSTM, from `initial_state`; it is written to. Set the columns of rows that begin an
                episode to 0.
            action_mask: Alternatives that are allowed, if observations do not say so themselves.
            generator: To draw from.
        """
        flat = self.rows(obs)
        outputs, _, after = self.step(flat, state)
        if after is not None and state is not None:
            state.copy_(after)
        mask = self.mask_in(flat)
        if action_mask is not None:
            mask = torch.as_tensor(action_mask, device=self.device) != 0
        drawn, _ = self.actions.sample(outputs, self.log_std, mask, generator, deterministic=deterministic)
        actions = self.actions.to_env(drawn)
        if self.actions.num_quantities:
            check_actions(actions, flat, self.layout, np.arange(len(flat)))
        return actions

    @torch.no_grad()
    def value_batch(self, obs: Any, state: Tensor | None = None) -> NDArray[np.float64]:
        """The returns it expects, in the env's own units."""
        values = self.step(self.rows(obs), state)[1]
        return (values.double() * self.return_scale).cpu().numpy()

    def _checked(self, state: Tensor | None, rows: int) -> Tensor:
        assert self.lstm is not None
        if state is None or state.shape != (2, rows, self.lstm.width):
            got = "None" if state is None else f"one of {state.shape[1]} rows"
            raise ArgumentError(
                f"state: this policy has a memory: expected policy.initial_state({rows}), kept from step to "
                f"step, got {got}"
            )
        return state

    def rows(self, obs: Any) -> Tensor:
        """Observations of a vec as a tensor of flat rows."""
        shape, dtype = tuple(self.layout.flat_shape), self.layout.flat_dtype
        if isinstance(obs, np.ndarray):
            lead = obs.ndim - len(shape)
            if obs.dtype == dtype and lead >= 0 and obs.shape[lead:] == shape:
                return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)
        got = type(obs).__name__
        if hasattr(obs, "dtype") and hasattr(obs, "shape"):
            got += f" of dtype {obs.dtype} and shape {tuple(obs.shape)}"
        raise ArgumentError(
            f"obs: expected flat rows, a NumPy array of dtype {dtype} and shape {('rows', *shape)}, as a vec "
            f"with flat=True gives them, of the space that the policy was made for, got {got}. "
            "policy.layout.pack(observation)[None] makes one row of one observation"
        )


def _layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
