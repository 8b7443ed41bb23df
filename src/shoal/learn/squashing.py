"""Squashed normal numbers: the hyperbolic tangent of normal ones, with their log-probabilities.

numbers = mean + deviation * noise,   actions = tanh(numbers)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from shoal.learn.actions import HALF_LOG_TAU

LOG_STD = (-20.0, 2.0)  # bounds of the logarithm of the deviation


class Squashed(NamedTuple):
    """Actions between -1 and 1."""

    actions: Tensor
    """[rows, width]."""
    log_probs: Tensor
    """[rows]: logarithm of the density of each action."""
    spread: Tensor
    """[rows, width]: deviation times noise."""


def squash(outputs: Tensor, noise: Tensor) -> Squashed:
    """Compute actions from means and logarithms of deviations, and normal noise.

    Args:
        outputs: Means, then logarithms of deviations: [rows, 2 * width].
        noise: Normal numbers, [rows, width].
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD)
    spread = log_std.exp() * noise
    numbers = mean + spread
    # A quarter of minus the logarithm of tanh's derivative, but for a constant, in a form without overflow.
    squashing = torch.sub(softplus(numbers, beta=2), numbers, alpha=0.5).sum(-1)
    normal = torch.addcmul(log_std, noise, noise, value=0.5).sum(-1)
    constant = noise.shape[-1] * (HALF_LOG_TAU + 2 * math.log(2))
    return Squashed(numbers.tanh(), torch.sub(4 * squashing, normal + constant), spread)


def squash_gradient(outputs: Tensor, found: Squashed, of_actions: Tensor, of_log_probs: Tensor) -> Tensor:
    """Compute the gradient of `squash` with respect to its outputs.

    The derivative of a log-probability with respect to the number before squashing is twice the action.

    Args:
        outputs: What was given to `squash`.
        found: What it returned.
        of_actions: Gradient with respect to the actions, [rows, width].
        of_log_probs: Gradient with respect to the log-probabilities: one number for all.
    """
    actions = found.actions
    of_mean = torch.addcmul(of_actions, of_actions * actions, actions, value=-1)
    of_mean.addcmul_(actions, of_log_probs, value=2)
    log_std = outputs.chunk(2, -1)[1]
    inside = (log_std > LOG_STD[0]) & (log_std < LOG_STD[1])
    of_log_std = (of_mean * found.spread - of_log_probs) * inside
    return torch.cat([of_mean, of_log_std], -1)
