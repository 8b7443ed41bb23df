"""Measure Shoal and its peers side by side.

    python benchmarks/run.py quick      Shoal, Gymnasium and the limits: a few minutes
    python benchmarks/run.py full       all envs and all peers; installs them first
    python benchmarks/run.py --env null,cartpole --num-envs 64 --contestants bare,shoal,"gymnasium Sync"

README.md beside this file says what is measured, and how to read it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from guard import Guard
from interleave import Case, Measured, Settings, measure
from process import ContestantFailed, adopt_orphans
from progress import Progress
from record import default_path, result, save
from registry import CONTESTANTS, UnknownName
from report import print_case
from rich.console import Console
from selection import LONGEST_SLICE_MS, SETTINGS, select
from venvs import PROJECT, VenvError, interpreter, packages

from envs import ENVS


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[Case], Settings]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", nargs="?", choices=("quick", "full"), help="else what the options choose")
    parser.add_argument("--env", type=_names, default=[], metavar="NAME,...")
    parser.add_argument("--num-envs", type=_numbers, default=[], metavar="N,...")
    parser.add_argument(
        "--contestants",
        type=_names,
        default=[],
        metavar="NAME,...",
        help="names, peers, or name@env to run another env beside the rest",
    )
    parser.add_argument("--rounds", type=_positive, help="each with fresh processes")
    parser.add_argument("--slices", type=_positive, help="of each contestant in a round")
    parser.add_argument("--slice-ms", type=_positive, help=f"length of a slice, at most {LONGEST_SLICE_MS}")
    parser.add_argument("--json", type=Path, help="where the result goes, if not into benchmarks/results/")
    parser.add_argument("--here", action="store_true", help="run all contestants with this interpreter")
    parser.add_argument("--list", action="store_true", help="list envs and contestants, and end")
    args = parser.parse_args(arguments)
    if args.slice_ms is not None and args.slice_ms > LONGEST_SLICE_MS:
        parser.error(f"--slice-ms: at most {LONGEST_SLICE_MS}, or the machine changes within a slice")
    try:
        cases = select(args.set, args.env, args.num_envs, args.contestants)
    except UnknownName as error:
        parser.error(str(error))
    if not cases:
        parser.error(
            f"the set {args.set!r} does not measure that. Leave the set away to measure what you like: "
            "benchmarks/run.py --env NAME --num-envs N"
        )
    settings = SETTINGS[args.set or "custom"]
    changes = {"rounds": args.rounds, "cycles": args.slices}
    if args.slice_ms is not None:
        changes["slice_seconds"] = args.slice_ms / 1000
    return args, cases, replace(settings, **{name: value for name, value in changes.items() if value})


class Interpreters:
    """Return the interpreter of an environment; set the environment up on first use."""

    def __init__(self, console: Console, *, here: bool) -> None:
        self.console, self.here = console, here
        self.failed: dict[str, str] = {}
        self.used: dict[str, str] = {}

    def __call__(self, venv: str) -> tuple[Path, list[str]]:
        if self.here:
            self.used[venv] = "the one that runs the harness"
            return Path(sys.executable), []
        if venv in self.failed:  # do not retry a failed install for each case
            raise ContestantFailed(self.failed[venv])
        try:
            python = interpreter(venv, self.console.print)
            # The project's interpreter has no Box2D. Gymnasium's environment has it, with the same versions.
            more = [str(packages(interpreter("gymnasium", self.console.print)))] if venv == PROJECT else []
        except VenvError as error:
            self.failed[venv] = str(error)
            raise ContestantFailed(self.failed[venv]) from None
        self.used[venv] = "the one that runs the harness" if venv == PROJECT else f"benchmarks/.venvs/{venv}"
        return python, more


def run(args: argparse.Namespace, cases: list[Case], settings: Settings, console: Console) -> int:
    """Measure all cases, print each when it is done, and save them; return the exit code."""
    pythons = Interpreters(console, here=args.here)
    turns = sum(len(case.running) for case in cases) * settings.rounds * (1 + settings.cycles)
    all_measured: list[Measured] = []
    content: dict[str, Any] = {}
    guard = Guard()
    try:
        with Progress(console, turns) as progress:
            for case in cases:
                all_measured.append(measure(case, settings, pythons, guard, progress))
                content = result(args.set or "custom", settings, pythons.used, all_measured)
                print_case(console, content["cases"][-1])
    finally:
        guard.close()
    path = args.json or default_path(content)
    save(content, path)
    console.print(f"Saved as {path}", soft_wrap=True, highlight=False)
    return 1 if any(measured.outcome.failures for measured in all_measured) else 0


def main() -> int:
    args, cases, settings = parse(sys.argv[1:])
    # Without a terminal there is no width to fit.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if args.list:
        for env in ENVS.values():
            console.print(f"{env.name}: {env.about}", highlight=False)
        console.print(", ".join(CONTESTANTS), highlight=False)
        return 0
    adopt_orphans()
    # SIGINT too: a background job of a shell ignores it, and so do its child processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        return run(args, cases, settings, console)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is saved.")
        return 128 + signal.SIGINT


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
