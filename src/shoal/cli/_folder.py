"""The default folder of a run: ``runs/ENV-TIME``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path


def default_folder(env: str) -> Path:
    """Return the folder for a run of this env that begins now."""
    plain = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in env)
    return Path(f"runs/{plain}-{datetime.now():%Y%m%d-%H%M%S}")
