"""`shoal train LEARNER --seeds N`: the same training with several seeds, side by side, and a comparison.

DIR/seeds.json     what was asked for, from which `--resume` starts seeds that had to wait
DIR/seed-S/        the run of a seed, as any other run, with the output of its process in log.txt
DIR/summary.json   the figures of the table that is printed at the end
DIR/curve.png      the learning curves of all seeds, and their mean
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli._code import absolute, load_encoder
from shoal.cli._folder import default_folder
from shoal.cli._invocation import invocation
from shoal.cli._options import names_in, without
from shoal.cli._terminal import read_env_kwargs
from shoal.cli.seeds.side_by_side import LOG, SeedRun, SideBySide, Status
from shoal.cli.seeds.summary import CURVE, SUMMARY, draw_curves, outcome_of, print_table, write_summary
from shoal.cli.seeds.view import SeedView
from shoal.errors import ArgumentError, RunError
from shoal.learn.configs.presets import preset_for
from shoal.learn.runs.files import read_file, write_file
from shoal.learn.runs.lock import Lock
from shoal.learn.runs.options import RunOptions
from shoal.learn.runs.run import CHECKPOINT
from shoal.learn.runs.tensor_file import interpreting, require
from shoal.registry import names_code
from shoal.vector import make

if TYPE_CHECKING:
    from shoal.cli.train import Train

PLAN = "seeds.json"
PAUSE = 0.1  # seconds between two looks at the processes
LOG_LINES = 15  # of a failed run, to print

# Options that `_seed_run` writes itself, so they are not copied.
OWN = ("env", "encoder", "seeds", "seed", "run_dir", "resume", "fresh_episodes")
RUN_OPTIONS = {one.name for one in fields(RunOptions)}


@dataclass(frozen=True)
class Plan:
    """What was asked for, as ``seeds.json`` holds it."""

    algorithm: str
    """Short name of the learner."""
    seeds: list[int]
    env: str
    """Name of the env."""
    encoder: str
    """Name of the encoder; "" for the default."""
    options: list[str]
    """The other options, as they were written."""
    changes: list[str]
    """The options that were given with ``--resume``, as they were written."""

    @property
    def code(self) -> dict[str, str]:
        """The names of Python code, by option. Code is run only if the user names it."""
        named = {"env": self.env if names_code(self.env) else "", "encoder": self.encoder}
        return {option: name for option, name in named.items() if name}


def _as_options(values: Mapping[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", value)]


def is_for_seeds(command: Train, options: Sequence[str]) -> bool:
    """Return whether a command is about several seeds, not about one run."""
    folder = Path(command.run_dir)
    return "seeds" in names_in(options) or (
        command.resume
        and bool(command.run_dir)
        and not (folder / CHECKPOINT).exists()
        and (folder / PLAN).exists()
    )


def train_seeds(command: Train, options: Sequence[str]) -> int:
    """Train several seeds, and print and write down what came of them.

    Args:
        command: The command.
        options: Its options as they were written.

    Returns:
        The exit code: 0 if all seeds are done, 130 if some were stopped, else that of a failed run.
    """
    if command.resume:
        folder = Path(command.run_dir)
        plan = _resumed_plan(folder, command, options)
    else:
        plan = _new_plan(command, options)
        folder = Path(command.run_dir) if command.run_dir else default_folder(command.env)
        _check_is_new(folder)
        _check(command, plan)
    runs = [
        _seed_run(folder / f"seed-{seed}", seed, plan, fresh_episodes=command.fresh_episodes)
        for seed in plan.seeds
    ]
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        before = (folder / PLAN).read_bytes() if command.resume else None
        write_file(folder / PLAN, json.dumps(asdict(plan), indent=2).encode())
        _train(folder, plan, runs)
        if before is not None and all(run.code == 2 for run in runs):
            write_file(folder / PLAN, before)  # the options are wrong, and must not hold next time
        return _conclude(folder, plan, runs)
    finally:
        lock.release()


# -- what was asked for ------------------------------------------------------------------------------------


def _new_plan(command: Train, options: Sequence[str]) -> Plan:
    if command.seeds is None or command.seeds < 1:
        raise ArgumentError(f"--seeds: expected at least 1, got {command.seeds}")
    if not command.env:
        raise ArgumentError("--env: expected the env to learn, such as --env CartPole-v1")
    if command.fresh_episodes:
        raise ArgumentError("--fresh-episodes: only with --resume; a new run begins new episodes anyway")
    first = command.config.seed
    seeds = list(range(first, first + command.seeds))
    algorithm, encoder = command.config.ALGORITHM, absolute(command.encoder)
    return Plan(algorithm, seeds, absolute(command.env), encoder, without(options, OWN), [])


def _resumed_plan(folder: Path, command: Train, options: Sequence[str]) -> Plan:
    """Return the plan of the folder, with the options that are given now."""
    if not command.run_dir:
        raise ArgumentError("--resume: expected --run-dir with the folder of the runs to go on with")
    if not (folder / PLAN).exists():
        raise RunError(f"{folder}: expected a folder that shoal train --seeds has written")
    given, changeable = names_in(options), command.config.CHANGEABLE | RUN_OPTIONS
    for name in sorted(given - {"run_dir", "resume", "env", "encoder", "fresh_episodes"} - changeable):
        raise ArgumentError(
            f"--{name.replace('_', '-')}: the runs have their own, and this cannot change; what can change: "
            f"{', '.join(sorted(changeable))}"
        )
    plan = _read_plan(folder)
    if plan.algorithm != command.config.ALGORITHM:
        raise ArgumentError(
            f"{folder}: these runs were begun by shoal train {plan.algorithm}, and this cannot change"
        )
    for option, name in plan.code.items():
        if option not in given:
            raise ArgumentError(
                f"{folder}: the {option} of these runs is code, {name}, which is run only if you name it: "
                f"--{option} {name}"
            )
    return replace(
        plan,
        env=absolute(command.env) or plan.env,
        encoder=absolute(command.encoder) or plan.encoder,
        # Kept in seeds.json: a run may be stopped before it reads them, and waiting runs start later.
        changes=[*without(plan.changes, given), *without(options, OWN)],
    )


def _read_plan(folder: Path) -> Plan:
    """Read ``seeds.json``."""
    path, remedy = folder / PLAN, f"Resume the run of each seed alone: --run-dir {folder}/seed-... --resume"
    with interpreting(path, remedy):
        content = json.loads(read_file(path, remedy))
        options, changes = ([require(one, str) for one in content[name]] for name in ("options", "changes"))
        if wrong := names_in([*options, *changes]) & set(OWN):  # they could name code
            raise ValueError(f"unexpected options {sorted(wrong)}")
        seeds = [require(seed, int) for seed in content["seeds"]]
        if not seeds:
            raise ValueError("there are no seeds")
        algorithm, env, encoder = (require(content[name], str) for name in ("algorithm", "env", "encoder"))
        return Plan(algorithm, seeds, env, encoder, options, changes)


def _seed_run(folder: Path, seed: int, plan: Plan, *, fresh_episodes: bool) -> SeedRun:
    """Return the run of a seed, which goes on if it was saved before."""
    args = ["train", plan.algorithm, "--run-dir", str(folder)]
    if (folder / CHECKPOINT).exists():
        fresh = ["--fresh-episodes"] if fresh_episodes else []
        args += ["--resume", *fresh, *_as_options(plan.code), *plan.changes]
    else:
        own = _as_options({"env": plan.env, **plan.code})
        args += ["--seed", str(seed), *own, *plan.options, *plan.changes]
    return SeedRun(seed, folder, args)


# -- checks before anything starts -------------------------------------------------------------------------


def _check_is_new(folder: Path) -> None:
    if (folder / CHECKPOINT).exists() or any(folder.glob(f"seed-*/{CHECKPOINT}")):
        raise RunError(
            f"{folder} contains a run already: choose another folder, or resume what it contains (--resume)"
        )


def _check(command: Train, plan: Plan) -> None:
    """Raise the errors that all runs would raise, as far as one env shows them."""
    config = replace(command.config, seed=plan.seeds[-1])
    kwargs = read_env_kwargs(command.env_kwargs)
    load_encoder(plan.encoder)
    try:
        vec = make(plan.env, 1, env_kwargs=kwargs, backend=config.backend, flat=True, copy=False)
    except TypeError as error:
        if not kwargs or "unexpected keyword argument" not in str(error):
            raise
        return  # the first run tells it as a mistake
    with vec:
        config.check_rows(config.num_envs * vec.num_rows)


# -- training ----------------------------------------------------------------------------------------------


def _train(folder: Path, plan: Plan, runs: Sequence[SeedRun]) -> None:
    """Train all seeds, until they have ended or were stopped."""
    if name := preset_for(plan.env, plan.algorithm)[0]:
        print(f"preset: {name}")
    with _counted_signals() as signals, SideBySide(runs) as side_by_side:
        count = len(side_by_side.groups)
        title = f"{_title(plan)}, {len(runs)} seeds, {count} at a time, {folder}"
        handled = 0
        with SeedView(title, runs) as view:
            while not side_by_side.is_over:
                for run in side_by_side.advance():
                    view.changed(run)
                view.show()
                if len(signals) > handled:
                    if not handled:
                        side_by_side.stop()
                        view.stopping()
                    else:
                        side_by_side.kill()
                    handled += 1
                time.sleep(PAUSE)


def _title(plan: Plan) -> str:
    return f"{plan.algorithm.upper()} on {plan.env}"


@contextmanager
def _counted_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, instead of being interrupted or ended by them."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the end -----------------------------------------------------------------------------------------------


def _conclude(folder: Path, plan: Plan, runs: Sequence[SeedRun]) -> int:
    """Write and print what came of the runs; return the exit code."""
    outcomes = [outcome_of(run) for run in runs]
    write_summary(folder, plan.algorithm, plan.env, outcomes)
    drawn = draw_curves(folder, _title(plan), runs)
    print_table(outcomes)
    print(f"runs: {folder}")
    print(f"figures: {folder / SUMMARY}")
    if drawn:
        print(f"learning curves: {folder / CURVE}")
    code = "".join(f" {shlex.quote(part)}" for part in _as_options(plan.code))
    failed = [run for run in runs if run.status is Status.FAILED]
    unfinished = any(run.status in (Status.STOPPED, Status.WAITING) for run in runs)
    go_on = f"{invocation()} train {plan.algorithm} --run-dir {shlex.quote(str(folder))} --resume{code}"
    figure = "mean_return" if all(each.best_evaluation is None for each in outcomes) else "best_evaluation"
    done = [each for each in outcomes if each.status == Status.DONE.value]
    known = [each for each in done if getattr(each, figure) is not None]
    best = max(known, key=lambda each: float(getattr(each, figure)), default=None)
    if unfinished:
        print(f"stopped early; to go on: {go_on}")
    elif failed:
        print(f"to go on with the failed seeds: {go_on}")
    elif best is not None:
        played = shlex.quote(str(folder / best.folder))
        flag = " --best" if figure == "best_evaluation" else ""
        what = f"largest {figure.replace('_', ' ')}, seed {best.seed}"
        print(f"to evaluate the one with the {what}: {invocation()} eval {played}{flag}{code}")
    _print_failures(failed)
    if unfinished:
        return 130
    return next((run.code if run.code in (1, 2) else 1 for run in failed), 0)


def _print_failures(failed: Sequence[SeedRun]) -> None:
    """Print the ends of the logs of failed runs, once if they failed alike."""
    sys.stdout.flush()
    alike: dict[str, list[SeedRun]] = {}
    for run in failed:
        alike.setdefault("".join(run.log_lines(1)), []).append(run)
    for runs in alike.values():
        seeds = ", ".join(str(run.seed) for run in runs)
        run, code = runs[0], runs[0].code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        print(f"\nseed {seeds} {how}; the end of {run.folder / LOG}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in run.log_lines(LOG_LINES)), file=sys.stderr)
