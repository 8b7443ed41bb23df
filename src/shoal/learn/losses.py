"""The loss of PPO. Means are weighted by `weights`.

`ppo_loss` computes the whole loss from a policy's outputs, as a sum of the plain functions below. If all
actions are discrete, the core computes loss and gradient in one pass; tests compare the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal import _core
from shoal.learn.policy import Policy


class Terms(NamedTuple):
    """Settings of the loss; see the fields of `PPOConfig` with the same names."""

    clip: float = 0.2
    clip_value: float = 0.0
    entropy: float = 0.005
    value_weight: float = 0.5


class Figures(NamedTuple):
    """Parts of the loss, and measures of how far the policy has moved; each a mean over entries."""

    policy: Any
    value: Any
    entropy: Any
    approx_kl: Any
    clip_fraction: Any


def policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Compute the clipped surrogate loss of each entry, and the ratio of new to old probability.

    Clipping removes the gain from moving a probability by a factor beyond 1 - `clip` or 1 + `clip`.
    """
    ratios = (log_probs - old_log_probs).exp()
    loss = -torch.minimum(advantages * ratios, advantages * ratios.clamp(1 - clip, 1 + clip))
    return loss, ratios


def value_loss(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float = 0.0
) -> Tensor:
    """Compute half the squared error of each entry.

    With `clip`, it is the larger of two errors: of the value, and of the value moved at most `clip` from the
    old one.
    """
    loss = (values - targets) ** 2
    if clip and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - targets) ** 2)
    return 0.5 * loss


def approximate_kl(ratios: Tensor) -> Tensor:
    """Estimate the KL divergence from the old policy for each entry; the estimate is never negative."""
    return (ratios - 1) - ratios.log()


def weighted_mean(entries: Tensor, weights: Tensor | None) -> Tensor:
    """Average entries, weighted by `weights` if given."""
    if weights is None:
        return entries.mean()
    return (entries * weights).sum() / weights.sum().clamp(min=1)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Compute the part of the variance of returns that values explain: 1 is all, 0 is none.

    It is negative if values are worse than a constant, and NaN if all returns are equal.
    """
    variance = returns.var() if len(returns) > 1 else None
    return float("nan") if not variance else float(1 - (returns - values).var() / variance)


def ppo_loss(
    policy: Policy,
    outputs: Tensor,
    taken: Tensor,
    numbers: Tensor,
    terms: Terms,
    *,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    in_core: bool | None = None,
) -> tuple[Tensor, Figures]:
    """Compute the loss of a minibatch; return it and its parts.

    Args:
        policy: Policy that computed the outputs.
        outputs: Outputs of the policy, the value last: [..., outputs + 1].
        taken: Flat actions that were taken.
        numbers: Old log-probability, advantage, return and old value of each entry: [..., 4].
        terms: Settings of the loss.
        mask: Allowed alternatives; by default all.
        weights: Weight of each entry; by default all equal.
        in_core: Whether the core computes the loss; by default if it can.
    """
    actions = policy.actions
    if in_core is None:
        in_core = _core.NAME == "native" and not actions.num_continuous and outputs.device.type == "cpu"
    if in_core:
        found: tuple[Tensor, Figures] = _SurrogateInCore.apply(  # type: ignore[no-untyped-call]
            outputs, actions.sizes, taken, numbers, mask, weights, terms
        )
        return found
    old_log_probs, advantages, returns, old_values = numbers.unbind(-1)
    log_probs, entropy = actions.log_probs_and_entropy(outputs[..., :-1], policy.log_std, taken, mask)
    by_policy, ratios = policy_loss(log_probs, old_log_probs, advantages, terms.clip)
    by_value = value_loss(outputs[..., -1], returns, old_values, terms.clip_value)
    figures = Figures(
        weighted_mean(by_policy, weights),
        weighted_mean(by_value, weights),
        weighted_mean(entropy, weights),
        weighted_mean(approximate_kl(ratios.detach()), weights),
        weighted_mean(((ratios.detach() - 1).abs() > terms.clip).float(), weights),
    )
    return _sum(figures, terms), Figures(*(figure.detach() for figure in figures))


def _sum(parts: Figures, terms: Terms) -> Any:
    # Twice, because the part is half the squared error, and value_weight is defined for the whole error.
    return parts.policy + 2 * terms.value_weight * parts.value - terms.entropy * parts.entropy


class _SurrogateInCore(torch.autograd.Function):
    """Loss of discrete actions and its gradient, computed by the core in one pass."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        sizes: list[int],
        taken: Tensor,
        numbers: Tensor,
        mask: Tensor | None,
        weights: Tensor | None,
        terms: Terms,
    ) -> tuple[Tensor, Figures]:
        from shoal._core._native import surrogate

        width = outputs.shape[-1]
        gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
        found = surrogate(
            outputs.detach().reshape(-1, width).contiguous().numpy(),
            taken.reshape(-1, taken.shape[-1]).contiguous().numpy(),
            numbers.reshape(-1, 4).contiguous().numpy(),
            None if mask is None else mask.reshape(-1, width - 1).contiguous().numpy(),
            None if weights is None else weights.reshape(-1).contiguous().numpy(),
            sizes,
            *terms,
            gradient.view(-1, width).numpy(),
        )
        ctx.gradient = gradient
        figures = Figures(*found)
        return outputs.new_tensor(_sum(figures, terms)), figures

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return ctx.gradient * grads[0], None, None, None, None, None, None
