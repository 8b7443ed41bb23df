"""Tensor files: a nested value of tensors, arrays and plain values as one safetensors file.

    value --(split)--> tensors by name, and JSON for the rest --> file.safetensors

The JSON is in the metadata of the file, together with the SHA-256 of the whole file. Reading such a file
never runs code from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from shoal.errors import RunError, SnapshotError
from shoal.learn.runs.files import NO_DIGEST, is_whole, read_file, stamp, write_file

# What a hostile or foreign file can raise while its content is interpreted.
MISFITS = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError),
    *(RuntimeError, RecursionError, MemoryError, OverflowError, SafetensorError),
)


def write_tensor_file(path: Path, value: Any) -> None:
    """Write a value durably.

    Args:
        path: The file.
        value: Tensors, NumPy arrays, dicts, lists, tuples, strings, numbers, booleans and None.

    Raises:
        OutOfResources: If the disk is full. The file is as it was before.
    """
    write_file(path, _encode(value)[0])


def write_named_tensor_file(folder: Path, name: str, value: Any) -> tuple[str, str, int]:
    """Write a value durably to a file with its digest in its name; return name, digest and size."""
    content, digest = _encode(value)
    file = f"{name}-{digest[:16]}.safetensors"
    write_file(folder / file, content)
    return file, digest, len(content)


def _encode(value: Any) -> tuple[bytes, str]:
    """Return the content of a file for a value, and its digest."""
    tensors: dict[str, Tensor] = {}
    plain = _split(value, "", tensors)
    return stamp(save(tensors, {"sha256": NO_DIGEST.decode(), "value": json.dumps(plain)}))


def read_tensor_file(path: Path, remedy: str, digest: str | None = None) -> Any:
    """Read a value that `write_tensor_file` wrote.

    Args:
        path: The file.
        remedy: What can be done without it, for the message.
        digest: The digest that the file must have; by default the one that it names.

    Raises:
        RunError: If the file is missing or damaged.
    """
    content = read_file(path, remedy)
    try:
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        whole = is_whole(content, metadata["sha256"]) and digest in (None, metadata["sha256"])
    except MISFITS:
        metadata, whole = {}, False
    if not whole:
        raise RunError(
            f"{path}: expected a file that Shoal wrote, got one that is damaged or of another kind. {remedy}"
        )
    with interpreting(path, remedy):
        return _join(json.loads(metadata["value"]), load(content))


@contextmanager
def interpreting(path: Path, remedy: str) -> Iterator[None]:
    """Turn errors that a foreign file causes inside the block into a `RunError` that names the file.

    Args:
        path: The file.
        remedy: What can be done without it, for the message.
    """
    try:
        yield
    except (RunError, SnapshotError):
        raise
    except MISFITS as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise RunError(
            f"{path}: expected what this version of Shoal writes, got something else ({what}). {remedy}"
        ) from error


def require(value: Any, *kinds: type) -> Any:
    """Return a value that was read from a file, if it has one of these types.

    Raises:
        TypeError: If it has another type.
    """
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"expected {names}, got {type(value).__name__}")
    return value


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return JSON for a value, and add its tensors to `tensors`, under names like ``policy.head.weight``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        while name in tensors:  # the keys "a.b" and "a", "b" have the same name
            name += "'"
        if isinstance(value, Tensor):
            # A copy of its own: safetensors refuses views that share memory.
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {"tensor": name}
        tensors[name] = torch.from_numpy(np.array(value, order="C"))
        return {"array": name}
    if isinstance(value, (list, tuple)):
        parts = [_split(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict):
        lead = f"{name}." if name else ""
        return {"dict": [[key, _split(part, f"{lead}{key}", tensors)] for key, part in value.items()]}
    raise TypeError(f"expected a value that a tensor file can hold, got {type(value).__name__} at {name!r}")


def _join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `_split` took apart."""
    if isinstance(plain, list):
        return [_join(part, tensors) for part in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "tuple":
        return tuple(_join(part, tensors) for part in content)
    if kind == "dict":
        return {key: _join(part, tensors) for key, part in content}
    raise ValueError(f"unknown kind {kind!r}")
