"""Run one contestant: make its vec, then run a timed slice for each request.

`process.py` starts this script with the contestant's own interpreter, which may have no Shoal. Requests and
answers are lines of JSON. They have two pipes of their own, because peers print to stdout.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import numpy as np
from loops import Loop, Timed, Vector

from envs import ENVS

WARM_UP = 0.1  # seconds, before the first slice
NUM_BATCHES = 256
NUM_SCALARS = 8192


def prepare(config: dict[str, Any]) -> tuple[Timed, dict[str, Any]]:
    """Make the contestant and warm it up; also return facts for the result file."""
    adapter = importlib.import_module(f"adapters.{config['adapter']}")
    env = ENVS[config["env"]]
    loop = adapter.build(env, config["num_envs"], **adapter.CONTESTANTS[config["contestant"]])
    if isinstance(loop, Vector) and env.endless:
        loop.counts_resets = False  # there are none, and counting takes time
    timed = Timed(loop, draw_actions(loop, env.num_actions))
    timed.warm_up()
    timed.slice(WARM_UP)
    # Objects left over from imports differ between contestants. Keep them out of collections during slices.
    gc.collect()
    gc.freeze()
    facts = {"versions": versions(adapter.PACKAGES), "note": loop.note, "gymnasium_id": env.gymnasium_id}
    return timed, facts


def draw_actions(loop: Loop, num_actions: int) -> list[Any]:
    """Draw the same actions for all contestants: batches, or scalars of the type that a batch contains."""
    size = (NUM_BATCHES, loop.rows) if isinstance(loop, Vector) else NUM_SCALARS
    return list(np.random.default_rng(0).integers(num_actions, size=size).astype(np.int64))


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("numpy", "gymnasium", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    config = json.loads(sys.argv[1])
    for descriptor in (config["requests"], config["answers"]):
        os.set_inheritable(descriptor, False)
    # Packages that the env needs and this interpreter lacks. Its own packages come first.
    sys.path.extend(config["more_packages"])
    with os.fdopen(config["requests"]) as requests, os.fdopen(config["answers"], "w") as answers:

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        try:
            timed, facts = prepare(config)
            answer(**facts)
            for line in requests:
                request = json.loads(line)
                # All processes share the clock of perf_counter, so those of one contestant start together.
                timed.slice(request["start"] - perf_counter())
                timing = timed.slice(request["seconds"])
                answer(steps=timing.steps, seconds=timing.seconds)
        except Exception as error:
            traceback.print_exc()
            reason = (str(error).strip().splitlines() or [""])[0]
            answer(error=f"{type(error).__name__}: {reason}".rstrip(": "))
    # The harness kills the process group with its workers. Closing a peer could take seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
