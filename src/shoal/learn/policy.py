"""The policy: flat observations -> distribution over actions, and value."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentError, Diverged
from shoal.learn.actions import MASK, Actions
from shoal.learn.encoder import Encoder, find_not_finite, view_field
from shoal.learn.lstm import LSTM
from shoal.learn.unpack import unpack
from shoal.rows.layout import Layout

EncoderOrMaker = nn.Module | Callable[[Space[Any]], nn.Module]


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


class Policy(nn.Module):
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
        super().__init__()
        if lstm and not hidden:
            raise ArgumentError(
                "hidden: expected at least one width with lstm=True, as the LSTM is the first layer, got none"
            )
        self.layout, self.actions = layout, Actions(action_space)
        self.arguments: dict[str, Any] = {
            "hidden": tuple(hidden),
            "lstm": lstm,
            "activation": activation,
            "normalize_observations": normalize_observations,
        }
        self.own_encoder = encoder is not None
        if encoder is None:
            self.encoder: nn.Module = Encoder(layout, normalize=normalize_observations)
        else:
            self.encoder = encoder if isinstance(encoder, nn.Module) else encoder(layout.space)
        width = getattr(self.encoder, "out_features", None)
        if not isinstance(width, int) or not isinstance(self.encoder, nn.Module):
            raise ArgumentError(
                f"encoder: expected a torch module with an attribute out_features, the number of features "
                f"that it returns for each row, got {type(self.encoder).__name__} with {width!r}"
            )
        self.activation = ACTIVATIONS[activation]
        # The LSTM comes first because it is the slowest layer, and it is faster with fewer inputs.
        self.lstm = LSTM(width, hidden[0]) if lstm else None
        widths = [hidden[0] if lstm else width, *(hidden[1:] if lstm else hidden)]
        self.trunk = nn.ModuleList(
            _layer(inputs, outputs, math.sqrt(2)) for inputs, outputs in pairwise(widths)
        )
        width = widths[-1]
        self.head = _layer(width, self.actions.num_outputs + 1, 1.0)
        with torch.no_grad():  # makes all actions about equally likely at first
            self.head.weight[:-1] *= 0.01
        self.log_std = nn.Parameter(torch.full((self.actions.num_continuous,), -0.5))
        # The learner divides returns by this number; it is 1 without normalisation.
        self.register_buffer("return_scale", torch.ones((), dtype=torch.float64))
        masks = [field for field in layout.fields if field.path == (MASK,)]
        self._mask_field = masks[0] if masks and self.actions.num_logits else None
        if self._mask_field is not None and self._mask_field.size != self.actions.num_logits:
            raise ArgumentError(
                f"observation {MASK!r}: expected {self.actions.num_logits} entries, one for each alternative "
                f"of {action_space}, got {self._mask_field.size}"
            )
        self.has_masks = self._mask_field is not None  # in observations

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return copies of weights and normaliser by name.

        Copies, because a learner keeps all weights in one vector: a pickle of views would hold the whole
        vector once for each of them.
        """
        found = super().state_dict(*args, **kwargs)
        if not kwargs.get("keep_vars"):
            for name, tensor in found.items():
                if isinstance(tensor, Tensor):  # and not the extra state of a module
                    found[name] = tensor.clone()
        return found

    # -- networks ----------------------------------------------------------------------------------------

    def forward(self, obs: Tensor, state: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Compute the outputs of rows, the value last; with an LSTM, of whole columns, [steps, rows, ...].

        Args:
            obs: Flat observations.
            state: With an LSTM, the state before the first step.
            starts: With an LSTM, [steps, rows]: True where an episode begins.
        """
        features = self._features(obs)
        if self.lstm is not None:
            features, _ = self.lstm(features, starts, self._checked_state(state, features.shape[1]))
        return self._outputs(features)

    def step(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute outputs, values and the next state of rows for one time step."""
        features = self._features(obs)
        if self.lstm is not None:
            state = self._checked_state(state, len(features))
            no_starts = torch.zeros(1, len(features), dtype=torch.bool, device=features.device)
            features, state = self.lstm(features[None], no_starts, state)
            features = features[0]
        outputs = self._outputs(features)
        return outputs[..., :-1], outputs[..., -1], state

    def mask_from_obs(self, obs: Tensor) -> Tensor | None:
        """Return the allowed alternatives; None if observations have no action mask."""
        if self._mask_field is None:
            return None
        lead = obs.shape[: obs.dim() - len(self.layout.flat_shape)]
        flat = obs.reshape(*lead, math.prod(self.layout.flat_shape))
        return view_field(flat, self._mask_field, self.layout).reshape(*lead, -1) != 0

    def observe(self, obs: Tensor) -> None:
        """Add observations, [N, ...], to the mean and deviation that normalise them."""
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

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head.weight.device

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
        env_actions = self.actions.to_env(actions)
        if self.actions.num_continuous and not np.isfinite(env_actions).all():
            why = find_not_finite(obs, self.layout, env_ids)
            why = why or "so are the weights. Take a smaller learning_rate"
            raise Diverged(f"the policy's actions are NaN or inf: {why}")
        return Decision(env_actions, actions, log_probs, values, after)

    def act_batch(
        self,
        obs: Any,
        deterministic: bool = False,
        state: Tensor | None = None,
        *,
        action_mask: NDArray[Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> NDArray[Any]:
        """Choose actions for a batch of observations, in the form that ``vec.step`` takes.

        Args:
            obs: Flat rows, as a vec with ``flat=True`` returns them.
            deterministic: Whether to take the likeliest actions instead of drawing.
            state: With an LSTM, from `initial_state`; it is updated in place. Set the columns of rows that
                begin an episode to 0.
            action_mask: Allowed alternatives, if observations do not contain them.
            generator: Generator to draw from; by default torch's global one.
        """
        rows = self.to_rows(obs)
        mask = None if action_mask is None else torch.as_tensor(action_mask, device=self.device) != 0
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

    def to_rows(self, obs: Any) -> Tensor:
        """Convert observations of a vec to a tensor of flat rows on the policy's device.

        Raises:
            ArgumentError: If the observations are not flat rows of the policy's layout.
        """
        shape, dtype = tuple(self.layout.flat_shape), self.layout.flat_dtype
        if isinstance(obs, np.ndarray):
            lead = obs.ndim - len(shape)
            if obs.dtype == dtype and lead >= 0 and obs.shape[lead:] == shape:
                return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)
        got = type(obs).__name__
        if hasattr(obs, "dtype") and hasattr(obs, "shape"):
            got += f" of dtype {obs.dtype} and shape {tuple(obs.shape)}"
        raise ArgumentError(
            f"obs: expected flat rows of the policy's observation space, a NumPy array of dtype {dtype} and "
            f"shape {('rows', *shape)}, as a vec with flat=True returns them, got {got}. "
            "policy.layout.pack(observation)[None] makes one row of one observation"
        )


def _layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class _Tanh(torch.autograd.Function):
    """The hyperbolic tangent by the logistic function, which torch computes five times as fast on a CPU."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = torch.sigmoid(inputs + inputs).mul_(2).sub_(1)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return torch.addcmul(grads[0], grads[0] * outputs, outputs, value=-1)


def tanh(inputs: Tensor) -> Tensor:
    """Compute the hyperbolic tangent with an error of at most 1e-7."""
    if inputs.numel() < 1 << 13 or inputs.device.type != "cpu":
        return inputs.tanh()  # one call is faster than several on small inputs
    outputs: Tensor = _Tanh.apply(inputs)  # type: ignore[no-untyped-call]
    return outputs


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": torch.relu}
