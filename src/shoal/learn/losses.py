"""What PPO minimises. Means are over the entries that `weights` counts.

`ppo_loss` is the whole, from a policy's outputs. It is a sum of plain functions of tensors, below; for
policies of choices only it is computed in the core, loss and gradient in one pass, which tests compare.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal import _core
from shoal.learn.policy import Policy


class Terms(NamedTuple):
    """How the loss is put together; see `PPOConfig`."""

    clip: float = 0.2
    clip_value: float = 0.0
    entropy: float = 0.005
    value_weight: float = 0.5


class Figures(NamedTuple):
    """Its parts, each a mean."""

    policy: Any
    value: Any
    entropy: Any
    approx_kl: Any
    clip_fraction: Any


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
    """The loss of a minibatch, and its parts.

    Args:
        policy: Whose outputs they are.
        outputs: [..., outputs and value].
        taken: The actions that were taken.
        numbers: [..., 4]: their log-probability then, advantage, return, and the value then.
        terms: How the loss is put together.
        mask: Alternatives that are allowed; all by default.
        weights: Entries that count; all by default.
        in_core: Whether the core computes it; by default if it can.
    """
    actions = policy.actions
    if in_core is None:
        in_core = _core.NAME == "native" and not actions.num_quantities and outputs.device.type == "cpu"
    if in_core:
        figures: list[float] = []
        loss: Tensor = _InCore.apply(outputs, actions.sizes, taken, numbers, mask, weights, terms, figures)  # type: ignore[no-untyped-call]
        return loss, Figures(*figures)
    old_log_probs, advantages, returns, old_values = numbers.unbind(-1)
    log_probs, entropy = actions.evaluate(outputs[..., :-1], policy.log_std, taken, mask)
    by_policy, ratios = policy_loss(log_probs, old_log_probs, advantages, terms.clip)
    by_value = value_loss(outputs[..., -1], returns, old_values, terms.clip_value)
    found = Figures(
        mean(by_policy, weights),
        mean(by_value, weights),
        mean(entropy, weights),
        mean(approximate_kl(ratios.detach()), weights),
        mean(((ratios.detach() - 1).abs() > terms.clip).float(), weights),
    )
    return _sum(found, terms), Figures(*(part.detach() for part in found))


def _sum(parts: Figures, terms: Terms) -> Any:
    # Twice: by_value is half the squared error, and its weight is of the whole, as elsewhere.
    return parts.policy + 2 * terms.value_weight * parts.value - terms.entropy * parts.entropy


class _InCore(torch.autograd.Function):
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
        figures: list[float],
    ) -> Tensor:
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
        figures.extend(found)
        return outputs.new_tensor(_sum(Figures(*found), terms))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return ctx.gradient * grads[0], None, None, None, None, None, None, None
