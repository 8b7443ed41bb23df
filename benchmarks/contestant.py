"""One contestant's process: makes a vec, then runs a timed slice whenever it is told to.

Started by `process.py` with the contestant's own interpreter. Requests and answers are lines of JSON on two
pipes of their own, because peers print. Nothing here may need Shoal.
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

WARM_UP = 0.1  # seconds, before the first slice


def prepare(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The loop, warm, and what is to be known of it."""
    from loops import Bare, BareLoop, Clocked, VectorLoop

    from envs import ENVS

    adapter = importlib.import_module(f"adapters.{config['adapter']}")
    env = ENVS[config["env"]]
    built = adapter.build(env, config["num_envs"], **adapter.CONTESTANTS[config["contestant"]])
    if isinstance(built, Bare):
        loop: BareLoop | VectorLoop = BareLoop(built, env.num_actions)
    else:
        loop = VectorLoop(built, env.num_actions, endless=env.endless)
    clocked = Clocked(loop)
    clocked.run_for(WARM_UP)
    # The rubbish of imports is the same for nobody: keep it out of the collections during slices.
    gc.collect()
    gc.freeze()
    facts = {"versions": versions(adapter.PACKAGES), "note": built.note, "gymnasium_id": env.gymnasium_id}
    return clocked, facts


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
    # Behind its own packages: for what an interpreter lacks and the env needs.
    sys.path.extend(config["more_packages"])
    with os.fdopen(config["requests"]) as requests, os.fdopen(config["answers"], "w") as answers:

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        try:
            clocked, facts = prepare(config)
            answer(**facts)
            for line in requests:
                request = json.loads(line)
                # perf_counter is one clock for all processes, so those of one contestant start together.
                clocked.run_for(request["start"] - perf_counter())
                steps, seconds = clocked.run_for(request["seconds"])
                answer(steps=steps, seconds=seconds)
        except Exception as error:
            traceback.print_exc()
            reason = (str(error).strip().splitlines() or [""])[0]
            answer(error=f"{type(error).__name__}: {reason}".rstrip(": "))
    # Workers are ended with their process group; a peer's own way to close may take seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
