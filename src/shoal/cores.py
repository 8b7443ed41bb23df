"""The cores this process may really use, and how a pool of workers uses them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def usable_cores() -> int:
    """Cores by affinity, and no more than the cgroups this process is in give it time for."""
    return max(1, min([len(affinity()), *(math.ceil(quota) for quota in cgroup_quotas())]))


def affinity() -> list[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cgroup_quotas(root: Path = Path("/")) -> Iterator[float]:
    """The quota of this process's cgroup and of each above it, in cores; of both versions of cgroups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:
            mount, read = root / "sys/fs/cgroup", _quota_of_version_2
        elif "cpu" in controllers.split(","):
            mount, read = root / "sys/fs/cgroup/cpu", _quota_of_version_1
        else:
            continue
        group = mount / own.strip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                quota = read(folder)
                if quota > 0:
                    yield quota
            if folder == mount:
                break


def _quota_of_version_2(folder: Path) -> float:
    time, period = (folder / "cpu.max").read_text().split()  # "max 100000" raises: no number
    return int(time) / int(period)


def _quota_of_version_1(folder: Path) -> float:
    time = int((folder / "cpu.cfs_quota_us").read_text())  # -1: none
    return time / int((folder / "cpu.cfs_period_us").read_text())


class Patience(NamedTuple):
    """How often a waiting process looks, and what it does in between, before it sleeps: see handshake.hpp."""

    pauses: int
    yields: int


def patience_with(num_workers: int, cores: int) -> tuple[Patience, Patience]:
    """What serves a pool best, by measurement on two cores: of the parent, and of each worker.

    A process that waits with pauses keeps a core from whoever it waits for, so there are few where not
    everybody has a core of its own; a yield gives the core away if anybody wants it. To sleep at once would
    cost 30 to 60 us a step, the time to wake a core. After 500 yields (some 0.2 ms on a core that nobody else
    wants) nothing is about to come. A parent that has no core of its own makes room for its workers sooner.
    Where workers share a core, whoever waits is in the others' way, and finds the core awake: it sleeps soon.

    To keep each worker on a core of its own gave 4 % more on a quiet machine, and half the speed beside one
    busy stranger: so the scheduler decides, with a hint where there is a core for everybody (seats.hpp).
    """
    if num_workers > cores:
        return Patience(0, 20), Patience(0, 20)
    if num_workers == cores:
        return Patience(20, 50), Patience(20, 500)
    return Patience(100, 500), Patience(100, 500)
