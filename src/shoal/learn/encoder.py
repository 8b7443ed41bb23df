"""The default encoder: flat rows -> features, built from what an observation consists of.

    vectors              brought to one scale, as they are
    choices              embedded, each alternative a vector of its own
    text                 characters embedded, weighted by their places and added up
    images               uint8, 36 pixels and more on both sides: the convolutions of the DQN paper
    grids                other integers in two or three dimensions: cells embedded, then small convolutions

A part called ``action_mask`` is not looked at: it says what is allowed, not what is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.learn.actions import MASK, MOST_ALTERNATIVES
from shoal.learn.moments import Moments
from shoal.learn.unpack import leaf
from shoal.rows.fields import Field, Kind
from shoal.rows.layout import Layout

SMALLEST_IMAGE = 36  # for the convolutions to fit


class Encoder(nn.Module):
    """Features of flat rows.

    Args:
        layout: Of the observations.
        normalize: Whether vectors are brought to mean 0 and deviation 1, as seen so far.

    Attributes:
        out_features: Numbers that come out for each row.
    """

    def __init__(self, layout: Layout, *, normalize: bool = True) -> None:
        super().__init__()
        self.layout = layout
        self.vectors: list[Field] = []
        self.parts = nn.ModuleList()
        self.encoded: list[Field] = []
        for field in layout.fields:
            if field.path[:1] == (MASK,) or not field.size:
                continue
            part = _part_for(field)
            if part is None:
                self.vectors.append(field)
            else:
                self.parts.append(part)
                self.encoded.append(field)
        width = sum(field.size for field in self.vectors)
        self.moments = Moments(width) if normalize and width else None
        self.out_features = max(width + sum(_width(part) for part in self.parts), 1)

    def vector(self, rows: Tensor) -> Tensor:
        """The vectors of flat rows, end to end, as they are."""
        lead = rows.shape[: rows.dim() - len(self.layout.flat_shape)]
        flat = rows.reshape(*lead, math.prod(self.layout.flat_shape))
        found = [leaf(flat, field, self.layout).reshape(*lead, field.size).float() for field in self.vectors]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., row] -> [..., out_features]."""
        lead = rows.shape[: rows.dim() - len(self.layout.flat_shape)]
        found = []
        if self.vectors:
            vector = self.vector(rows)
            found.append(vector if self.moments is None else self.moments(vector))
        if self.encoded:
            flat = rows.reshape(math.prod(lead), math.prod(self.layout.flat_shape))
            for field, part in zip(self.encoded, self.parts, strict=True):
                found.append(part(leaf(flat, field, self.layout)).reshape(*lead, -1))
        if not found:  # nothing to see
            return torch.ones(*lead, 1, device=rows.device)
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def observe(self, rows: Tensor) -> None:
        """Take rows into account by which vectors are brought to one scale."""
        if self.moments is not None:
            self.moments.update(self.vector(rows))


def _width(part: Any) -> int:
    return int(part.out_features)


def _part_for(field: Field) -> nn.Module | None:
    """What a field is encoded by, or None for a vector."""
    if field.kind is Kind.TEXT:
        return Text(field)
    low, high = field.bounds()
    sizes = np.asarray(high, np.float64) - np.asarray(low, np.float64) + 1
    few = bool(np.isfinite(sizes).all() and sizes.max() <= MOST_ALTERNATIVES)
    if field.kind in (Kind.SCALAR, Kind.CHOICE) or isinstance(field.space, spaces.MultiDiscrete):
        return Choices(low, sizes) if few else None
    if field.dtype.kind in "iu" and len(field.shape) in (2, 3):
        sides = sorted(field.shape)[-2:]
        if field.dtype == np.uint8 and min(sides) >= SMALLEST_IMAGE:
            return Image(field.shape)
        if few:
            return Grid(field.shape, int(low.min()), int(sizes.max()))
    return None


class Choices(nn.Module):
    """A vector for each alternative of each choice."""

    offsets: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, sizes: Any) -> None:
        super().__init__()
        sizes = np.asarray(sizes, np.int64).reshape(-1)
        width = min(16, int(sizes.max()))
        offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - np.asarray(low, np.int64).reshape(-1)
        first = np.array(low, np.int64).reshape(-1)
        self.register_buffer("offsets", torch.from_numpy(offsets), persistent=False)
        self.register_buffer("low", torch.from_numpy(first), persistent=False)
        self.register_buffer("high", torch.from_numpy(first + sizes - 1), persistent=False)
        self.table = nn.Embedding(int(sizes.sum()), width)
        nn.init.orthogonal_(self.table.weight, math.sqrt(2))
        self.out_features = width * len(sizes)

    def forward(self, values: Tensor) -> Tensor:
        """[rows, ...] -> [rows, out_features]."""
        # Rows of nobody are zeros, which may be none of the alternatives.
        places = values.reshape(len(values), -1).to(torch.int64).clamp(self.low, self.high) + self.offsets
        embedded: Tensor = self.table(places)
        return embedded.reshape(len(values), -1)


class Text(nn.Module):
    """Characters, each weighted by its place, so that words are told from their anagrams."""

    def __init__(self, field: Field, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(len(field.alphabet), width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(field.shape[0], width))
        self.out_features = width

    def forward(self, codes: Tensor) -> Tensor:
        """[rows, length] -> [rows, out_features]."""
        embedded: Tensor = self.table(codes.to(torch.int64))
        return (embedded * self.places).sum(-2) / math.sqrt(codes.shape[-1])


class Image(nn.Module):
    """Three convolutions and a layer; channels may come first or last, or be missing."""

    def __init__(self, shape: tuple[int, ...], width: int = 512) -> None:
        super().__init__()
        self.shape = (1, *shape) if len(shape) == 2 else shape
        self.channels_last = self.shape[-1] < self.shape[0]
        channels = self.shape[-1] if self.channels_last else self.shape[0]
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 32, 8, 4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
            nn.Flatten(),
        )
        with torch.no_grad():
            size = self.layers(self._pixels(torch.zeros(1, *shape, dtype=torch.uint8))).shape[1]
        self.layers.append(nn.Linear(size, width)).append(nn.ReLU())
        _orthogonal(self)
        self.out_features = width

    def _pixels(self, images: Tensor) -> Tensor:
        images = images.reshape(len(images), *self.shape)
        images = images.permute(0, 3, 1, 2) if self.channels_last else images
        # A pixel's channels side by side in memory: so learning takes three quarters of the time on a CPU.
        return images.to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)

    def forward(self, images: Tensor) -> Tensor:
        """[rows, ...] -> [rows, out_features]."""
        features: Tensor = self.layers(self._pixels(images))
        return features


class Grid(nn.Module):
    """Cells that hold symbols: each is embedded, then seen with its neighbours."""

    offsets: Tensor

    def __init__(self, shape: tuple[int, ...], low: int, alternatives: int, width: int = 64) -> None:
        super().__init__()
        self.low, self.high = low, low + alternatives - 1
        kinds = shape[-1] if len(shape) == 3 else 1  # of symbols in a cell
        self.register_buffer("offsets", torch.arange(kinds) * alternatives - low)
        self.table = nn.Embedding(kinds * alternatives, 16)
        nn.init.normal_(self.table.weight, std=0.5)
        layers: list[Any] = [
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1),
            nn.ReLU(),
        ]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        height, wide = shape[0], shape[1]
        size = 32 * math.ceil(height / 2) * math.ceil(wide / 2)
        self.layers.append(nn.Linear(size, width)).append(nn.ReLU())
        _orthogonal(self)
        self.out_features = width

    def forward(self, cells: Tensor) -> Tensor:
        """[rows, ...] -> [rows, out_features]."""
        cells = cells if cells.dim() == 4 else cells[..., None]
        known = cells.to(torch.int64).clamp(self.low, self.high)  # as above
        embedded = self.table(known + self.offsets).sum(-2)
        features: Tensor = self.layers(embedded.permute(0, 3, 1, 2))
        return features


def _orthogonal(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class _Tanh(torch.autograd.Function):
    """By way of the logistic function, which torch computes five times as fast on a CPU."""

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
    """The hyperbolic tangent, to within 1e-7."""
    if inputs.numel() < 1 << 13 or inputs.device.type != "cpu":
        return inputs.tanh()  # one call instead of several
    outputs: Tensor = _Tanh.apply(inputs)  # type: ignore[no-untyped-call]
    return outputs


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": torch.relu}
