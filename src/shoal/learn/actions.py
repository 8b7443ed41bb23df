"""The distribution over flat actions that a policy's outputs describe, and their form for the env."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.rows.flat_actions import MixedBox

FORBIDDEN = -1e9  # a logit: its probability is exactly 0. Infinity would not do, because 0 * inf is NaN
MASK = "action_mask"  # the key in observations, or else in infos, that lists the allowed alternatives
MAX_ALTERNATIVES = 1 << 14  # of a discrete choice
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Actions:
    """Distribution over actions: a categorical for each discrete choice, a normal for each continuous number.

    A policy's outputs are the logits of all choices, one for each alternative, then the means of the
    continuous numbers. For a bounded number, -1 and 1 stand for its bounds. Numbers beyond the bounds are
    clipped for the env, but not in the loss.

    Args:
        space: Action space of one row: ``vec.single_action_space``.
        table: Actions to choose among, [alternatives, numbers], if the space is a Box of floats: the only
            discrete choice is then that of a line. By default numbers are continuous.

    Attributes:
        num_outputs: Number of outputs that a policy needs for each row.
        num_logits: Number of outputs that are logits.
        num_discrete: Number of discrete choices in an action.
        num_continuous: Number of continuous numbers in an action; as many outputs are means.
        sizes: Number of alternatives of each discrete choice.
        width: Number of elements of a flat action.
        bounded: Whether all continuous numbers have finite bounds.
        dtype: Dtype of a flat action.
    """

    def __init__(self, space: Space[Any], table: Sequence[Sequence[float]] = ()) -> None:
        self.space, self._table = space, _checked_table(space, table) if len(table) else None
        self._start: NDArray[Any] | int = 0
        whole = np.ones(0, np.bool_)
        low: NDArray[Any] = np.zeros(0)
        high: NDArray[Any] = np.zeros(0)
        if self._table is not None:
            sizes = [len(self._table)]
        elif isinstance(space, spaces.Discrete):
            sizes, self._start = [int(space.n)], int(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            sizes, self._start = [int(n) for n in space.nvec.reshape(-1)], space.start
        elif isinstance(space, spaces.MultiBinary):
            sizes = [2] * math.prod(space.shape)
        elif isinstance(space, MixedBox):
            whole = space.whole
            sizes, self._start = [int(n) for n in (space.high - space.low)[whole] + 1], space.low[whole]
            low, high = space.low[~whole], space.high[~whole]
        elif isinstance(space, spaces.Box) and space.dtype.kind == "f":
            sizes, low, high = [], space.low.reshape(-1), space.high.reshape(-1)
        else:
            raise ArgumentTypeError(
                f"no distribution over {space}: expected Discrete, MultiDiscrete, MultiBinary or a Box of "
                "floats. For whole numbers take Discrete or MultiDiscrete. A vec with flat=True gives Dict "
                "and Tuple one of these forms"
            )
        if isinstance(space, spaces.Box) and whole.size == 0 and not sizes:
            whole = np.zeros(math.prod(space.shape), np.bool_)
        if max(sizes, default=0) > MAX_ALTERNATIVES:
            raise ArgumentTypeError(
                f"{space}: a choice of {max(sizes)} alternatives is too many for a policy (at most "
                f"{MAX_ALTERNATIVES}). Give the env a Box of floats, and round there"
            )
        self._whole = whole
        self.sizes, self.num_continuous = sizes, len(low)
        self.num_discrete, self.num_logits = len(sizes), sum(sizes)
        self.num_outputs = self.num_logits + self.num_continuous
        self.width = self.num_discrete + self.num_continuous
        self.dtype = torch.float32 if self.num_continuous else torch.int64
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):  # inf - inf, where there are no bounds
            self._middle = np.where(bounded, (low + high) / 2, 0.0)
            self._half = np.where(bounded, (high - low) / 2, 1.0)
        self._low, self._high = low, high
        self.bounded = bool(bounded.all())
        # Where the logits of each choice begin.
        self._first = torch.tensor([sum(sizes[:place]) for place in range(len(sizes))])
        # Positions of the logits in a padded table, if choices have different numbers of alternatives.
        most = max(sizes, default=0)
        self._most = most
        self._places = torch.tensor([i * most + j for i, n in enumerate(sizes) for j in range(n)])
        self._even = all(n == most for n in sizes)

    def log_probabilities(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the log-probability of every alternative, [..., choices, alternatives]."""
        return self.table(outputs, mask).log_softmax(-1)

    def table(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Arrange logits as [..., choices, alternatives]; what is not allowed gets a huge negative number."""
        logits = outputs[..., : self.num_logits] if self.num_continuous else outputs
        if mask is not None:
            logits = torch.where(mask, logits, FORBIDDEN)
        if not self._even:
            # Twice as low as FORBIDDEN: padding is not drawn even if the mask allows no alternative.
            wide = logits.new_full((*logits.shape[:-1], self.num_discrete * self._most), 2 * FORBIDDEN)
            logits = wide.index_copy(-1, self._places.to(logits.device), logits)
        return logits.reshape(*logits.shape[:-1], self.num_discrete, self._most)

    def sample(
        self,
        outputs: Tensor,
        log_std: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Draw flat actions, [..., width]; return them and their log-probabilities."""
        parts, log_probs = [], []
        if self.num_discrete:
            chances = self.log_probabilities(outputs, mask)
            if deterministic:
                chosen = chances.argmax(-1)
            else:  # of exponential times with the probabilities as rates, the shortest is a categorical draw
                times = torch.empty_like(chances).exponential_(generator=generator)
                chosen = (chances.exp() / times).argmax(-1)
            log_probs.append(self._log_prob_of(chances, chosen))
            parts.append(chosen)
        if self.num_continuous:
            mean = outputs[..., self.num_logits :]
            noise = torch.zeros_like(mean) if deterministic else _normal(mean, generator)
            parts.append(mean + noise * log_std.exp())
            log_probs.append((-0.5 * noise**2 - log_std - HALF_LOG_TAU).sum(-1))
        actions = torch.cat([part.to(self.dtype) for part in parts], -1) if len(parts) > 1 else parts[0]
        return actions, log_probs[0] if len(log_probs) == 1 else log_probs[0] + log_probs[1]

    def places(self, actions: Tensor) -> Tensor:
        """Return the positions of chosen alternatives among all logits, [..., choices]."""
        return actions if self.num_discrete == 1 else actions + self._first.to(actions.device)

    def best(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the alternatives with the largest outputs, [..., choices]."""
        if self.num_discrete == 1 and mask is None:
            return outputs.argmax(-1, keepdim=True)
        return self.table(outputs, mask).argmax(-1)

    def check_allowed(self, mask: Tensor, acts: NDArray[np.bool_], env_ids: NDArray[Any]) -> None:
        """Check that masks allow an alternative of each choice, in the rows that act.

        Raises:
            ArgumentError: If one does not.
        """
        if bool(mask.all()):
            return
        possible = (
            (self.table(torch.zeros(mask.shape, device=mask.device), mask) > FORBIDDEN / 2).any(-1).all(-1)
        )
        wrong = np.flatnonzero(acts & ~possible.cpu().numpy())
        if len(wrong):
            raise ArgumentError(
                f"{MASK}: expected at least one allowed alternative in each choice, got a mask of env "
                f"{env_ids[wrong[0]]} that forbids all of one: {mask[wrong[0]].int().tolist()}"
            )

    def draw_uniformly(
        self, rows: int, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw flat actions uniformly: among the allowed alternatives, and between the bounds of numbers."""
        device = torch.device("cpu") if generator is None else generator.device
        parts = []
        if self.num_discrete:
            table = self.table(torch.zeros(rows, self.num_logits, device=device), mask)
            times = torch.empty_like(table).exponential_(generator=generator)
            parts.append((table - times).argmax(-1))  # of those that are allowed, the shortest time
        if self.num_continuous:
            numbers = torch.empty(rows, self.num_continuous, device=device)
            parts.append(numbers.uniform_(-1, 1, generator=generator))
        return torch.cat([part.to(self.dtype) for part in parts], -1)

    def log_probs_and_entropy(
        self, outputs: Tensor, log_std: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of flat actions, and the entropy of their distributions."""
        log_probs, entropies = [], []
        if self.num_discrete:
            chances = self.log_probabilities(outputs, mask)
            chosen = actions[..., : self.num_discrete].to(torch.int64)
            log_probs.append(self._log_prob_of(chances, chosen))
            entropies.append(-(chances.exp() * chances).sum((-2, -1)))
        if self.num_continuous:
            mean, numbers = outputs[..., self.num_logits :], actions[..., self.num_discrete :]
            distance = (numbers - mean) * (-log_std).exp()
            log_probs.append((-0.5 * distance**2 - log_std - HALF_LOG_TAU).sum(-1))
            entropies.append((log_std + HALF_LOG_TAU + 0.5).sum().expand(mean.shape[:-1]))
        if len(log_probs) == 1:
            return log_probs[0], entropies[0]
        return log_probs[0] + log_probs[1], entropies[0] + entropies[1]

    def _log_prob_of(self, chances: Tensor, chosen: Tensor) -> Tensor:
        """Sum the log-probabilities of the chosen alternatives over all choices."""
        taken = chances.gather(-1, chosen[..., None])
        return taken[..., 0, 0] if self.num_discrete == 1 else taken.sum((-2, -1))

    def to_env(self, actions: Tensor) -> NDArray[Any]:
        """Convert flat actions to the form that ``vec.step`` takes."""
        raw = actions.cpu().numpy()
        space, lead = self.space, raw.shape[:-1]
        if not self.num_continuous:
            if self._table is not None:
                taken: NDArray[Any] = self._table[raw[..., 0]]
                return taken
            if isinstance(space, spaces.Discrete):
                return raw[..., 0] + self._start if self._start else raw[..., 0]
            if isinstance(space, MixedBox):
                return raw + self._start
            return (raw.reshape((*lead, *(space.shape or ()))) + self._start).astype(space.dtype, copy=False)
        numbers = raw[..., self.num_discrete :].astype(np.float64) * self._half + self._middle
        numbers = numbers.clip(self._low, self._high)
        if not self.num_discrete:
            return numbers.reshape((*lead, *(space.shape or ()))).astype(space.dtype)
        mixed = np.empty((*lead, self.width))
        mixed[..., self._whole], mixed[..., ~self._whole] = (
            raw[..., : self.num_discrete] + self._start,
            numbers,
        )
        return mixed


def _checked_table(space: Space[Any], table: Sequence[Sequence[float]]) -> NDArray[Any]:
    """Return the actions of a table in the form of the space, [alternatives, ...]."""
    if not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
        raise ArgumentTypeError(f"action_table: only for a Box of floats; the action space is {space}")
    width = math.prod(space.shape)
    for place, line in enumerate(table):
        found = np.asarray(line, np.float64)
        if found.shape != (width,):
            raise ArgumentError(
                f"action_table: expected {width} numbers in each line, as in {space}, got {line!r} in line "
                f"{place + 1}"
            )
        if not ((found >= space.low.reshape(-1)) & (found <= space.high.reshape(-1))).all():
            raise ArgumentError(
                f"action_table: expected numbers within the bounds of {space}, got {line!r} in line "
                f"{place + 1}"
            )
    found = np.asarray(table, np.float64).reshape(-1, *space.shape)
    return found.astype(space.dtype)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


def masks_from_infos(infos: dict[str, Any], rows: int, width: int) -> NDArray[np.bool_] | None:
    """Return the allowed alternatives, [rows, width]; None if infos have no action mask."""
    given = infos.get(MASK)
    if given is None or not width:
        return None
    masks = np.ones((rows, width), np.bool_)
    for row in np.flatnonzero(infos[f"_{MASK}"]).tolist():
        masks[row] = np.asarray(given[row]).reshape(-1) != 0
    return masks
