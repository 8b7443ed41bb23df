"""The default encoder: flat rows -> features, built from the fields of the observation layout.

    vectors     normalised, otherwise unchanged
    choices     one embedding vector for each alternative
    text        embedded characters, weighted by position and summed
    images      uint8 with at least 36 pixels on both sides: the convolutions of the DQN paper
    grids       other integers in two or three dimensions: embedded cells, then small convolutions

A field called ``action_mask`` is not encoded, because it describes the allowed actions and not the env.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ArgumentError
from shoal.learn.actions import MASK, MAX_ALTERNATIVES
from shoal.rows.fields import Field, Kind, where
from shoal.rows.layout import Layout

SMALLEST_IMAGE = 36  # pixels on a side; smaller images do not fit the convolutions

# The torch dtype for the name of a NumPy dtype. A field of another dtype cannot become a tensor.
TORCH_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


# -- fields of flat rows ---------------------------------------------------------------------------------


def view_field(rows: Tensor, field: Field, layout: Layout) -> Tensor:
    """Return one field of flat rows, [..., elements of a row], as a view.

    Raises:
        ArgumentError: If torch lacks the field's dtype.
    """
    if field.dtype_name not in TORCH_DTYPES:
        raise ArgumentError(f"torch has no dtype {field.dtype_name}; cast it in the env")
    dtype = TORCH_DTYPES[field.dtype_name]
    if layout.is_bytes:
        part = rows[..., field.offset : field.offset + field.nbytes].view(dtype)
    else:
        first = field.offset // dtype.itemsize
        part = rows[..., first : first + field.size]
    return part.reshape((*part.shape[:-1], *field.shape))


def find_not_finite(obs: Tensor, layout: Layout, env_ids: NDArray[Any]) -> str | None:
    """Find which env and field produced NaN or inf; None if all observations are finite.

    Args:
        obs: Flat observations, [..., rows, row].
        layout: Layout of the observations.
        env_ids: Env of each row.
    """
    flat = obs.reshape(-1, math.prod(layout.flat_shape))
    for field in layout.fields:
        if field.dtype.kind != "f":
            continue
        numbers = view_field(flat, field, layout).reshape(len(flat), -1)
        wrong = ~numbers.isfinite()
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            env, value = env_ids[row % len(env_ids)], float(numbers[row, place])
            return f"{where(field.path, 'observation')} of env {env} has {value}. Correct the env, or clip it"
    return None


# -- the encoder -----------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Network from flat rows to features.

    Args:
        layout: Layout of the observations.
        normalize: Whether to normalise vectors by the mean and deviation of all rows observed so far.

    Attributes:
        out_features: Number of features of a row.
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
        widths: list[Any] = [part.out_features for part in self.parts]
        self.out_features = max(width + sum(widths), 1)

    def vector(self, rows: Tensor) -> Tensor:
        """Concatenate the vectors of flat rows, without normalising them."""
        lead = rows.shape[: rows.dim() - len(self.layout.flat_shape)]
        flat = rows.reshape(*lead, math.prod(self.layout.flat_shape))
        found = [
            view_field(flat, field, self.layout).reshape(*lead, field.size).float() for field in self.vectors
        ]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def forward(self, rows: Tensor) -> Tensor:
        """Encode [..., row] as [..., out_features]."""
        lead = rows.shape[: rows.dim() - len(self.layout.flat_shape)]
        found = []
        if self.vectors:
            vector = self.vector(rows)
            found.append(vector if self.moments is None else self.moments(vector))
        if self.encoded:
            flat = rows.reshape(math.prod(lead), math.prod(self.layout.flat_shape))
            for field, part in zip(self.encoded, self.parts, strict=True):
                found.append(part(view_field(flat, field, self.layout)).reshape(*lead, -1))
        if not found:  # the observation is empty
            return torch.ones(*lead, 1, device=rows.device)
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def observe(self, rows: Tensor) -> None:
        """Add flat rows, [N, ...], to the mean and deviation that normalise vectors."""
        if self.moments is not None:
            self.moments.update(self.vector(rows))


class Moments(nn.Module):
    """Running mean and variance of rows. They are buffers, so they are saved with the policy's weights.

    Args:
        width: Number of elements of a row.
        limit: Bound of normalised values, in standard deviations; values beyond it are clipped.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, width: int, limit: float = 10.0) -> None:
        super().__init__()
        self.limit = limit
        # Sums over millions of rows need double precision. `forward` applies shift and scale.
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise rows to mean 0 and deviation 1."""
        return ((rows - self.shift) * self.scale).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Add rows, [N, width], to mean and variance."""
        if not len(rows):
            return
        rows = rows.double()
        count, mean = float(len(rows)), rows.mean(0)
        variance = rows.var(0, correction=0)
        total = self.count + count
        delta = mean - self.mean
        self.mean += delta * (count / total)
        between = delta**2 * (self.count * count / total)
        self.variance.copy_((self.variance * self.count + variance * count + between) / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.variance + 1e-8).rsqrt())


# -- networks for single fields --------------------------------------------------------------------------


def _part_for(field: Field) -> nn.Module | None:
    """Make the network that encodes a field; None if the field is a vector."""
    if field.kind is Kind.TEXT:
        return TextEncoder(field)
    low, high = field.bounds()
    sizes = np.asarray(high, np.float64) - np.asarray(low, np.float64) + 1
    few = bool(np.isfinite(sizes).all() and sizes.max() <= MAX_ALTERNATIVES)
    if field.kind in (Kind.SCALAR, Kind.CHOICE) or isinstance(field.space, spaces.MultiDiscrete):
        return ChoiceEncoder(low, sizes) if few else None
    if field.dtype.kind in "iu" and len(field.shape) in (2, 3):
        sides = sorted(field.shape)[-2:]
        if field.dtype == np.uint8 and min(sides) >= SMALLEST_IMAGE:
            return ImageEncoder(field.shape)
        if few:
            return GridEncoder(field.shape, int(low.min()), int(sizes.max()))
    return None


class ChoiceEncoder(nn.Module):
    """Embedding of discrete choices: one vector for each alternative of each choice."""

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
        """Encode [rows, ...] as [rows, out_features]."""
        # The row of an absent agent is all zeros, and 0 may be outside the bounds of the space.
        places = values.reshape(len(values), -1).to(torch.int64).clamp(self.low, self.high) + self.offsets
        embedded: Tensor = self.table(places)
        return embedded.reshape(len(values), -1)


class TextEncoder(nn.Module):
    """Sum of embedded characters, each weighted by its position, so that anagrams differ."""

    def __init__(self, field: Field, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(len(field.alphabet), width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(field.shape[0], width))
        self.out_features = width

    def forward(self, codes: Tensor) -> Tensor:
        """Encode [rows, length] as [rows, out_features]."""
        embedded: Tensor = self.table(codes.to(torch.int64))
        return (embedded * self.places).sum(-2) / math.sqrt(codes.shape[-1])


class ImageEncoder(nn.Module):
    """Three convolutions and a linear layer. Channels may be first, last or missing."""

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
        _init_orthogonal(self)
        self.out_features = width

    def _pixels(self, images: Tensor) -> Tensor:
        images = images.reshape(len(images), *self.shape)
        images = images.permute(0, 3, 1, 2) if self.channels_last else images
        # With channels last in memory, learning on a CPU takes three quarters of the time.
        return images.to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)

    def forward(self, images: Tensor) -> Tensor:
        """Encode [rows, ...] as [rows, out_features]."""
        features: Tensor = self.layers(self._pixels(images))
        return features


class GridEncoder(nn.Module):
    """Embedding of cells that hold symbols, then two convolutions and a linear layer."""

    offsets: Tensor

    def __init__(self, shape: tuple[int, ...], low: int, alternatives: int, width: int = 64) -> None:
        super().__init__()
        self.low, self.high = low, low + alternatives - 1
        kinds = shape[-1] if len(shape) == 3 else 1  # symbols in a cell
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
        _init_orthogonal(self)
        self.out_features = width

    def forward(self, cells: Tensor) -> Tensor:
        """Encode [rows, ...] as [rows, out_features]."""
        cells = cells if cells.dim() == 4 else cells[..., None]
        # Clamped because the row of an absent agent is all zeros, and 0 may be outside the bounds.
        known = cells.to(torch.int64).clamp(self.low, self.high)
        embedded = self.table(known + self.offsets).sum(-2)
        features: Tensor = self.layers(embedded.permute(0, 3, 1, 2))
        return features


def _init_orthogonal(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
