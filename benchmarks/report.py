"""Results as tables: for the terminal with Rich, for a page in Markdown. Both show the same cells."""

from __future__ import annotations

from typing import Any

from figures import ONE_PROCESS, REFERENCES
from rich.console import Console
from rich.table import Table

from envs import ENVS

HEADER = ("contestant", "steps/s", "of 1 process", "of 2 processes", "of Sync", "its quartiles")


def short(rate: float) -> str:
    """Three digits, as far as they mean anything here."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g}"


def times(ratio: float) -> str:
    """A ratio, with no more digits than it deserves."""
    return f"{ratio:.2g}" if ratio < 0.1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def rows(case: dict[str, Any]) -> list[list[str]]:
    """A line for each contestant; one that failed has its error in the second cell, and no more cells."""
    lines = []
    for label in case["contestants"]:
        if label in case["errors"]:
            lines.append([label, f"failed: {case['errors'][label]}"])
        elif label not in case["figures"]:
            lines.append([label, *["-"] * (len(HEADER) - 1)])
        else:
            found = case["figures"][label]
            ratios = [found["ratios"][name] for name in REFERENCES]
            cells = ["-" if ratio is None else times(ratio["median"]) for ratio in ratios]
            sync = ratios[-1]
            quartiles = "-" if sync is None else f"{times(sync['low'])} to {times(sync['high'])}"
            lines.append([label, short(found["steps_per_second"]["median"]), *cells, quartiles])
    return lines


def notes(case: dict[str, Any]) -> list[str]:
    """What a reader must know of single contestants, such as other versions than the limit's."""
    facts = case["facts"]
    reference = facts.get(ONE_PROCESS)
    labels: dict[str, list[str]] = {}
    for label, found in facts.items():
        texts = [found["note"]] if found["note"] else []
        if reference is not None:
            ours, theirs = reference["versions"], found["versions"]
            differ = [name for name in ("python", "numpy", "gymnasium") if theirs[name] != ours[name]]
            if differ:
                listed = ", ".join(f"{name} {theirs[name]}" for name in differ)
                texts.append(f"{listed} (the limits: {', '.join(ours[name] for name in differ)})")
            if found["gymnasium_id"] != reference["gymnasium_id"]:
                texts.append(f"{found['gymnasium_id']}, not {reference['gymnasium_id']}")
        for text in texts:
            labels.setdefault(text, []).append(label)
    return [f"{', '.join(those)}: {text}" for text, those in labels.items()]


def cost_lines(case: dict[str, Any]) -> list[str]:
    lines = []
    for cost in case["costs"]:
        per_vector, per_step = cost["us_per_vector_step"], cost["ns_per_step"]
        if per_vector is None:
            continue
        lines.append(
            f"{cost['name']}: {per_vector['median']:.2f} us per vector step "
            f"({per_vector['low']:.2f} to {per_vector['high']:.2f}), {per_step['median']:.1f} ns per env step"
        )
    return lines


def title(case: dict[str, Any]) -> str:
    return f"{case['num_envs']} x {case['env']}: {ENVS[case['env']].about}"


def print_case(console: Console, case: dict[str, Any]) -> None:
    table = Table(title=title(case), title_justify="left")
    table.add_column(HEADER[0], no_wrap=True)
    for name in HEADER[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    failures = []
    for label, *cells in rows(case):
        if len(cells) == 1:  # its error would widen the table beyond every screen
            failures.append(f"{label} {cells[0]}")
            cells = ["failed"]
        table.add_row(label, *cells)
    console.print(table)
    for line in failures:
        console.print(line, style="red", markup=False, highlight=False)
    for line in [*notes(case), *cost_lines(case)]:
        console.print(line, markup=False, highlight=False)
    console.print()


def circumstances(content: dict[str, Any]) -> list[str]:
    """Commit, machine, settings and versions."""
    machine, settings = content["machine"], content["settings"]
    changed = ", with changes" if content["dirty"] else ""
    return [
        f"Commit {content['commit']}{changed}, {content['created'][:10]}; {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gb']:.0f} GB, {machine['system']}; "
        f"{settings['rounds']} rounds of {settings['cycles']} slices "
        f"of {1000 * settings['slice_seconds']:.0f} ms each.",
        "",
        versions_line(content),
        "",
    ]


def summary(content: dict[str, Any]) -> str:
    """Steps per second of all contestants in all cases, as one Markdown table."""
    cases = content["cases"]
    labels = dict.fromkeys(label for case in cases for label in case["contestants"] if "@" not in label)
    lines = circumstances(content)
    lines.append(_line(["steps/s", *[f"{case['num_envs']} x {case['env']}" for case in cases]]))
    lines.append("|---|" + "---:|" * len(cases))
    for label in labels:
        found = [case["figures"].get(label) for case in cases]
        cells = ["-" if each is None else short(each["steps_per_second"]["median"]) for each in found]
        lines.append(_line([label, *cells]))
    return "\n".join(lines) + "\n"


def markdown(content: dict[str, Any]) -> str:
    """All of a result file as Markdown."""
    lines = circumstances(content)
    for case in content["cases"]:
        lines += [f"### {title(case)}", "", _line(HEADER), "|---|" + "---:|" * (len(HEADER) - 1)]
        for label, *cells in rows(case):
            lines.append(_line([label, *cells, *[""] * (len(HEADER) - 1 - len(cells))]))
        extra = [*notes(case), *cost_lines(case)]
        lines += ["", *[f"- {line}" for line in extra]] if extra else []
        lines.append("")
    return "\n".join(lines) + "\n"


def versions_line(content: dict[str, Any]) -> str:
    """The versions of everything that ran; where they differ between contestants, all of them."""
    found: dict[str, set[str]] = {}
    for case in content["cases"]:
        for facts in case["facts"].values():
            for package, version in facts["versions"].items():
                found.setdefault(package, set()).add(version)
    listed = [f"{package} {' and '.join(sorted(versions))}" for package, versions in found.items()]
    return f"Versions: {', '.join(listed)}."


def _line(cells: Any) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
