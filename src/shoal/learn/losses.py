"""What PPO minimises, as plain functions of tensors. Means are over the entries that `weights` counts."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Per entry: the clipped surrogate, and the ratio of probabilities that it is of.

    An action that has become more likely, or less, by more than `clip` gains nothing by going on.
    """
    ratios = (log_probs - old_log_probs).exp()
    loss = -torch.minimum(advantages * ratios, advantages * ratios.clamp(1 - clip, 1 + clip))
    return loss, ratios


def value_loss(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float = 0.0
) -> Tensor:
    """Per entry: half the squared error; with `clip`, of the value or of one that moved no farther."""
    loss = (values - targets) ** 2
    if clip and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - targets) ** 2)
    return 0.5 * loss


def approximate_kl(ratios: Tensor) -> Tensor:
    """Per entry: an estimate of the divergence from the old policy that is never negative."""
    return (ratios - 1) - ratios.log()


def mean(entries: Tensor, weights: Tensor | None) -> Tensor:
    """Over the entries that count."""
    if weights is None:
        return entries.mean()
    return (entries * weights).sum() / weights.sum().clamp(min=1)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """How much of the variance of returns the values account for: 1 is all, 0 none, less is worse."""
    variance = returns.var()
    return float("nan") if not variance else float(1 - (returns - values).var() / variance)
