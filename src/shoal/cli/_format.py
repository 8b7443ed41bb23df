"""Numbers and times as text, in few characters."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Format a number with few digits (79.9, 0.546, 52,300), or as a dash if it is NaN or infinite."""
    size = abs(value)
    if not math.isfinite(value):
        return "-"
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.1e}"
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """Format a time as hours, minutes and seconds, or as a dash if it is NaN or infinite."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
