"""What all policies have in common: from rows of a vec to actions for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentError, Diverged
from shoal.learn.actions import MASK, Actions
from shoal.learn.encoder import Encoder, find_not_finite, view_field
from shoal.learn.unpack import unpack
from shoal.rows.layout import Layout

EncoderOrMaker = nn.Module | Callable[[Space[Any]], nn.Module]


class BasePolicy(nn.Module):
    """Base class of policies: an encoder of observations, the form of actions, and `act_batch`.

    Args:
        layout: Layout of the observations: ``vec.observation_layout``.
        action_space: Action space of one row: ``vec.single_action_space``.
        normalize_observations: Whether the default encoder normalises vectors.
        encoder: Module to use instead of the default encoder, or a class or function that makes one of the
            observation space. The module receives nested tensors, returns [rows, ``out_features``], and must
            have the attribute ``out_features``.
        arguments: The settings, from which `shoal.learn.load` makes an equal policy.
        action_table: Actions to choose among, if `action_space` is a Box; see `Actions`.
    """

    algorithm: ClassVar[str]
    """Short name of the algorithm whose learner trains it."""

    def __init__(
        self,
        layout: Layout,
        action_space: Space[Any],
        *,
        normalize_observations: bool,
        encoder: EncoderOrMaker | None,
        arguments: dict[str, Any],
        action_table: Sequence[Sequence[float]] = (),
    ) -> None:
        super().__init__()
        self.layout, self.actions = layout, Actions(action_space, action_table)
        self.arguments = {**arguments, "normalize_observations": normalize_observations}
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
        self.num_features = width
        self.lstm: Any = None  # some policies have one
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

    def features(self, obs: Tensor, encoder: nn.Module | None = None) -> Tensor:
        """Encode flat observations, [..., row], as [..., features].

        Args:
            obs: Flat observations.
            encoder: A copy of the policy's encoder to use instead of it.
        """
        encoder = self.encoder if encoder is None else encoder
        if self.own_encoder:
            lead = obs.shape[: obs.dim() - len(self.layout.flat_shape)]
            rows = obs.reshape(math.prod(lead), *self.layout.flat_shape)
            features = encoder(unpack(rows, self.layout)).reshape(*lead, -1)
        else:
            features = encoder(obs)
        return features  # type: ignore[no-any-return]

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

    # -- acting ------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def initial_state(self, rows: int) -> Tensor | None:
        """Return the state at the beginning of episodes; None without an LSTM."""
        return None

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
            deterministic: Whether to take the best or likeliest actions instead of drawing.
            state: With an LSTM, from `initial_state`; it is updated in place. Set the columns of rows that
                begin an episode to 0.
            action_mask: Allowed alternatives, if observations do not contain them.
            generator: Generator to draw from; by default torch's global one.
        """
        rows = self.to_rows(obs)
        mask = self.mask_of(rows, action_mask)
        return self._act_rows(rows, mask, state, generator, deterministic=deterministic)

    def _act_rows(
        self,
        rows: Tensor,
        mask: Tensor | None,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool,
    ) -> NDArray[Any]:
        """Choose actions for flat rows; see `act_batch`."""
        raise NotImplementedError

    def to_env(self, actions: Tensor, obs: Tensor, env_ids: NDArray[Any]) -> NDArray[Any]:
        """Convert flat actions to the form that ``vec.step`` takes.

        Raises:
            Diverged: If an action is NaN or inf.
        """
        env_actions = self.actions.to_env(actions)
        if self.actions.num_continuous and not np.isfinite(env_actions).all():
            why = find_not_finite(obs, self.layout, env_ids)
            why = why or "so are the weights. Take a smaller learning_rate"
            raise Diverged(f"the policy's actions are NaN or inf: {why}")
        return env_actions

    def mask_of(self, obs: Tensor, given: Any) -> Tensor | None:
        """Return the allowed alternatives: those given, or else those in the observations."""
        if given is None:
            return self.mask_from_obs(obs)
        return torch.as_tensor(given, device=self.device) != 0

    def to_rows(self, obs: Any) -> Tensor:
        """Convert observations of a vec to a tensor of flat rows on the policy's device.

        Raises:
            ArgumentError: If the observations are not flat rows of the policy's layout.
        """
        shape, dtype = tuple(self.layout.flat_shape), self.layout.flat_dtype
        if isinstance(obs, np.ndarray):
            lead = obs.ndim - len(shape)
            if obs.dtype == dtype and lead >= 1 and obs.shape[lead:] == shape:
                return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)
        got = type(obs).__name__
        if hasattr(obs, "dtype") and hasattr(obs, "shape"):
            got += f" of dtype {obs.dtype} and shape {tuple(obs.shape)}"
        raise ArgumentError(
            f"obs: expected flat rows of the policy's observation space, a NumPy array of dtype {dtype} and "
            f"shape {('rows', *shape)}, as a vec with flat=True returns them, got {got}. "
            "policy.layout.pack(observation)[None] makes one row of one observation"
        )
