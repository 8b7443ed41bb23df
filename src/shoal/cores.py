"""The number of cores that this process may use, and how its workers wait for each other."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def usable_cores() -> int:
    """Return the number of usable cores: the affinity, limited by the CPU quotas of the cgroups."""
    return max(1, min([len(affinity()), *(math.ceil(quota) for quota in cgroup_quotas())]))


def affinity() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cgroup_quotas(root: Path = Path("/")) -> Iterator[float]:
    """Iterate over the CPU quotas, in cores, of this process's cgroup and its parents (v1 and v2)."""
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
    time, period = (folder / "cpu.max").read_text().split()  # "max 100000" means no quota, and raises
    return int(time) / int(period)


def _quota_of_version_1(folder: Path) -> float:
    time = int((folder / "cpu.cfs_quota_us").read_text())  # -1 means no quota
    return time / int((folder / "cpu.cfs_period_us").read_text())


class Patience(NamedTuple):
    """How often a waiting process polls with pauses and with yields before it sleeps: see handshake.hpp."""

    pauses: int
    yields: int


def patience_with(num_workers: int, cores: int) -> tuple[Patience, Patience]:
    """Return the best polling for the parent and for each worker, as measured on two cores.

    A process that polls with pauses keeps its core from the process that it waits for. So there are few
    pauses if processes outnumber cores. A yield gives the core to any other process that wants it. Sleeping
    at once would cost 30 to 60 us per step, which is the time to wake a core. After 500 yields (about 0.2 ms
    on an idle core) an answer is unlikely to come soon, so the process sleeps. A parent without its own core
    sleeps earlier, to make room for its workers. If workers share a core, a waiting process slows the others
    down, and the core is awake anyway, so it sleeps early.

    Pinning each worker to its own core gave 4 % more speed on a quiet machine, but half the speed beside one
    busy foreign process. So the scheduler decides, with a hint if there is a core for every process
    (core_placement.hpp).
    """
    if num_workers > cores:
        return Patience(0, 20), Patience(0, 20)
    if num_workers == cores:
        return Patience(20, 50), Patience(20, 500)
    return Patience(100, 500), Patience(100, 500)
