"""Write the result file: machine, commit, settings, all slices and all figures."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from figures import costs, figures
from interleave import Measured, Settings

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FORMAT = 1


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def commit() -> dict[str, Any]:
    """Return the commit of the working tree, and whether the tree has changes."""
    head = _git("rev-parse", "--short=7", "HEAD")
    changed = _git("--no-optional-locks", "status", "--porcelain")
    return {"commit": head or "unknown", "dirty": bool(changed)}


def result(
    set_name: str, settings: Settings, pythons: dict[str, str], measured: Sequence[Measured]
) -> dict[str, Any]:
    cases = [{**case.to_json(), "figures": figures(case), "costs": costs(case)} for case in measured]
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **commit(),
        "set": set_name,
        "settings": asdict(settings),
        "machine": machine(),
        "interpreters": pythons,
        "cases": cases,
    }


def default_path(content: dict[str, Any]) -> Path:
    """Name the file by time, commit and set, so that no run replaces another."""
    dirty = "-dirty" if content["dirty"] else ""
    time = content["created"][:19].replace(":", "")
    return RESULTS / f"{time}-{content['commit']}{dirty}-{content['set']}.json"


def save(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
