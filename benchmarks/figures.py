"""Medians, paired ratios and costs, from slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

ONE_PROCESS, TWO_PROCESSES, SYNC = "bare", "bare x2", "gymnasium Sync"
REFERENCES = (ONE_PROCESS, TWO_PROCESSES, SYNC)

# What is switched on, the contestant with it, and the one without.
COSTS = (
    ("copy=True", "shoal.Serial copy", "shoal.Serial"),
    ("episode_stats=True", "shoal.Serial stats", "shoal.Serial"),
    ("an info at every step", "shoal.Serial@null-info", "shoal.Serial"),
    ("Gymnasium: copy=True", "gymnasium Sync copy", "gymnasium Sync"),
    ("Gymnasium: an info at every step", "gymnasium Sync@null-info", "gymnasium Sync"),
)

# Where an env takes time of its own, its swings hide what these cost.
COST_ENVS = ("null", "null-info", "nested", "frame")

Rates = dict[tuple[int, int], float]


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """The median and the quartiles around it."""
    values = list(values)
    if not values:
        return None
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high, "pairs": len(values)}


def rates_of(slices: Iterable[dict[str, Any]]) -> dict[str, Rates]:
    """Steps per second by contestant, then by round and cycle."""
    rates: dict[str, Rates] = {}
    for piece in slices:
        rates.setdefault(piece["contestant"], {})[piece["round"], piece["cycle"]] = piece["rate"]
    return rates


def paired_ratios(ours: Rates, theirs: Rates) -> list[float]:
    """One ratio for each cycle that both have run."""
    return [ours[turn] / theirs[turn] for turn in ours if turn in theirs]


def figures(measured: dict[str, Any]) -> dict[str, Any]:
    """For each contestant of a case its rate and its ratios to the references."""
    rates = rates_of(measured["slices"])
    result = {}
    for label in measured["contestants"]:
        if label in measured["errors"] or label not in rates:
            continue
        ratios = {name: spread(paired_ratios(rates[label], rates.get(name, {}))) for name in REFERENCES}
        result[label] = {"steps_per_second": spread(rates[label].values()), "ratios": ratios}
    return result


def costs(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """What an option costs: differences of time per step in the same cycle."""
    rates = rates_of(measured["slices"]) if measured["env"] in COST_ENVS else {}
    result = []
    for name, dearer, cheaper in COSTS:
        if dearer not in rates or cheaper not in rates:
            continue
        with_it, without = rates[dearer], rates[cheaper]
        differences = [1 / with_it[turn] - 1 / without[turn] for turn in with_it if turn in without]
        per_step = spread(1e9 * difference for difference in differences)
        per_vector_step = spread(1e6 * measured["num_envs"] * difference for difference in differences)
        result.append({"name": name, "ns_per_step": per_step, "us_per_vector_step": per_vector_step})
    return result
