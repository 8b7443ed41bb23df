"""Flat observations -> nested tensors: the border where a policy gets its structure back."""

from __future__ import annotations

import math
from typing import Any

import torch

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.rows.fields import Branch, Choice, Field, Leaf, Node
from shoal.rows.layout import Layout

# torch's dtype for each of NumPy's, by name; those it lacks cannot be unpacked.
_TORCH = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


def unpack(obs: torch.Tensor, layout: Layout) -> Any:
    """Nested tensors from flat rows, as views of them.

    Args:
        obs: What a vec gave with ``flat=True``, as a tensor, with any leading shape.
        layout: ``vec.observation_layout``.

    Returns:
        Tensors in the structure of the space: Text as codes, OneOf as (index, choices).

    Raises:
        ArgumentError: If the rows are not of this layout, or of a dtype torch does not have.

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
    if obs.dtype != _TORCH.get(layout.flat_dtype_name) or tuple(obs.shape[len(lead) :]) != flat_shape:
        raise ArgumentError(
            f"expected rows of dtype {layout.flat_dtype_name} and shape {('...', *flat_shape)}, got "
            f"{obs.dtype} and {tuple(obs.shape)}. Pass what the vec returned with flat=True."
        )
    if isinstance(layout.root, Leaf) and flat_shape == layout.root.field.shape:
        return obs  # a plain Box already has its form
    return _unpack(layout.root, obs.reshape((*lead, math.prod(flat_shape))), layout)


def _unpack(node: Node, rows: torch.Tensor, layout: Layout) -> Any:
    if isinstance(node, Branch):
        return node.gather([_unpack(child, rows, layout) for child in node.children])
    tensor = leaf(rows, node.field, layout)
    if isinstance(node, Choice):
        return tensor, tuple(_unpack(child, rows, layout) for child in node.children)
    return tensor


def leaf(rows: torch.Tensor, field: Field, layout: Layout) -> torch.Tensor:
    """One field of flat rows, [..., elements of a row], as a view of them."""
    if field.dtype_name not in _TORCH:
        raise ArgumentError(f"torch has no dtype {field.dtype_name}; cast it in the env")
    dtype = _TORCH[field.dtype_name]
    if layout.is_bytes:
        part = rows[..., field.offset : field.offset + field.nbytes].view(dtype)
    else:
        first = field.offset // dtype.itemsize
        part = rows[..., first : first + field.size]
    return part.reshape((*part.shape[:-1], *field.shape))
