"""Flat observations -> nested tensors: for encoders and learning loops written by users."""

from __future__ import annotations

import math
from typing import Any

import torch

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.learn.encoder import TORCH_DTYPES, view_field
from shoal.rows.fields import Branch, Choice, Leaf, Node
from shoal.rows.layout import Layout


def unpack(obs: torch.Tensor, layout: Layout) -> Any:
    """Convert flat rows to nested tensors, which are views of the rows.

    Args:
        obs: Observations of a vec with ``flat=True``, as a tensor with any leading shape.
        layout: Layout of the observations: ``vec.observation_layout``.

    Returns:
        Tensors in the structure of the space: Text as codes, OneOf as (index, choices).

    Raises:
        ArgumentError: If the rows do not fit the layout, or torch lacks a dtype of the layout.

    Example:
        >>> import numpy as np, shoal, torch
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> from shoal.learn import unpack
        >>> layout = shoal.layout(Dict({"map": Box(0, 255, (2, 2), np.uint8), "pos": Discrete(9)}))
        >>> rows = np.stack([layout.pack(layout.space.sample()) for _ in range(5)])
        >>> nested = unpack(torch.from_numpy(rows), layout)
        >>> nested["map"].shape, nested["pos"].dtype
        (torch.Size([5, 2, 2]), torch.int64)
    """
    if not isinstance(obs, torch.Tensor):
        raise ArgumentTypeError(
            f"expected a tensor, got {type(obs).__name__}: pass torch.from_numpy(obs), or call "
            "layout.unpack(obs)"
        )
    if not isinstance(layout, Layout):
        raise ArgumentTypeError(
            f"expected a layout, got {type(layout).__name__}: pass vec.observation_layout, or "
            "shoal.layout(space)"
        )
    flat_shape = tuple(layout.flat_shape)
    lead = obs.shape[: obs.dim() - len(flat_shape)]
    if obs.dtype != TORCH_DTYPES.get(layout.flat_dtype_name) or tuple(obs.shape[len(lead) :]) != flat_shape:
        raise ArgumentError(
            f"expected rows of dtype {layout.flat_dtype_name} and shape {('...', *flat_shape)}, got "
            f"{obs.dtype} and {tuple(obs.shape)}. Pass what the vec returned with flat=True."
        )
    if isinstance(layout.root, Leaf) and flat_shape == layout.root.field.shape:
        return obs  # a plain Box needs no conversion
    return _unpack(layout.root, obs.reshape((*lead, math.prod(flat_shape))), layout)


def _unpack(node: Node, rows: torch.Tensor, layout: Layout) -> Any:
    if isinstance(node, Branch):
        return node.gather([_unpack(child, rows, layout) for child in node.children])
    tensor = view_field(rows, node.field, layout)
    if isinstance(node, Choice):
        return tensor, tuple(_unpack(child, rows, layout) for child in node.children)
    return tensor
