"""`shoal envs`: the names that `shoal.make` and `shoal bench` know."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import Annotated

import gymnasium
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from shoal.cli._terminal import Display, quiet
from shoal.cli._turns import why
from shoal.registry import FAMILIES, OWN


@dataclass(frozen=True)
class Envs:
    """List the names of all envs, and the families that can be installed.

    Example: shoal envs cartpole
    """

    text: Annotated[str, Positional, arg(metavar="[TEXT]", help_behavior_hint="(default: a summary)")] = ""
    """List all names that contain this text, one per line."""

    def run(self) -> int:
        """Print the names and return the exit code: 1 if no name matches."""
        with Display() as display, quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = look_around(display)
        if not self.text:
            print_summary(known)
            return 0
        matching = [name for name in known.names() if self.text.casefold() in name.casefold()]
        for name in matching:
            print(name)
        if not matching:
            print(f"shoal: no name contains {self.text!r}", file=sys.stderr)
        return 0 if matching else 1


@dataclass
class Known:
    """The envs that were found.

    Attributes:
        gymnasium: The ids that Gymnasium itself registers.
        families: The names of each family that could be loaded.
        failures: The reason for each installed family that could not be loaded.
    """

    gymnasium: list[str] = field(default_factory=list)
    families: dict[str, list[str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return all names, those of families last, with the ids that families register in Gymnasium."""
        of_families = [name for names in self.families.values() for name in names]
        return [*OWN, *gymnasium_ids(), *of_families]


def gymnasium_ids() -> list[str]:
    """Return all Gymnasium ids that are not Shoal's."""
    return sorted(name for name in gymnasium.registry if not name.startswith("shoal/"))


def look_around(display: Display) -> Known:
    """Load every installed family and return the names that were found."""
    known = Known(gymnasium_ids())
    for family in FAMILIES.values():
        if family.is_installed:
            display.say(f"looking at {family.name}")
            try:
                known.families[family.name] = family.names()
            except Exception as error:  # a package that does not work here must not hide the others
                known.failures[family.name] = why(error)
    return known


def print_summary(known: Known) -> None:
    """Print a table with one line for each family."""
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, markup=False, width=None if is_terminal else 200)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("names", no_wrap=True)
    table.add_column("envs", justify="right", no_wrap=True)
    table.add_column("about")
    table.add_column("")
    table.add_row("shoal/...", f"{len(OWN):,}", "Shoal's own", "installed")
    table.add_row("Gymnasium ids", f"{len(known.gymnasium):,}", "such as CartPole-v1", "installed")
    for family in FAMILIES.values():
        cells = [f"{family.name}-...", "", family.about]
        if family.name in known.families:
            cells[1] = f"{len(known.families[family.name]):,}"
            how = Text("installed")
        elif family.name in known.failures:
            how = Text(f"fails: {known.failures[family.name]}", style="red")
        else:
            how = Text(family.pip, style="yellow", no_wrap=True)
        table.add_row(*cells, how)
    table.add_row("file.py:Class", "", "a class or function in a file", "")
    console.print(table)
    console.print(Text("\nshoal envs TEXT lists all names that contain TEXT", style="dim"))
