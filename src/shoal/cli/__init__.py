"""The command line: ``shoal``, or ``python -m shoal``.

One file per command. A command is a dataclass, its fields are the options, and ``run()`` returns the exit
code: 0, 1 if there was nothing to show or an env raised, 2 for a mistake in what was asked for, 130 after
Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError

ABOUT = """Run many reinforcement-learning envs as one.

Example: shoal bench CartPole-v1

`shoal --version` says which version this is."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: What follows ``shoal``; by default what this process was started with.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if args is None else args)
    shown = warnings.formatwarning
    warnings.formatwarning = _format_warning
    try:
        code = _run(given)
        sys.stdout.flush()  # now, while somebody can tell that the reader has gone
    except Exception as error:
        return _tell(error)
    except KeyboardInterrupt:
        print("shoal: interrupted", file=sys.stderr)
        return 130
    finally:
        warnings.formatwarning = shown
    return code


def _format_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
    """Show a warning in one line, without the line of code that raised it, which is Shoal's own."""
    first = str(message).partition("\n")[0]
    return f"shoal: warning: {first} ({category.__name__})\n"


def _tell(error: Exception) -> int:
    """Say what went wrong, unless it is a defect of Shoal: that is raised. Returns the exit code."""
    from shoal.cli._failures import describe_failure, is_of_an_env

    if is_of_an_env(error):
        print(describe_failure(error), file=sys.stderr)
        return 1
    if isinstance(error, BrokenPipeError):
        # Whoever read has gone; Python would try once more when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if not isinstance(error, ShoalError):
        raise error
    print(f"shoal: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def _run(args: list[str]) -> int:
    if args == ["--version"]:
        import shoal

        print(f"shoal {shoal.__version__}")
        return 0
    try:
        import rich  # noqa: F401
        import tyro
    except ModuleNotFoundError:
        print('shoal: the command line needs packages: pip install "shoal[cli]"', file=sys.stderr)
        return 1
    # Learners are imported only by the commands that need them: torch takes its time.
    if args[:1] == ["train"]:
        return _train(args[1:])
    if args[:1] == ["demo"]:
        return _demo(args[1:])
    if args[:1] == ["hockey"]:
        return _hockey(args[1:])
    from shoal.cli._numbers import WHOLE_NUMBERS
    from shoal.cli.bench import Bench
    from shoal.cli.envs import Envs
    from shoal.cli.evaluate import Evaluate

    commands: dict[str, Any] = {
        "envs": Envs,
        "bench": Bench,
        "train": _Train,
        "eval": Evaluate,
        "demo": _Demo,
        "hockey": _Hockey,
    }
    command = tyro.extras.subcommand_cli_from_dict(
        commands, prog="shoal", description=ABOUT, args=args or ["--help"], registry=WHOLE_NUMBERS
    )
    code: int = command.run()
    return code


@dataclass
class _Train:
    """Learn to play an env: `shoal train ppo --help` says how; the same for dqn and sac."""


@dataclass
class _Demo:
    """Measure CartPole beside Gymnasium's vector envs, then learn to play it: half a minute."""


@dataclass
class _Hockey:
    """Train hockey agents, watch games, or play in the browser: `shoal hockey --help` says how."""


def _train(args: list[str]) -> int:
    """The learner comes first, and the env decides what its defaults are."""
    import tyro

    from shoal.cli._numbers import WHOLE_NUMBERS
    from shoal.cli.train import COMMANDS, CONFIGS, defaults_for

    if not args or args[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        if args[:1] in (["-h"], ["--help"]):
            print(f"usage: shoal train LEARNER --env ENV [options]\n\nLearners: {known}.")
            print("For the options of one: shoal train ppo --help")
            return 0
        print(
            f"usage: shoal train LEARNER --env ENV [options]; expected one of the learners {known}, got "
            f"{args[0] if args else 'none'}",
            file=sys.stderr,
        )
        return 2
    algorithm, options = args[0], args[1:]
    if options and not options[0].startswith("-"):
        print(f"shoal: {options[0]!r}: expected an option; did you mean --env {options[0]}?", file=sys.stderr)
        return 2
    for option in options:
        asked = option.partition("=")[0]
        usual = CONFIGS[algorithm].USUAL_NAMES
        if option.startswith("--") and (name := usual.get(asked[2:].replace("-", "_"))):
            print(f"shoal: {asked}: did you mean --{name.replace('_', '-')}?", file=sys.stderr)
            return 2
    command = tyro.cli(
        COMMANDS[algorithm],
        prog=f"shoal train {algorithm}",
        default=defaults_for(algorithm, options),
        args=options,
        registry=WHOLE_NUMBERS,
    )
    from shoal.cli.seeds.command import is_for_seeds, train_seeds

    if is_for_seeds(command, options):
        return train_seeds(command, options)
    return command.run(options)


def _demo(args: list[str]) -> int:
    import tyro

    from shoal.cli._numbers import WHOLE_NUMBERS
    from shoal.cli.demo import Demo

    return tyro.cli(Demo, prog="shoal demo", args=args, registry=WHOLE_NUMBERS).run()


def _hockey(args: list[str]) -> int:
    import tyro

    from shoal.cli._numbers import WHOLE_NUMBERS
    from shoal.cli.hockey import Play, Watch
    from shoal.cli.hockey_train import EvalHockey, League, TrainHockey

    commands: dict[str, Any] = {
        "train": TrainHockey,
        "eval": EvalHockey,
        "league": League,
        "watch": Watch,
        "play": Play,
    }
    command = tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="shoal hockey",
        description="Train hockey agents, measure them, watch games, or play in the browser.",
        args=args or ["--help"],
        registry=WHOLE_NUMBERS,
    )
    code: int = command.run()
    return code
