"""Compute medians, ratios and costs from slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interleave import Measured

from shoal.cli._turns import quartiles

ONE_PROCESS, TWO_PROCESSES, SYNC = "bare", "bare x2", "gymnasium Sync"
REFERENCES = (ONE_PROCESS, TWO_PROCESSES, SYNC)

# The option, the contestant with it, and the contestant without it.
COSTS = (
    ("copy=True", "shoal.Serial copy", "shoal.Serial"),
    ("episode_stats=True", "shoal.Serial stats", "shoal.Serial"),
    ("an info at every step", "shoal.Serial@null-info", "shoal.Serial"),
    ("Gymnasium: copy=True", "gymnasium Sync copy", "gymnasium Sync"),
    ("Gymnasium: an info at every step", "gymnasium Sync@null-info", "gymnasium Sync"),
)

# In envs that take time themselves, the variation of that time hides these costs.
COST_ENVS = ("null", "null-info", "nested", "frame")


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the median, the quartiles and the number of values; None if there are no values."""
    if not values:
        return None
    low, median, high = quartiles(values)
    return {"median": median, "low": low, "high": high, "pairs": len(values)}


def figures(measured: Measured) -> dict[str, Any]:
    """Return the rate of each contestant and its ratios to the references."""
    outcome, result = measured.outcome, {}
    for label in (entry.label for entry in measured.case.entries):
        if rates := outcome.rates(label):
            ratios = {name: spread(outcome.ratios(label, name)) for name in REFERENCES}
            result[label] = {"steps_per_second": spread(rates), "ratios": ratios}
    return result


def costs(measured: Measured) -> list[dict[str, Any]]:
    """Return what options cost: differences of time per step within a cycle."""
    if measured.case.env not in COST_ENVS:
        return []
    result = []
    for name, dearer, cheaper in COSTS:
        seconds = [1 / with_it - 1 / without for with_it, without in measured.outcome.pairs(dearer, cheaper)]
        if seconds:
            per_step = spread([1e9 * each for each in seconds])
            per_vector_step = spread([1e6 * measured.case.num_envs * each for each in seconds])
            result.append({"name": name, "ns_per_step": per_step, "us_per_vector_step": per_vector_step})
    return result
