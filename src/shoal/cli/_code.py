"""Names of Python code on the command line: ``path/to/file.py:Class``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, UnknownEnv
from shoal.registry import object_in_file


def absolute(name: str) -> str:
    """Return the name with the absolute path of its file, so that it can be found from any folder."""
    file, colon, attribute = name.rpartition(":")
    if not (colon and file.endswith(".py")):
        return name
    return f"{Path(file).expanduser().resolve()}:{attribute}"


def load_encoder(name: str) -> Any:
    """Import the class of an encoder; None if the name is empty.

    Raises:
        ArgumentError: If the name is not that of a class or function in a Python file.
    """
    if not name:
        return None
    if ".py:" not in name:
        raise ArgumentError(f"--encoder: expected path/to/file.py:Class, got {name}")
    try:
        found = object_in_file(name)
    except UnknownEnv as error:
        raise ArgumentError(f"--encoder: {str(error).removeprefix('env: ')}") from error
    if found is None:
        raise ArgumentError(f"--encoder: the file has no {name.rpartition(':')[2]!r}: {name}")
    if not callable(found):
        raise ArgumentError(f"--encoder: expected a class or function, got {found!r} for {name}")
    return found
